"""Scripts that start their own ranks, and wait for them in ways that a stop must not turn into a hang."""

from __future__ import annotations

import textwrap
from pathlib import Path

from e2e.running import diagnose, read_run

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
