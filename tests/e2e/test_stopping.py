"""Stopping a script in the middle harms nothing: not its files, not its processes, not its exit code."""

from __future__ import annotations

import os
import pickle
import pty
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import forked
import pytest
import torch
from e2e.running import command_line, environment, harness, harness_command, read_run

from torch_bottleneck.harness.process.stopping import SAME_PRESS_SECONDS

LOOP = """
import os, sys, threading, time
import numpy as np
import torch
torch.set_num_threads(1)
steps = 0
def step(model, optimizer):
    global steps
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
def build():
    model = torch.nn.Linear(16, 16)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)
"""
ENDLESS = 100_000
"""Steps of the scripts below: far more than any capture takes, so that ending early means stopped."""
SMALL = {"steps": 2, "baseline_steps": 4, "warmup": 3}


def write(path: Path, source: str) -> None:
    path.write_text(LOOP + textwrap.dedent(source))


def test_finally_with_and_exit_functions_run_and_the_code_is_0(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import atexit, contextlib
        @contextlib.contextmanager
        def guard():
            try:
                yield
            finally:
                print("with", flush=True)
        atexit.register(print, "atexit")
        model, optimizer = build()
        try:
            with guard():
                for _ in range(100_000):
                    try:
                        step(model, optimizer)
                    except Exception:
                        print("seen")
        finally:
            print("finally", steps < 1000)
        print("not reached")
        """,
    )
    got = harness(tmp_path, tmp_path / "out", "train.py", **SMALL)
    assert (got.code, got.out, got.err) == (0, "with\nfinally True\natexit\n", "")
    assert read_run(got.folder).outcome.how == "stopped"


@pytest.mark.parametrize(
    "inside",
    ["import gc; gc.callbacks.append(lambda *_: once()); gc.collect()", "a = Last(); del a"],
    ids=["garbage collector", "finaliser"],
)
def test_a_signal_to_end_is_heard_in_places_that_drop_what_is_raised_there(
    tmp_path: Path, inside: str
) -> None:
    """Python only prints "Exception ignored in" there, and the script would go on."""
    write(
        tmp_path / "train.py",
        """
        import signal
        sent = []
        def once():
            if not sent:
                sent.append(1)
                os.kill(os.getpid(), signal.SIGTERM)
        class Last:
            def __del__(self):
                once()
        try:
            """
        + inside
        + """
            for _ in range(300):
                time.sleep(0.1)
            print("went on")
        finally:
            print("finally", flush=True)
        """,
    )
    got = harness(tmp_path, tmp_path / "out", "train.py", **SMALL)
    assert (got.code, got.out) == (128 + signal.SIGTERM, "finally\n")
    assert "ignored" not in got.err
    assert read_run(got.folder).outcome.how == "killed"


def test_a_checkpoint_from_before_survives_every_way_of_saving(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        from torch import save
        from pathlib import Path
        import json, shutil
        def keep_best():
            save({"steps": steps}, "last.pt")
            torch.save({"steps": steps}, Path("new.pt"))
            np.save("array.npy", np.zeros(3))
            np.savez(file="arrays.npz", a=np.zeros(3))
            with open("epoch=1.ckpt", "wb") as file:
                file.write(b"weights")
            assert Path("epoch=1.ckpt").read_bytes() == b"weights"
            Path("notes.txt").write_text("a new text")
            Path("metrics.json").write_text("{}")
            with open("config.json", "w") as file:
                json.dump({}, file)
            save({"steps": steps}, "best.pt.tmp")
            os.replace("best.pt.tmp", "best.pt")
            Path("plain.tmp").write_text("new")
            Path("plain.tmp").rename("kept.txt")
            os.remove("old.pt")
            Path("older.pt").unlink()
            shutil.rmtree("checkpoints")
            shutil.copyfile("train.py", "copied.txt")
            with open("log.txt", "a") as file:
                file.write("appended")
            os.unlink("made.tmp")
            print("saved all")
        model, optimizer = build()
        open("made.tmp", "w").close()
        try:
            for _ in range(100_000):
                step(model, optimizer)
        finally:
            keep_best()
        """,
    )
    old = [
        "last.pt",
        "array.npy",
        "arrays.npz",
        "metrics.json",
        "config.json",
        "best.pt",
        "kept.txt",
        "copied.txt",
    ]
    old += ["old.pt", "older.pt", "checkpoints/a.pt", "log.txt"]
    (tmp_path / "checkpoints").mkdir()
    for name in old:
        (tmp_path / name).write_text("precious")
        os.utime(tmp_path / name, (1e9, 1e9))
    got = harness(tmp_path, tmp_path / "out", "train.py", **SMALL)
    assert (got.code, got.out, got.err) == (0, "saved all\n", "")
    assert {name: (tmp_path / name).read_text() for name in old} == dict.fromkeys(old, "precious") | {
        "log.txt": "preciousappended"
    }
    assert not (tmp_path / "new.pt").exists(), "a fresh last checkpoint would be taken for a real one"
    assert not (tmp_path / "epoch=1.ckpt").exists()
    assert (tmp_path / "notes.txt").exists(), "what is no checkpoint and replaces nothing"
    assert not (tmp_path / "made.tmp").exists(), "what the run itself made, it may delete"
    outcome = read_run(got.folder).outcome
    diverted = {Path(path).name for path in outcome.diverted_saves}
    assert diverted >= {
        "last.pt",
        "new.pt",
        "array.npy",
        "arrays.npz",
        "metrics.json",
        "config.json",
        "best.pt",
    }
    for path in outcome.diverted_saves:
        assert (got.folder / "diverted" / Path(path).relative_to("/")).is_file(), path
    assert len([note for note in outcome.notes if note.startswith("kept ")]) == 3


def test_a_file_that_was_open_at_the_stop_does_not_pass_for_a_checkpoint(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import io, pickle, tempfile
        checkpoint = open("last.pt", "wb")
        state = open("state.pkl", "wb")
        log = open("log.txt", "w")
        metrics = open("metrics.pkl", "ab")
        buffer, scratch = io.BytesIO(), tempfile.NamedTemporaryFile()
        model, optimizer = build()
        try:
            for _ in range(100_000):
                step(model, optimizer)
                log.write("a step\\n")
        finally:
            torch.save({"steps": steps}, checkpoint)
            pickle.dump({"steps": steps}, state)
            pickle.dump({"more": steps}, file=state)
            pickle.dump([1], metrics)
            torch.save([2], buffer)
            torch.save([3], scratch)
            log.write("end")
            for file in (checkpoint, state, log, metrics):
                file.close()
            buffer.seek(0), scratch.seek(0)
            print(torch.load(buffer), torch.load(scratch))
        """,
    )
    (tmp_path / "metrics.pkl").write_bytes(pickle.dumps([0]))
    got = harness(tmp_path, tmp_path / "out", "train.py", **SMALL)
    assert (got.code, got.out, got.err) == (0, "[2] [3]\n", "")
    assert [(tmp_path / name).stat().st_size for name in ("last.pt", "state.pkl")] == [0, 0]
    assert (tmp_path / "log.txt").read_text().endswith("end")
    assert (tmp_path / "metrics.pkl").read_bytes() == pickle.dumps([0]) + pickle.dumps([1])
    kept = got.folder / "diverted" / tmp_path.relative_to("/")
    assert torch.load(kept / "last.pt")["steps"] < 1000
    with (kept / "state.pkl").open("rb") as file:
        assert [list(pickle.load(file)) for _ in range(2)] == [["steps"], ["more"]]
    outcome = read_run(got.folder).outcome
    assert {Path(path).name for path in outcome.diverted_saves} == {"last.pt", "state.pkl"}
    assert len([note for note in outcome.notes if "was open for writing" in note]) == 2


def test_saves_during_the_run_and_runs_to_the_end_are_not_touched(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        model, optimizer = build()
        for i in range(60):
            step(model, optimizer)
            if i == 2:
                torch.save(i, "early.pt")
        torch.save(i, "last.pt")
        """,
    )
    got = harness(tmp_path, tmp_path / "out", "train.py", run_to_end=True, **SMALL)
    outcome = read_run(got.folder).outcome
    assert (got.code, outcome.how, outcome.diverted_saves) == (0, "finished", [])
    assert (tmp_path / "last.pt").is_file()
    assert (tmp_path / "early.pt").is_file()


def test_an_error_that_the_stop_itself_causes_is_not_the_script_s(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        model, optimizer = build()
        try:
            for _ in range(100_000):
                step(model, optimizer)
        finally:
            torch.save(1, "a.pt")
            os.path.getsize("a.pt")
        """,
    )
    got = harness(tmp_path, tmp_path / "out", "train.py", **SMALL)
    assert (got.code, got.out, got.err) == (0, "", "")
    outcome = read_run(got.folder).outcome
    assert outcome.how == "stopped"
    assert any("FileNotFoundError" in note for note in outcome.notes)


SWALLOWED = {
    "every_batch": """
        for _ in range(100_000):
            try:
                step(model, optimizer)
            except:
                pass
        print("end", flush=True)
        """,
    "every_epoch": """
        for epoch in range(4):
            try:
                for _ in range(50_000):
                    step(model, optimizer)
            except BaseException:
                print("epoch over", steps < 50_000, flush=True)
        print("end", flush=True)
        """,
}


@pytest.mark.parametrize("name", list(SWALLOWED))
def test_a_swallowed_stop_comes_again(tmp_path: Path, name: str) -> None:
    write(tmp_path / "train.py", "model, optimizer = build()\n" + textwrap.dedent(SWALLOWED[name]))
    got = harness(tmp_path, tmp_path / "out", "train.py", **SMALL)
    assert got.code == 0
    assert read_run(got.folder).outcome.how == "stopped"
    if name == "every_batch":
        assert got.out == "", "it does not run through all of its steps"
    else:
        # The stop is met in each epoch, and the script then ends by itself.
        assert got.out == "epoch over True\n" * 4 + "end\n"


THREADS = {
    "joined": "\nt = threading.Thread(target=train); t.start(); t.join()",
    "left alone": "\nthreading.Thread(target=train).start()",
    "daemon and waited for": """
        threading.Thread(target=train, daemon=True).start()
        while True:
            time.sleep(0.05)
        """,
    "in a pool": """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(1) as pool:
            pool.submit(train).result()
        """,
}


@pytest.mark.parametrize("name", list(THREADS))
def test_a_training_in_another_thread_stops_the_program(tmp_path: Path, name: str) -> None:
    write(
        tmp_path / "train.py",
        """
        def train():
            model, optimizer = build()
            try:
                for _ in range(100_000):
                    step(model, optimizer)
            finally:
                print("unwound", flush=True)
        """
        + textwrap.indent(textwrap.dedent(THREADS[name]), " " * 8),
    )
    got = harness(tmp_path, tmp_path / "out", "train.py", **SMALL)
    # Kineto itself remarks on a profiler that is started in another thread (torch 2.13).
    said = [line for line in got.err.splitlines() if "External init callback" not in line]
    assert (got.code, got.out, said) == (0, "unwound\n", [])
    run = read_run(got.folder)
    assert run.outcome.how == "stopped"
    assert run.artefacts["trace"].status == "ok"


def test_threads_that_never_end_do_not_keep_a_stopped_process(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import queue
        batches = queue.Queue(maxsize=2)
        def prefetch():
            while True:
                batches.put(torch.randn(8, 16))
        def compute():
            while True:
                torch.randn(64, 64) @ torch.randn(64, 64)
        threading.Thread(target=prefetch).start()
        threading.Thread(target=compute, daemon=True).start()
        model, optimizer = build()
        for _ in range(100_000):
            batches.get()
            step(model, optimizer)
        """,
    )
    got = harness(tmp_path, tmp_path / "out", "train.py", **SMALL)
    assert (got.code, got.out, got.err) == (0, "", "")


def test_worker_processes_are_gone_after_the_stop(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import warnings
        from torch.utils.data import DataLoader, Dataset
        warnings.filterwarnings("ignore", "This DataLoader will create")  # on a machine of one core
        class Slow(Dataset):
            def __len__(self):
                return 100_000
            def __getitem__(self, i):
                with open("pids", "a") as file:
                    file.write(f"{os.getpid()}\\n")
                return torch.randn(16)
        model, optimizer = build()
        loader = DataLoader(Slow(), batch_size=4, num_workers=2, persistent_workers=True)
        for batch in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    )
    got = harness(tmp_path, tmp_path / "out", "train.py", **SMALL)
    assert (got.code, got.out, got.err) == (0, "", "")
    workers = {int(line) for line in (tmp_path / "pids").read_text().split()}
    assert len(workers) == 2
    assert not [pid for pid in workers if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


INTERRUPTED = """
model, optimizer = build()
try:
    for i in range(100_000):
        step(model, optimizer)
        time.sleep(0.02)
        if i == 8:
            print("going", flush=True)
finally:
    print("finally", flush=True)
"""


def start(command: list[str], cwd: Path) -> subprocess.Popen[str]:
    return forked.Popen(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    while (got := process.stdout.readline()) != f"{line}\n":
        assert got, process.communicate()[1]


def test_ctrl_c_once_stops_and_keeps_what_there_is(tmp_path: Path) -> None:
    write(tmp_path / "train.py", INTERRUPTED)
    process = start(harness_command(tmp_path / "out", "train.py", baseline_steps=500, warmup=3), tmp_path)
    wait_for(process, "going")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (0, "finally\n")
    assert "Traceback" not in err
    run = read_run(tmp_path / "out/main")
    assert run.outcome.how == "interrupted"
    assert run.windows[0].steps.index


def test_ctrl_c_twice_dies_at_once_as_python_would(tmp_path: Path) -> None:
    slow = 'print("stops", flush=True); time.sleep(300); print("finally"'
    write(tmp_path / "train.py", INTERRUPTED.replace('print("finally"', slow))
    process = start(harness_command(tmp_path / "out", "train.py", baseline_steps=500, warmup=3), tmp_path)
    wait_for(process, "going")
    process.send_signal(signal.SIGINT)
    wait_for(process, "stops")
    time.sleep(2 * SAME_PRESS_SECONDS)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert (process.returncode, out) == (-signal.SIGINT, "")


def test_ctrl_c_where_no_safe_point_comes_stops_all_the_same(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        model, optimizer = build()
        for i in range(8):
            step(model, optimizer)
        print("going", flush=True)
        time.sleep(300)
        """,
    )
    process = start(harness_command(tmp_path / "out", "train.py", baseline_steps=500, warmup=3), tmp_path)
    wait_for(process, "going")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode == 0
    assert read_run(tmp_path / "out/main").outcome.how == "interrupted"


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_reaches_the_script_through_the_command_once(tmp_path: Path, terminal: bool) -> None:
    """From a terminal both processes get it; by `kill` only the parent, which hands it on."""
    write(tmp_path / "train.py", INTERRUPTED)
    command = command_line("--out", "run", "--warmup", "3", "--max-seconds", "600", "train.py")
    if not terminal:
        process = start(command, tmp_path)
        wait_for(process, "going")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
        assert "finally\n" in out
        assert process.returncode in (0, 3), err
    else:
        assert _type_ctrl_c(command, tmp_path) in (0, 3)
    assert read_run(tmp_path / "run").outcome.how == "interrupted"
    assert (tmp_path / "run/report.md").is_file()


def _type_ctrl_c(command: list[str], cwd: Path) -> int:
    """Run a command on a terminal of its own, type Ctrl-C once it says "going", return its code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(command[0], command, environment())
    text = b""
    typed = False
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:
            break
        if not chunk:
            break
        text += chunk
        if not typed and b"going" in text:
            typed = True
            os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert typed, text.decode()
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_command_is_the_script_s(tmp_path: Path, number: signal.Signals) -> None:
    """Schedulers and launchers know the command's process only."""
    (tmp_path / "train.py").write_text(
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda number, _: sys.exit(40 + number))\n"
        "print('going', flush=True)\n"
        "time.sleep(300)\n"
    )
    process = start(command_line("--quiet", "--out", "run", "train.py"), tmp_path)
    wait_for(process, "going")
    process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 40 + number, err
    assert read_run(tmp_path / "run").outcome.how == "exited"


def test_a_signal_to_the_command_ends_a_script_that_does_not_hear_it(tmp_path: Path) -> None:
    write(tmp_path / "train.py", INTERRUPTED)
    process = start(command_line("--quiet", "--out", "run", "--max-seconds", "600", "train.py"), tmp_path)
    wait_for(process, "going")
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 4, err
    assert "finally" not in out
    assert "SIGHUP" in err
    run = read_run(tmp_path / "run")
    assert run.outcome.how == "killed"
    assert run.windows[0].steps.index, "what was captured is kept"


SPAWN = """
import torch.multiprocessing as mp
import torch.distributed as dist
def train(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(int(os.environ.get("STEPS", "100000"))):
        step(model, optimizer)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_the_script_spawns_are_captured_and_stopped(tmp_path: Path, method: str) -> None:
    write(
        tmp_path / "train.py",
        SPAWN
        + textwrap.dedent(
            f"""
            if __name__ == "__main__":
                import socket
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    port = free.getsockname()[1]
                mp.start_processes(train, args=(2, port), nprocs=2, start_method="{method}")
                print("joined", flush=True)
            """
        ),
    )
    got = forked.run(
        command_line("--quiet", "--out", "run", "--steps", "2", "train.py"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=600,
        check=False,
    )
    assert got.returncode in (0, 3), got.stderr
    assert got.stdout.startswith("joined\n")
    assert "Traceback" not in got.stderr
    folders = sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir())
    assert folders == ["rank0", "rank1", "tensorboard"]
    for rank in (0, 1):
        run = read_run(tmp_path / f"run/rank{rank}")
        assert (run.rank, run.world_size, run.outcome.how) == (rank, 2, "stopped")
        assert run.artefacts["trace"].status == "ok"


def test_ranks_of_torchrun_share_a_folder_and_one_reports(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        LOOP
        + SPAWN.split("def train")[0]
        + textwrap.dedent(
            """
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(100_000):
                step(model, optimizer)
            """
        )
    )
    got = forked.run(
        [
            command_line()[0],
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "torch_bottleneck",
            "diagnose",
            "--steps",
            "2",
            "train.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=600,
        check=False,
    )
    assert got.returncode == 0, got.stderr
    (folder,) = (tmp_path / "reports").iterdir()
    assert {path.name for path in folder.iterdir()} >= {"rank0", "rank1", "diagnosis.json", "report.md"}
    assert got.stderr.count("run folder:") == 1
    assert [read_run(folder / f"rank{rank}").rank for rank in (0, 1)] == [0, 1]
