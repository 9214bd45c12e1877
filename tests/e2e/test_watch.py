"""`bottleneck watch`: the account of a job beside clocks in the script itself, and what grows.

The scripts carry clocks of their own, by hand, around what an account is to find: one run is measured twice.
"""

from __future__ import annotations

import json
import signal
import textwrap
from pathlib import Path

import jsonschema
import pytest
from e2e.running import PYTHON, Result, harness, plain, read_run, run

from torch_bottleneck.model.documents import load_watch
from torch_bottleneck.model.schema import schema_of
from torch_bottleneck.model.watch import Watch

CLOCK = """
import contextlib, json, time
SPENT = {}
@contextlib.contextmanager
def clock(part):
    began = time.perf_counter()
    try:
        yield
    finally:
        SPENT[part] = SPENT.get(part, 0.0) + time.perf_counter() - began
def write():
    with open("clock.json", "w") as file:
        json.dump(SPENT, file)
"""

EPOCHS = """
import time
from clock import clock, write
import torch
import torch._dynamo
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, i):
        return torch.randn(64), torch.tensor(float(i % 2))

def validate(model, loader):
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += float((model(x).squeeze(1) - y).square().mean())
            time.sleep(0.01)
    return total

def main():
    with clock("set-up"):
        torch.set_num_threads(1)
        time.sleep(0.6)
        model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)], torch.nn.Linear(64, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        training, held_out = DataLoader(Data(), batch_size=4), DataLoader(Data(), batch_size=8)
        more = torch.ones(4_000_000)
    for epoch in range(6):
        batches = iter(training)
        for i in range(40):
            with clock("training steps"):
                x, y = next(batches)
                loss = (model(x).squeeze(1) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                time.sleep(0.03)  # all events of longer steps are noted
                optimizer.step()
            if i % 20 == 10:
                with clock("between steps"):
                    time.sleep(0.15)  # logging
        with clock("validation"):
            validate(model, held_out)
        with clock("checkpoints"):
            torch.save({"model": model.state_dict(), "more": more}, "model.pt")
    with clock("after the last step"):
        time.sleep(0.4)
    write()

main()
"""

GROWING = """
import torch
torch.set_num_threads(1)

class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(16, 16)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.seen = 0
        self.outputs = []

    def step(self, x):
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seen += 1
        self.outputs.append(loss.detach())
        return sum(float(torch.stack(self.outputs).mean()) for _ in range(3))

trainer = Trainer()
for _ in range(2600):
    trainer.step(torch.randn(8, 16))
"""

KILLED = """
import os, signal, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    time.sleep(0.01)
    optimizer.step()
os.kill(os.getpid(), signal.SIGKILL)
"""

SAME = """
import concurrent.futures, gc, hashlib, os, sys, threading
import torch
pool = concurrent.futures.ThreadPoolExecutor(1)  # nobody shuts it down
print(pool.submit(int, 7).result())
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(3)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8, shuffle=True, num_workers=1)
for epoch in range(4):
    for (x,) in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(float(loss).hex())
    with torch.no_grad():
        print(float(model(x).sum()).hex())
    torch.save(model.state_dict(), f=f"model-{epoch}.pt")
print(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
# Those that fed workers end a little later than these.
threads = [thread.name for thread in threading.enumerate() if "Feeder" not in thread.name]
print(sys.argv, __name__, os.getcwd(), threads, gc.isenabled(), sys.getswitchinterval())
print(torch.save.__name__, file=sys.stderr)
if (child := os.fork()) == 0:
    print("child", float(model(torch.ones(1, 8)).isfinite()), flush=True)
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
{end}
"""


def watch(cwd: Path, *words: str, **extra: str) -> tuple[Result, Watch]:
    """`bottleneck watch --out run WORDS...`."""
    done = run([PYTHON, "-m", "torch_bottleneck", "watch", "--out", "run", *words], cwd, **extra)
    watched = load_watch(cwd / "run")
    jsonschema.validate(json.loads((cwd / "run/watch.json").read_text()), schema_of(Watch))
    assert sum(line.s for line in watched.account) == pytest.approx(watched.wall_s, rel=0.01)
    return done, watched


def write(path: Path, source: str) -> None:
    path.write_text(textwrap.dedent(source))


@pytest.mark.usefixtures("new_interpreters")
def test_the_account_agrees_with_clocks_in_the_script(tmp_path: Path) -> None:
    write(tmp_path / "clock.py", CLOCK)
    write(tmp_path / "train.py", EPOCHS)
    done, watched = watch(tmp_path, "train.py")
    assert done.code == 0, done.err
    assert watched.explained_share >= 0.97
    assert watched.steps == 240
    spent = json.loads((tmp_path / "clock.json").read_text())
    parts = {line.part: line for line in watched.account}
    seconds = {part: line.s for part, line in parts.items()}
    # By hand the first steps, the starts of epochs and collections lie within the steps.
    for part in ("first steps", "epoch starts", "garbage collections"):
        seconds["training steps"] += seconds.get(part, 0.0)
    apart = {part: abs(seconds.get(part, 0.0) - by_hand) for part, by_hand in spent.items()}
    # What is misplaced counts twice, and a step that waits for a core looks as if more was done in it.
    assert sum(apart.values()) <= 0.05 * watched.wall_s, apart
    within = {part: 0.25 * by_hand + 0.01 * watched.wall_s for part, by_hand in spent.items()}
    assert all(apart[part] <= within[part] for part in spent), (apart, spent)
    assert parts["validation"].count == parts["checkpoints"].count == 6
    lines = (tmp_path / "train.py").read_text().splitlines()
    for part, words in (("checkpoints", "torch.save"), ("between steps", "# logging")):
        site = parts[part].site
        assert site is not None and words in lines[site.line - 1], part
    assert parts["validation"].site is not None and parts["validation"].site.function == "validate"
    assert not watched.growth
    assert "Where the job goes" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_the_run_folder_is_one_that_the_other_commands_take(tmp_path: Path) -> None:
    write(tmp_path / "train.py", KILLED.replace("os.kill", "# "))
    _, watched = watch(tmp_path, "train.py")

    def command(*words: str) -> Result:
        return run([PYTHON, "-m", "torch_bottleneck", *words], tmp_path)

    again = command("report", "run")
    assert again.code == 0
    assert "Where the job goes" in again.out
    assert json.loads(command("report", "run", "--format", "json").out)["wall_s"] == watched.wall_s
    assert "Step times over the job" in (tmp_path / "run/report.html").read_text()
    assert "validation" not in command("report", "run", "--format", "brief").out
    refused = command("report", "run", "--format", "sarif")
    assert refused.code == 2
    assert "text, md, json, html, brief" in refused.err
    analyzed = command("analyze", "run")
    assert analyzed.code == 3
    assert "`watch` attaches no profiler" in analyzed.out
    assert "timed without the profiler" in analyzed.out
    assert "This run was watched" in analyzed.out
    compared = command("compare", "run", "run")
    assert compared.code in (0, 3), compared.err
    assert "whole job" in compared.out
    reviewed = command("review", "--no-serve", "--out", "logs", "run")
    assert reviewed.code == 0, reviewed.err
    assert list((tmp_path / "logs/run").glob("events.out.tfevents*"))


def test_a_gate_of_watched_jobs(tmp_path: Path) -> None:
    write(tmp_path / "train.py", KILLED.replace("os.kill", "# ").replace("range(400)", "range(120)"))

    def gate(*words: str) -> Result:
        options = ("--watch", "--repeat", "1", "--baseline", "base.json", *words)
        return run([PYTHON, "-m", "torch_bottleneck", "gate", *options, "train.py"], tmp_path)

    wrote = gate("--update-baseline")
    assert wrote.code == 0, wrote.err
    again = gate()
    assert again.code in (0, 3), again.err
    assert "whole job" in again.out


def test_what_grows_beside_the_step_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path / "train.py", GROWING)
    done, watched = watch(tmp_path, "train.py")
    assert done.code == 0, done.err
    assert watched.growth, (tmp_path / "run/watch-steps.jsonl").read_text()
    first = watched.growth[0]
    assert first.what in ("self.outputs", "trainer.outputs")
    assert first.kind == "tensors in list"
    assert first.objects_per_step == pytest.approx(1.0, abs=0.1)
    lines = (tmp_path / "train.py").read_text().splitlines()
    assert first.site is not None and "self.outputs.append" in lines[first.site.line - 1]
    assert 0 < first.low < first.ms_per_1000_steps < first.high
    assert "The step grows by" in done.out


def test_a_killed_job_leaves_everything_up_to_its_last_seconds(tmp_path: Path) -> None:
    write(tmp_path / "train.py", KILLED)
    done, watched = watch(tmp_path, "train.py")
    assert done.code == 128 + signal.SIGKILL
    assert "SIGKILL" in done.err
    assert watched.exit_code == done.code
    assert watched.step_ms is not None
    lost_s = (400 - watched.steps) * watched.step_ms / 1e3
    assert watched.steps < 400
    assert lost_s < 3.0
    seconds = {line.part: line.s for line in watched.account}
    assert seconds["unexplained"] < lost_s + 3.0
    assert seconds["training steps"] == pytest.approx(watched.steps * watched.step_ms / 1e3, rel=0.5)


@pytest.mark.usefixtures("new_interpreters")
@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(7)", 7), ("raise ValueError('too bad')", 1)],
    ids=["ends", "exits", "raises"],
)
def test_a_watched_script_does_what_it_does_by_itself(tmp_path: Path, end: str, code: int) -> None:
    results, files = [], []
    for name in ("plain", "watched"):
        folder = tmp_path / name
        folder.mkdir()
        write(folder / "train.py", SAME.replace("{end}", end))
        if name == "plain":
            done = plain(folder, "train.py", "--lr", "1")
        else:
            done = harness(folder, tmp_path / "out", "train.py", "--lr", "1", watch=True)
        results.append((done.code, *(text.replace(str(folder), "FOLDER") for text in (done.out, done.err))))
        files.append({path.name: path.read_bytes() for path in folder.glob("*.pt")})
    assert results[0][0] == code
    assert results[0] == results[1]
    assert len(files[0]) == 4
    assert files[0] == files[1]


def test_a_module_and_a_script_without_torch(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    write(
        tmp_path / "package/train.py", "import sys, time; time.sleep(1.5); print(sys.argv[1:]); sys.exit(4)"
    )
    done, watched = watch(tmp_path, "-m", "package.train", "--lr", "1")
    assert done.code == 4
    assert done.out.startswith("['--lr', '1']\n")
    assert "no training step was seen" in done.out
    assert watched.steps == 0 and watched.goodput is None
    assert watched.explained_share >= 0.97
    seconds = {line.part: line.s for line in watched.account}
    assert seconds["set-up"] >= 1.4


def test_a_stopped_process_is_told_as_a_pause(tmp_path: Path) -> None:
    stop = """
    if step == 200:
        import subprocess
        me = os.getpid()
        stop = f"sleep 0.2; date +%s.%N; kill -STOP {me}; sleep 3; date +%s.%N; kill -CONT {me}"
        subprocess.Popen(stop, shell=True, stdout=open("times", "w"))
"""
    source = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "")
    write(tmp_path / "train.py", source.replace("    loss = model", f"{stop}    loss = model"))
    done, watched = watch(tmp_path, "train.py")
    assert done.code == 0, done.err
    seconds = {line.part: line.s for line in watched.account}
    stopped, going = map(float, (tmp_path / "times").read_text().split())
    assert seconds["pauses"] == pytest.approx(going - stopped, rel=1 / 6), seconds


ASKED = """
import hashlib, os, signal, time
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(600, 16)), batch_size=4, shuffle=True)
steps = 0
for epoch in range(12):
    for (x,) in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.003)
        optimizer.step()
        steps += 1
        if steps == 200 and os.environ.get("ASK"):
            os.kill(os.getpid(), signal.SIGUSR1)
    print(float(loss).hex())
print(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
"""


def test_a_signal_has_the_job_captured_and_it_goes_on_as_it_would(tmp_path: Path) -> None:
    write(tmp_path / "train.py", ASKED)
    expected = plain(tmp_path, "train.py")
    done, watched = watch(tmp_path, "--on-signal", "SIGUSR1", "train.py", ASK="1")
    assert done.code == 0, done.err
    assert done.out.startswith(expected.out)
    assert watched.steps == 12 * 150
    (taken,) = watched.captures
    assert taken.step >= 200
    assert taken.says
    assert "Captures" in done.out
    parts = {line.part: line for line in watched.account}
    assert 0 < parts["bottleneck"].s < 0.9 * taken.took_s
    capture = tmp_path / "run" / taken.folder
    assert read_run(capture).artefacts["trace"].status == "ok"
    assert "Captures" in (tmp_path / "run/report.html").read_text()
    again = run([PYTHON, "-m", "torch_bottleneck", "report", str(capture), "--format", "json"], tmp_path)
    assert json.loads(again.out)["verdict"]["headline"] == taken.says
    refused = run([PYTHON, "-m", "torch_bottleneck", "watch", "--diagnose", "run"], tmp_path)
    assert refused.code == 2
    assert "has ended" in refused.err


SHORT = """
import sys, time
import torch
import torch._dynamo
from clock import clock, write
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
optimizers = [torch.optim.Adam(model.parameters())]
loader = DataLoader(TensorDataset(torch.randn(8 * 1000, 32)), batch_size=8)
for epoch in range(3):
    batches = loader if "loader" in sys.argv else [(torch.randn(8, 32),) for _ in range(1000)]
    for i, (x,) in enumerate(batches):
        loss = (model(x) - x).square().mean()
        optimizers[0].zero_grad()
        loss.backward()
        time.sleep(0.001)
        optimizers[0].step()
        if i % 500 == 300:
            with clock("between steps"):
                time.sleep(0.2)  # logging
        if i % 500 == 499:
            with clock("validation"), torch.no_grad():
                for _ in range(20):
                    model(x)
                    time.sleep(0.01)
            with clock("checkpoints"):
                torch.save(torch.zeros(2_000_000), "model.pt")
write()
"""

RANKS = """
import time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    time.sleep(0.015)
    optimizer.step()
    if step % 40 == 20:
        if dist.get_rank() == 0:
            torch.save(torch.zeros(8_000_000), "model.pt")
            time.sleep(0.3)
        dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("words", [(), ("loader",)], ids=["without a loader", "with a loader"])
def test_short_steps_are_counted_and_what_lies_between_them_is_still_told(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    write(tmp_path / "clock.py", CLOCK)
    write(tmp_path / "train.py", SHORT)
    done, watched = watch(tmp_path, "train.py", *words)
    assert done.code == 0, done.err
    assert watched.steps == 3000
    parts = {line.part: line for line in watched.account}
    assert parts["training steps"].count >= 2990
    assert parts["validation"].count == parts["checkpoints"].count == 6
    spent = json.loads((tmp_path / "clock.json").read_text())
    for part, by_hand in spent.items():
        # A step that waits for a core outside of all phases looks as if something was done between steps.
        share = 0.15 if part == "between steps" else 0.01
        assert abs(parts[part].s - by_hand) <= 0.1 * by_hand + share * watched.wall_s, (part, spent)
    lines = (tmp_path / "train.py").read_text().splitlines()
    site = parts["between steps"].site
    assert site is not None and "# logging" in lines[site.line - 1]
    # Most of them have left no row: the baseline has those of which all events were noted.
    assert 0 < len(read_run(tmp_path / "run").windows[0].steps.wall_ms) < 1500


def test_each_rank_of_torchrun_is_watched_and_one_reports(tmp_path: Path) -> None:
    write(tmp_path / "train.py", RANKS)
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2 -m torch_bottleneck watch --out run"
    done = run([PYTHON, *launcher.split(), "train.py"], tmp_path)
    assert done.code == 0, done.err
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"rank0", "rank1", "watch.json"}
    assert done.err.count("run folder:") == 1
    assert done.out.count("Where the job goes") == 1
    assert "Ranks" in done.out and "rank 1: " in done.out
    whole = load_watch(tmp_path / "run")
    assert [rank.rank for rank in whole.ranks] == [0, 1]
    for rank in (0, 1):
        watched = load_watch(tmp_path / f"run/rank{rank}")
        jsonschema.validate(
            json.loads((tmp_path / f"run/rank{rank}/watch.json").read_text()), schema_of(Watch)
        )
        assert sum(line.s for line in watched.account) == pytest.approx(watched.wall_s, rel=0.01)
        assert watched.explained_share >= 0.97
        assert watched.steps == 120
        assert whole.ranks[rank].seconds == {line.part: line.s for line in watched.account}
        assert read_run(tmp_path / f"run/rank{rank}").rank == rank
    assert whole.ranks[0].seconds["checkpoints"] > 0
    assert "checkpoints" not in whole.ranks[1].seconds


def test_memory_that_grows_is_told_with_its_line_and_the_time_left(tmp_path: Path) -> None:
    keeps = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "").replace("range(400)", "range(2000)")
    keeps = keeps.replace("model =", "kept = []\nmodel =").replace(
        "    optimizer.step()", "    optimizer.step()\n    kept.append(torch.ones(50_000))"
    )
    write(tmp_path / "train.py", keeps)
    done, watched = watch(tmp_path, "train.py")
    assert done.code == 0, done.err
    (grown,) = watched.memory
    assert grown.where == "host"
    assert grown.bytes_per_step == pytest.approx(200_000, rel=0.2)
    assert grown.full_in_s > 0
    assert grown.what == "kept"
    lines = (tmp_path / "train.py").read_text().splitlines()
    assert grown.site is not None and "kept.append" in lines[grown.site.line - 1]
    assert "The host's memory grows by" in " ".join(done.out.split())
