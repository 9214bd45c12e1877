"""pandas imports any package called `bottleneck`: ours must never be what it finds to use.

PyPI's Bottleneck is pandas' accelerator. Found under that name, we would be called for medians.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MEDIAN = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import pandas
    series = pandas.Series([3.0, 1.0, None, 2.0] * 1000)
    assert series.median() == 2.0 and series.max() == 3.0 and round(series.std(), 3) == 0.817, series.std()
    assert series.rolling(4).mean().notna().sum() == 0
for warning in caught:
    print(warning.message)
"""


def run(code: str, *, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_installed_beside_us_pandas_finds_nothing_of_ours(tmp_path: Path) -> None:
    done = run(
        "import torch_bottleneck, importlib.util\n"
        "assert importlib.util.find_spec('bottleneck') is None, importlib.util.find_spec('bottleneck')\n"
        + MEDIAN,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "no warning: pandas does not see us"


def test_with_the_repository_root_on_the_path_pandas_takes_us_for_too_old_and_works(tmp_path: Path) -> None:
    done = run(MEDIAN, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    # The one price of running Python from our checkout: pandas says that it will not use us.
    lines = done.stdout.splitlines()
    assert len(lines) <= 1, done.stdout
    assert all("version" in line and "bottleneck" in line.lower() for line in lines), done.stdout


def test_found_by_pandas_we_import_nothing(tmp_path: Path) -> None:
    done = run(
        "import sys, bottleneck\n"
        "assert bottleneck.__version__.startswith('0.'), bottleneck.__version__\n"
        "heavy = {'torch', 'pandas', 'numpy', 'rich', 'click', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy\n",
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    assert done.returncode == 0, done.stderr
