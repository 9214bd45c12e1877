"""Matrix products whose sizes keep them from the fast kernels."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from recorded.cases import CASES

from torch_bottleneck.diagnose import diagnose_paths

CASE = CASES["thread-odd-vocabulary-h100"]


def test_the_fix_of_the_thread_is_first_and_promises_what_was_measured() -> None:
    found = diagnose_paths([CASE.folder])
    first = found.suggestions[0]
    assert (first.fix, first.bound) == ("FX329", True)
    assert first.predicted_ms == pytest.approx(float(CASE.facts["measured_fixed_ms"]), rel=0.05)
    (finding,) = (finding for finding in found.findings if finding.code == "BN319")
    assert "24576 x 768 x 50257" in finding.title
    assert finding.sites[0].line == 55


@pytest.mark.parametrize("change", ["sizes", "kernels"])
def test_sizes_and_kernels_must_both_say_so(change: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(CASE.folder, folder)
    if change == "sizes":
        path = folder / "run.json"
        path.write_text(path.read_text().replace("50257", "50264"))
    else:
        (path,) = (folder / "trace").iterdir()
        text = gzip.decompress(path.read_bytes()).replace(b"_align1", b"_align8")
        path.write_bytes(gzip.compress(text))
    found = diagnose_paths([folder])
    assert "BN319" not in {finding.code for finding in found.findings}
    assert "FX329" not in {suggestion.fix for suggestion in found.suggestions}
