"""TensorBoard on recorded runs: what its own Overview says agrees with our budget; nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import forked
import pytest
from recorded.cases import CASES
from reviewing import CPU, GPU, HOSTILE, Review, Served, served

from torch_bottleneck.model.codes import Part
from torch_bottleneck.model.diagnosis import Diagnosis

DEVICE_WORK = (Part.TENSOR_CORE, Part.OTHER_MATH, Part.MEMORY_BOUND, Part.OPTIMIZER)


def both(review: Review, name: str) -> tuple[dict[str, float], Diagnosis]:
    tensorboard, diagnoses = review
    timeline = diagnoses[name].timeline
    assert timeline is not None
    return tensorboard.overview(name, f"rank_{timeline.rank}"), diagnoses[name]


def part_ms(diagnosis: Diagnosis, *parts: Part) -> float:
    return sum(line.ms for line in diagnosis.budget if line.part in parts)


@pytest.mark.parametrize("name", [*GPU, *CPU])
def test_the_step_is_as_long(review: Review, name: str) -> None:
    overview, diagnosis = both(review, name)
    assert diagnosis.timeline is not None
    recorded_ms = diagnosis.timeline.length_us / 1e3
    # The timeline shows the median step, the Overview the mean of a few.
    assert overview["Average Step Time"] == pytest.approx(recorded_ms, rel=0.07)


@pytest.mark.parametrize("name", GPU)
def test_kernels_take_as_long(review: Review, name: str) -> None:
    overview, diagnosis = both(review, name)
    assert overview["Kernel"] == pytest.approx(part_ms(diagnosis, *DEVICE_WORK), rel=0.05)


@pytest.mark.parametrize("name", GPU)
def test_waiting_for_input_is_its_data_loader_time(review: Review, name: str) -> None:
    overview, diagnosis = both(review, name)
    ours = part_ms(diagnosis, Part.INPUT)
    assert overview.get("DataLoader", 0.0) == pytest.approx(ours, rel=0.05, abs=0.2)
    assert (ours > 20) == (name in ("example-input-bound", "input-h200")), "or this says nothing"


def test_on_a_cpu_run_the_loader_has_its_share(review: Review) -> None:
    overview, diagnosis = both(review, "input-bound-cpu")
    share = overview["DataLoader"] / overview["Average Step Time"]
    ours = next(line.share for line in diagnosis.budget if line.part is Part.INPUT)
    # The budget's phases come from steps without the profiler, the Overview's from those with it.
    assert share > 0.5 and share == pytest.approx(ours, abs=0.12)


@pytest.mark.parametrize("name", ["ddp-h200", "ddp-straggler-h200"])
def test_exposed_communication_is_its_communication(review: Review, name: str) -> None:
    overview, diagnosis = both(review, name)
    ours = part_ms(diagnosis, Part.COMMUNICATION)
    assert ours > 2 and overview["Communication"] == pytest.approx(ours, rel=0.05)


def test_the_distributed_view_knows_both_ranks(review: Review) -> None:
    tensorboard, _ = review
    prefix = "/data/plugin/pytorch_profiler"
    views = tensorboard.json(f"{prefix}/views", run="ddp-h200")
    assert {"Overview", "Operator", "Kernel", "Trace", "Distributed"} <= set(views)
    (span,) = tensorboard.json(f"{prefix}/spans", run="ddp-h200", worker="All")
    waits = tensorboard.json(f"{prefix}/distributed/waittime", run="ddp-h200", worker="All", span=span)
    assert set(waits["data"]["all"]) == {"rank_0", "rank_1"}
    (operations,) = (
        tensorboard.json(f"{prefix}/distributed/commops", run="ddp-h200", worker="All", span=span)["data"][
            "rank_0"
        ]["rows"],
    )
    assert operations[0][0] == "nccl:all_reduce" and operations[0][1] == 52


def test_kernels_are_joined_to_their_operators_and_tensor_cores_are_seen(
    review: Review,
) -> None:
    tensorboard, _ = review
    prefix, run = "/data/plugin/pytorch_profiler", "example-compute-bound"
    query = {"run": run, "worker": "rank_0", "span": "default"}
    table = tensorboard.json(f"{prefix}/kernel/table", **query)["data"]
    names = [column["name"] for column in table["columns"]]
    operators = {row[names.index("Operator")] for row in table["rows"]}
    assert any("mm" in name for name in operators)
    overview = tensorboard.json(f"{prefix}/overview", **query)
    assert "Mixed Precision" not in overview["recommendations"], (
        "advice to a run that has tensor-core kernels"
    )


def test_the_text_tab_and_ours_know_the_same_runs(review: Review) -> None:
    tensorboard, diagnoses = review
    runs = {*diagnoses, HOSTILE}
    assert set(tensorboard.json("/data/plugin/text/tags")) == runs
    assert set(tensorboard.json("/data/plugin/bottleneck/runs")["runs"]) == runs
    listing = tensorboard.json("/data/plugins_listing")
    for name in ("bottleneck", "pytorch_profiler", "text", "scalars", "hparams"):
        assert listing[name]["enabled"], name
    assert listing["bottleneck"]["tab_name"] == "Diagnosis"


def start(*arguments: str | Path, cwd: Path) -> tuple[subprocess.Popen[str], str]:
    """Start `bottleneck review` and return it with the address that it prints."""
    process = forked.Popen(
        [sys.executable, "-m", "torch_bottleneck", "review", *map(str, arguments), "--port", "0"],
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(cwd)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert found, (line, process.stderr.read() if process.stderr else "")
    return process, found[0]


def port_is_free(address: str) -> bool:
    port = int(address.rstrip("/").rpartition(":")[2])
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def wait_for_port(address: str) -> bool:
    end = time.monotonic() + 120
    while not port_is_free(address) and time.monotonic() < end:
        time.sleep(0.1)
    return port_is_free(address)


def test_killed_outright_it_takes_tensorboard_with_it(tmp_path: Path) -> None:
    process, address = start(CASES["example-input-bound"].folder, cwd=tmp_path)
    assert not port_is_free(address)
    process.kill()
    process.communicate(timeout=600)
    assert wait_for_port(address)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ended_it_leaves_no_process_no_port_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    case = CASES["example-input-bound"].folder
    process, address = start(case, cwd=tmp_path)
    try:
        assert Served(address).json("/data/plugin/bottleneck/runs")["runs"] == ["example-input-bound"]
        assert not port_is_free(address)
        foreign = urllib.request.Request(address, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(foreign, timeout=60)
        process.send_signal(number)
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == (0 if number == signal.SIGINT else 128 + number), err
    assert "Traceback" not in err
    assert wait_for_port(address)
    assert list(tmp_path.glob("bottleneck-review-*")) == []


def test_a_taken_port_is_said_so(
    tmp_path: Path, bottleneck: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = bottleneck("review", CASES["example-input-bound"].folder, "--port", str(port))
    assert (done.returncode, done.stderr) == (
        2,
        f"Error: Port {port} is taken. Choose another with --port, or 0 for any.\n",
    )


def test_it_prepares_without_serving_and_several_runs_have_names_of_their_own(
    tmp_path: Path, bottleneck: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    case = CASES["example-input-bound"].folder
    done = bottleneck(
        "review", "--no-serve", "--out", "logs", case, CASES["launch-h200"].traces[0], case.parent / case.name
    )
    assert done.returncode == 0, done.stderr
    assert "tensorboard --logdir logs" in done.stdout
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["example-input-bound", "launch"]


def test_a_folder_of_runs_is_all_of_them_and_one_that_cannot_be_read_is_told(
    tmp_path: Path, bottleneck: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "good").symlink_to(CASES["example-input-bound"].folder)
    (tmp_path / "reports" / "bad").mkdir()
    (tmp_path / "reports" / "bad" / "run.json").write_text("{")
    done = bottleneck("review", "reports", "--no-serve", "--out", "logs")
    assert done.returncode == 0
    assert "bad is left out" in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["good"]


@pytest.mark.parametrize("what", ["missing", "text", "empty", "prepared"])
def test_what_cannot_be_reviewed_is_one_clear_line(
    tmp_path: Path, bottleneck: Callable[..., subprocess.CompletedProcess[str]], what: str
) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "bottleneck-page.json").write_text("{}")
    done = bottleneck("review", what, "--no-serve")
    assert done.returncode == 2 and done.stderr.startswith("Error: ") and "Traceback" not in done.stderr
    assert not (tmp_path / "tensorboard-review").exists()


def test_diagnose_leaves_a_folder_that_tensorboard_shows(
    tmp_path: Path, bottleneck: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(64, 64)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(400):\n"
        "    loss = model(torch.randn(32, 64)).square().mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    done = bottleneck("diagnose", "--out", "reports/first", "train.py")
    assert done.returncode in (0, 3), done.stderr
    assert "not prepared" not in done.stderr
    folder = tmp_path / "reports" / "first"
    assert json.loads((folder / "tensorboard" / "bottleneck-page.json").read_text())["traces"]
    # What the profiler tab looks for, below the folder that people give it: the copy, and only that.
    seen = [path.relative_to(folder) for path in folder.rglob("*.pt.trace.json*")]
    assert seen == [Path("tensorboard/rank_0.pt.trace.json.gz")]
    with served(tmp_path / "reports") as tensorboard:
        run = "first/tensorboard"
        tensorboard.wait_for_profiles([run])
        assert tensorboard.json("/data/plugin/pytorch_profiler/runs")["runs"] == [run]
        assert tensorboard.json("/data/plugin/bottleneck/runs")["runs"] == [run]
        assert tensorboard.overview(run, "rank_0")["Average Step Time"] > 0
