"""FLOPs from the shapes in somebody's trace: the same count as by hand, over whole steps only."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.ingest import flops_from_shapes, read_trace
from torch_bottleneck.ingest.shapes import operator_calls
from torch_bottleneck.timeline.steps.traced import find_steps

# One 3x3 convolution of 3 to 8 channels on 4 x 8 x 8, which needs no gradient of the data, and a layer
# of 512 to 10 on 4 rows.
PER_STEP = 2 * (2 * 4 * 64 * 8 * 27) + 3 * (2 * 4 * 512 * 10)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Six steps with shapes, the first of which the profiler leaves out, packed as kineto packs them."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 3, 8, 8)
    target = tmp_path_factory.mktemp("shapes") / "trace.pt.trace.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=20),
    ) as recording:
        for _ in range(6):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            recording.step()
    recording.export_chrome_trace(str(target))
    return target


def test_the_count_is_that_of_one_step(trace: Path) -> None:
    read = read_trace(trace)
    assert read.meta.has_shapes
    steps = find_steps(read)
    assert steps is not None
    found = flops_from_shapes(
        trace, low_ns=int(steps.start_ns[0]), high_ns=int(steps.end_ns[-1]), steps=len(steps)
    )
    assert found is not None
    assert found.flops == pytest.approx(PER_STEP)
    assert set(found.by_operator) == {"convolution", "convolution_backward", "addmm", "mm"}
    assert found.by_dtype == {"float32": pytest.approx(PER_STEP)}


def test_the_report_says_where_the_count_is_from(trace: Path) -> None:
    compute = diagnose_paths([trace]).compute
    assert compute is not None
    assert compute.tflop_per_step == pytest.approx(PER_STEP / 1e12)
    assert compute.flops_from == "shapes in the trace"
    assert compute.achieved_tflops is not None


def test_what_lies_outside_the_stretch_does_not_count(trace: Path) -> None:
    assert list(operator_calls(trace, ["aten::addmm"], low_ns=0, high_ns=1)) == []
    assert flops_from_shapes(trace, low_ns=0, high_ns=1, steps=1) is None


def test_a_file_that_breaks_off_counts_as_far_as_it_goes(trace: Path, tmp_path: Path) -> None:
    text = gzip.decompress(trace.read_bytes())
    cut = tmp_path / "cut.json"
    last = text.rindex(b'"name": "aten::addmm"')
    cut.write_bytes(text[: last + 60])
    whole = list(operator_calls(trace, ["aten::addmm"], low_ns=0, high_ns=2**62))
    assert len(list(operator_calls(cut, ["aten::addmm"], low_ns=0, high_ns=2**62))) == len(whole) - 1


def test_events_on_the_edge_of_two_pieces_are_read_once(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["aten::addmm", "aten::mm", "aten::convolution"]
    whole = list(operator_calls(trace, names, low_ns=0, high_ns=2**62))
    for piece in (997, 4096, 20_011):
        monkeypatch.setattr("torch_bottleneck.ingest.shapes._PIECE", piece)
        assert list(operator_calls(trace, names, low_ns=0, high_ns=2**62)) == whole


def test_a_trace_without_shapes_gives_no_count(trace: Path, tmp_path: Path) -> None:
    text = gzip.decompress(trace.read_bytes()).replace(b'"Input Dims"', b'"Other Dims"')
    plain = tmp_path / "plain.json"
    plain.write_bytes(text)
    assert flops_from_shapes(plain, low_ns=0, high_ns=2**62, steps=1) is None
