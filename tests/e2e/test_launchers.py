"""Scripts that start their own ranks, and wait for them in ways that a stop must not turn into a hang."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import forked
import pytest
from e2e.running import command_line, diagnose, environment, read_run

LOOP = """
import os, socket, subprocess, sys
import torch
import torch.distributed as dist
torch.set_num_threads(1)

def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])

def train():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(100_000):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
"""
ALONE = LOOP.replace('    dist.init_process_group("gloo")\n', "").replace(
    "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))", "torch.nn.Linear(16, 16)"
)


def check_two_ranks(run_folder: Path) -> None:
    folders = sorted(path.name for path in run_folder.iterdir() if path.is_dir())
    assert folders == ["rank0", "rank1", "tensorboard"]
    for rank in (0, 1):
        run = read_run(run_folder / f"rank{rank}")
        assert (run.rank, run.world_size, run.outcome.how) == (rank, 2, "stopped")
        assert run.artefacts["trace"].status == "ok"


def test_a_script_that_runs_itself_again_for_the_other_rank(tmp_path: Path) -> None:
    """Lightning's way of starting several devices."""
    (tmp_path / "train.py").write_text(
        LOOP
        + textwrap.dedent(
            """
            assert sys.argv[1:] == ["--width", "16"], sys.argv
            if "LOCAL_RANK" not in os.environ:
                os.environ.update(
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), WORLD_SIZE="2", LOCAL_RANK="0"
                )
                command = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
                other = subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": "1"})
            os.environ["RANK"] = os.environ["LOCAL_RANK"]
            train()
            """
        )
    )
    got = diagnose(tmp_path, "--quiet", "--steps", "2", "train.py", "--width", "16")
    assert got.code in (0, 3), got.err
    assert "Traceback" not in got.err, "the other rank must not lose its partner"
    check_two_ranks(got.folder)


def test_a_parent_that_waits_for_what_its_stopped_children_would_have_sent(tmp_path: Path) -> None:
    """Lightning's spawning launcher reads a queue, into which a stopped child has put nothing."""
    (tmp_path / "train.py").write_text(
        LOOP
        + textwrap.dedent(
            """
            import torch.multiprocessing as mp
            def work(rank, port, results):
                os.environ.update(
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", RANK=str(rank)
                )
                train()
                results.put("trained")
            if __name__ == "__main__":
                results = mp.get_context("spawn").SimpleQueue()
                mp.spawn(work, args=(free_port(), results), nprocs=2)
                try:
                    print(results.get())
                finally:
                    print("unwound", flush=True)
            """
        )
    )
    got = diagnose(tmp_path, "--quiet", "--steps", "2", "train.py")
    assert got.code in (0, 3), got.err
    assert got.out.startswith("unwound\n")
    assert "Traceback" not in got.err
    check_two_ranks(got.folder)


@pytest.mark.parametrize(
    "launcher",
    [
        ("torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "package.train"),
    ],
    ids=["script", "module"],
)
def test_a_launcher_behind_the_command_instead_of_before_it(
    tmp_path: Path, launcher: tuple[str, ...]
) -> None:
    """`diagnose -m torch.distributed.run`: what it starts is what the user means."""
    (tmp_path / "package").mkdir()
    path = tmp_path / ("package/train.py" if "package.train" in launcher else "train.py")
    path.write_text(LOOP + 'assert sys.argv[1:] == ["--width", "16"], sys.argv\ntrain()\n')
    target = () if "package.train" in launcher else ("train.py",)
    got = diagnose(tmp_path, "--quiet", "--steps", "2", "-m", *launcher, *target, "--width", "16")
    assert got.code in (0, 3), got.err
    assert "Traceback" not in got.err
    check_two_ranks(got.folder)
    assert read_run(got.folder / "rank1").launched, "to run it again takes the launcher"


TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")


def test_several_ranks_try_fixes_at_the_same_steps(tmp_path: Path) -> None:
    """Ranks that switched apart from each other would leave each other waiting in a collective."""
    many = "torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(40)])"
    loop = LOOP.replace("torch.nn.Linear(16, 16)", many).replace("optim.SGD", "optim.AdamW")
    (tmp_path / "train.py").write_text(loop + "train()\n")
    got = diagnose(tmp_path, "--quiet", "--steps", "2", "--trial-seconds", "9", *TWO_RANKS)
    assert got.code in (0, 3), got.err
    assert "Traceback" not in got.err
    check_two_ranks(got.folder)
    tried = [json.loads((got.folder / f"rank{rank}" / "trials.json").read_text())["rows"] for rank in (0, 1)]
    times = [
        [(row["fix"], row["state"], row["without_ms"], row["with_ms"]) for row in rows] for rows in tried
    ]
    assert times[0] == times[1], "they decide by the same figures"
    fused = next(row for row in tried[0] if row["fix"] == "FX311")
    # By then the loss is near nothing, and of its last digits the order of sums decides.
    assert fused["state"] == "measured"
    assert fused["losses"] == pytest.approx(fused["losses_without"], rel=1e-4)
    assert {row["state"] for row in tried[0]} <= {"measured", "not tried"}


def test_ranks_that_run_to_their_end_try_no_fixes_and_say_why(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP.replace("100_000", "500") + "train()\n")
    got = diagnose(tmp_path, "-q", "--run-to-end", "--steps", "2", "--trial-seconds", "9", *TWO_RANKS)
    assert got.code in (0, 3), got.err
    trials = read_run(got.folder / "rank0").artefacts["trials"]
    assert trials.status == "absent" and "in a copy of their processes" in (trials.reason or "")
    assert "No fix was tried in the running script: ranks" in (got.folder / "report.md").read_text()


def test_what_a_launcher_starts_without_a_process_group_tells_how_far_it_is(tmp_path: Path) -> None:
    """One rank on the CPU never asks torch.distributed who it is."""
    (tmp_path / "train.py").write_text(ALONE + "train()\n")
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "train.py")
    got = diagnose(tmp_path, "--steps", "2", *words)
    assert got.code in (0, 3), got.err
    assert "trace window" in got.err
    assert (got.folder / "run.json").is_file(), "a single process lies at the top"


def test_a_launcher_whose_script_fails_fails_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise RuntimeError('no data')")
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "train.py")
    got = diagnose(tmp_path, "--quiet", *words)
    assert got.code == 4
    assert "RuntimeError: no data" in got.err
    assert "torch_bottleneck/harness" not in got.err, "the script's traceback is as python shows it"


TASK = """
rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", init_method=os.environ["MEETING"], rank=rank, world_size=size)
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def srun(cwd: Path, *words: str) -> list[subprocess.CompletedProcess[str]]:
    """Start two tasks with the variables that `srun --ntasks 2` gives them."""
    given = environment(SLURM_NTASKS="2", SLURM_STEP_NUM_TASKS="2", SLURM_JOB_ID="7", SLURM_STEP_ID="0")
    given["MEETING"] = f"tcp://127.0.0.1:{free_port()}"
    tasks = [
        forked.Popen(
            command_line(*words),
            cwd=cwd,
            env={**given, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    try:
        said = [task.communicate(timeout=600) for task in tasks]
    finally:
        for task in tasks:
            task.kill()  # one that waits for the other for ever; nothing where it has ended
    return [
        subprocess.CompletedProcess(task.args, task.returncode, *words)
        for task, words in zip(tasks, said, strict=True)
    ]


@pytest.mark.parametrize("out", [(), ("--out", "reports/run")], ids=["", "out"])
def test_tasks_of_srun_that_are_one_job_give_one_report(tmp_path: Path, out: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(
        LOOP.replace('dist.init_process_group("gloo")', TASK.strip().replace("\n", "\n    ")) + "train()\n"
    )
    done = srun(tmp_path, "--quiet", "--steps", "2", *out, "train.py")
    assert [task.returncode for task in done] == [0, 0], [task.stderr for task in done]
    assert sum(task.stderr.count("run folder:") for task in done) == 1
    (folder,) = (tmp_path / "reports").iterdir()
    check_two_ranks(folder)
    assert read_run(folder / "rank1").launched
    assert folder.name == "run" or not out


def test_tasks_of_srun_that_train_alone_have_a_report_each(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALONE + "train()\n")
    done = srun(tmp_path, "--quiet", "--steps", "2", "train.py")
    assert all(task.returncode in (0, 3) for task in done), [task.stderr for task in done]
    folders = sorted((tmp_path / "reports").iterdir())
    assert [read_run(folder).world_size for folder in folders] == [1, 1]


def test_ranks_that_torchrun_starts_anew_after_a_failure(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        LOOP
        + textwrap.dedent(
            """
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                raise RuntimeError("first try")
            train()
            """
        )
    )
    torchrun = (
        "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1 --monitor-interval 0.2"
    )
    ours = "-m torch_bottleneck diagnose --quiet --steps 2 --out run train.py"
    got = forked.run(
        [sys.executable, *torchrun.split(), *ours.split()],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert got.returncode == 0, got.stderr
    check_two_ranks(tmp_path / "run-restart1")


@pytest.mark.parametrize("word", ["--local_rank=0", "--local-rank=0"])
def test_what_a_launcher_puts_before_the_verb_is_for_the_script(tmp_path: Path, word: str) -> None:
    """`deepspeed --module torch_bottleneck diagnose train.py`, and torch.distributed.launch."""
    (tmp_path / "train.py").write_text("import sys; print(sys.argv)")
    words = ["-m", "torch_bottleneck", word, "diagnose", "--quiet", "--out", "run", "train.py", "--lr", "1"]
    got = forked.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert got.stdout.startswith(f"['train.py', '{word}', '--lr', '1']\n"), got.stderr


def test_a_local_rank_before_another_verb_is_bad_usage() -> None:
    words = ["-m", "torch_bottleneck", "--local_rank=0", "catalog"]
    got = forked.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert got.returncode == 2
    assert "No such option" in got.stderr


def test_the_rank_that_is_late_is_the_one_diagnosed(tmp_path: Path) -> None:
    """On the CPU too, where no kernel tells how long a rank has waited in a collective."""
    (tmp_path / "train.py").write_text(
        LOOP.replace("def train():", "def model_and_ranks():").split("    optimizer =")[0]
        + textwrap.dedent(
            """
                return model

            class Data(torch.utils.data.Dataset):
                def __len__(self):
                    return 100_000
                def __getitem__(self, index):
                    time.sleep(0.008 if dist.get_rank() == 1 else 0.0)
                    return torch.randn(16)

            import time
            model = model_and_ranks()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for batch in torch.utils.data.DataLoader(Data(), batch_size=8):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
            """
        )
    )
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    got = diagnose(tmp_path, "--quiet", "--steps", "6", *words)
    assert got.code == 0, got.err
    found = json.loads((got.folder / "diagnosis.json").read_text())
    assert found["verdict"]["class"] == "input-bound"
    assert "rank 1, which decides the step" in got.out
    waits = {row["rank"]: row["waits_for_others_ms"] for row in found["ranks"]}
    assert waits[1] == pytest.approx(0.0, abs=1e-6)
    assert waits[0] > 0.5 * found["step"]["true_ms"]
    for row in found["ranks"]:
        assert row["report"] == f"rank{row['rank']}/report.html"
        own = json.loads((got.folder / row["report"]).with_name("diagnosis.json").read_text())
        assert (own["rank"], own["ranks"]) == (row["rank"], [])


def test_training_in_a_program_that_nobody_observes_is_pointed_at(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print('trained elsewhere')")
    (tmp_path / "train.py").write_text(
        "import subprocess, sys\nimport torch\nsubprocess.run([sys.executable, 'job.py'], check=True)\n"
    )
    got = diagnose(tmp_path, "--quiet", "train.py")
    assert got.code == 3, got.err
    assert got.out.startswith("trained elsewhere\n")
    assert "not observed: job.py" in got.out


def test_two_machines_end_with_one_report_and_only_the_named_ranks_are_traced(tmp_path: Path) -> None:
    """Two launchers of two ranks each, as on two machines that share a file system."""
    (tmp_path / "train.py").write_text(
        LOOP.replace(
            "        optimizer.zero_grad()\n",
            "        if dist.get_rank() == 2: time.sleep(0.1)\n        optimizer.zero_grad()\n",
        )
        + "import time\ntrain()\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [
        forked.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2",
             "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port),
             "-m", "torch_bottleneck", "diagnose", "--quiet", "--steps", "2", "--ranks", "0,2-3", "train.py"],
            cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for node in (0, 1)
    ]  # fmt: skip
    (out, err), (other_out, other_err) = (node.communicate(timeout=300) for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], err + other_err
    assert other_out == "", "there is one report"
    (folder,) = (tmp_path / "reports").iterdir()
    runs = [read_run(folder / f"rank{rank}") for rank in range(4)]
    assert [run.artefacts["trace"].status for run in runs] == ["ok", "absent", "ok", "ok"]
    assert "only timed" in str(runs[1].artefacts["trace"].reason)
    steps = [[len(window.steps.index) for window in run.windows if window.name == "baseline"] for run in runs]
    assert steps[0] == steps[1] == steps[2] == steps[3], "all take the same steps"
    diagnosis = json.loads((folder / "diagnosis.json").read_text())
    assert [row["rank"] for row in diagnosis["ranks"]] == [0, 1, 2, 3]
    assert all(row["step_ms"] for row in diagnosis["ranks"]), "each of them is timed"
    assert diagnosis["fleet"]["compared"] == 3
    assert [late["ranks"] for late in diagnosis["fleet"]["stragglers"]] == [[2]]
    assert "1 of them only timed" in out
