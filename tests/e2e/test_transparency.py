"""A script under the tool does what it does under plain python, byte for byte.

Each test runs one script both ways. Scripts without torch start in milliseconds and meet the same
runner; those about torch's own parts import it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from e2e.running import (
    Result,
    command_line,
    diagnose,
    environment,
    harness,
    harness_command,
    plain,
    read_run,
    run,
)

from_the_start = pytest.mark.usefixtures("new_interpreters")
"""About what the interpreter does before and after the script; the others are about training."""

LOOK = """
import os, sys, pickle, inspect, __main__
class Thing:
    pass
def function():
    return 1
print(repr(__name__), repr(__file__), repr(__package__), getattr(__spec__, "origin", None), repr(__doc__))
print(type(__loader__).__name__, type(__builtins__).__name__, sorted(globals()))
print(sys.argv, sys.path[0], os.getcwd(), sys.flags, sys.warnoptions, sys._xoptions)
print(function.__code__.co_filename, inspect.getsource(function))
print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, __main__.Thing is Thing)
print(sys.modules["__main__"].__dict__ is globals(), sys.excepthook is sys.__excepthook__)
print([info.filename for info in inspect.stack(0) if inspect.getmodule(info.frame) is None])
print(sys.stdin.read() if not sys.stdin.isatty() else "")
"""


def both(tmp_path: Path, *words: str, flags: tuple[str, ...] = (), stdin: str = "") -> tuple[Result, Result]:
    """Run under plain python and under the harness."""
    expected = plain(tmp_path, *words, flags=flags, stdin=stdin)
    got = harness(tmp_path, tmp_path / "out", *words, flags=flags, stdin=stdin)
    return expected, got


def assert_same(expected: Result, got: Result) -> None:
    assert (got.code, got.out, got.err) == (expected.code, expected.out, expected.err)


def write(path: Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))


@from_the_start
@pytest.mark.parametrize(
    "words", [("look.py", "--lr", "1", "-m", "--", "a b"), ("./look.py",), ("sub/../look.py",)]
)
def test_a_script_sees_what_python_would_show_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    write(tmp_path / "look.py", LOOK)
    (tmp_path / "sub").mkdir()
    expected, got = both(tmp_path, *words, stdin="typed\nin")
    assert "typed" in expected.out
    assert_same(expected, got)


@from_the_start
def test_a_script_in_another_folder_imports_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "project/neighbour.py", "VALUE = 7")
    write(tmp_path / "project/train.py", LOOK + "\nimport neighbour; print(neighbour.VALUE)")
    assert_same(*both(tmp_path, "project/train.py"))


@from_the_start
def test_a_linked_script_imports_from_where_it_really_is(tmp_path: Path) -> None:
    write(tmp_path / "real/neighbour.py", "VALUE = 7")
    write(tmp_path / "real/train.py", LOOK + "\nimport neighbour; print(neighbour.VALUE)")
    (tmp_path / "train.py").symlink_to(tmp_path / "real/train.py")
    assert_same(*both(tmp_path, "train.py"))


@from_the_start
def test_a_module_runs_as_with_dash_m(tmp_path: Path) -> None:
    write(tmp_path / "pkg/__init__.py", "print('package', __name__)")
    write(tmp_path / "pkg/other.py", "VALUE = 7")
    write(tmp_path / "pkg/train.py", LOOK + "\nfrom .other import VALUE; print(VALUE)")
    write(tmp_path / "pkg/__main__.py", "from . import train")
    assert_same(*both(tmp_path, "-m", "pkg.train", "--lr", "1"))
    assert_same(*both(tmp_path, "-m", "pkg", "x"))


@from_the_start
def test_a_missing_module_is_python_s_own_message(tmp_path: Path) -> None:
    expected, got = both(tmp_path, "-m", "nothing_here")
    assert expected.code == 1
    assert_same(expected, got)


@from_the_start
@pytest.mark.parametrize("flags", [("-O",), ("-W", "error"), ("-X", "dev"), ("-B", "-s"), ("-u",)])
def test_interpreter_flags_reach_the_script(tmp_path: Path, flags: tuple[str, ...]) -> None:
    write(tmp_path / "look.py", LOOK)
    assert_same(*both(tmp_path, "look.py", flags=flags))


FAILURES = {
    "raises": """
        def inner():
            raise ValueError("two\\nlines")
        def outer():
            inner()
        outer()
        """,
    "chained": """
        def f():
            try:
                {}["k"]
            except KeyError as error:
                raise RuntimeError("second") from error
        try:
            f()
        except RuntimeError:
            1 / 0
        """,
    "syntax": "def broken(:\n    pass\n",
    "missing": "import a_module_that_is_not_there\n",
    "exit_3": "import sys; print('x', end=''); sys.exit(3)",
    "exit_text": "raise SystemExit('what went wrong')",
    "exit_none": "raise SystemExit",
    "os_exit": "import os, sys; sys.stdout.write('y'); sys.stdout.flush(); os._exit(5)",
    "keyboard": "raise KeyboardInterrupt",
    "segfault": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "group": "raise ExceptionGroup('g', [ValueError(1)]) if hasattr(__builtins__, 'ExceptionGroup') else 0",
    "own_hook": """
        import sys
        sys.excepthook = lambda kind, error, trace: print("mine", kind, trace.tb_frame.f_lineno)
        1 / 0
        """,
    "atexit": """
        import atexit, threading, time
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        raise LookupError
        """,
    "thread": """
        import threading
        t = threading.Thread(target=lambda: 1 / 0, name="worker"); t.start(); t.join(); print("after")
        """,
    "warns": "import warnings; warnings.warn('careful', DeprecationWarning)",
}


@from_the_start
@pytest.mark.parametrize("name", list(FAILURES))
def test_ends_and_tracebacks_are_python_s(tmp_path: Path, name: str) -> None:
    write(tmp_path / f"{name}.py", FAILURES[name])
    expected, got = both(tmp_path, f"{name}.py")
    assert_same(expected, got)
    assert "torch_bottleneck" not in got.err


@from_the_start
def test_tracebacks_of_a_module_are_python_s(tmp_path: Path) -> None:
    write(tmp_path / "fails.py", "def f():\n    1 / 0\nf()\n")
    assert_same(*both(tmp_path, "-m", "fails"))


@from_the_start
def test_folders_called_torch_or_bottleneck_beside_the_user_do_not_matter(tmp_path: Path) -> None:
    for name in ("torch", "bottleneck", "msgspec", "pandas"):
        write(tmp_path / name / "__init__.py", "raise SystemExit('the wrong one')")
    write(tmp_path / "typing.py", "raise SystemExit('the wrong one')")
    write(tmp_path / "project/train.py", "import torch; print(torch.__name__, hasattr(torch, 'nn'))")
    expected, got = both(tmp_path, "project/train.py")
    assert expected.out == "torch True\n"
    assert_same(expected, got)


@from_the_start
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="MKL takes no more threads than cores")
def test_what_a_script_sets_before_importing_torch_counts(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import os, sys
        assert "torch" not in sys.modules
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "2"
        import torch
        # One finder of ours stays to notice torch._dynamo, which most scripts never import.
        finders = [f for f in sys.meta_path if type(f).__name__ != "ImportWatch"]
        print(torch.get_num_threads(), type(torch.__spec__.loader).__name__, finders)
        """,
    )
    expected, got = both(tmp_path, "train.py")
    assert expected.out.startswith("2 ")
    # Where finders stand differs only by their addresses.
    assert got.out.split(" at 0x")[0] == expected.out.split(" at 0x")[0]
    assert got.out.count("Finder") == expected.out.count("Finder")


TRAIN = """
import sys, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1); torch.manual_seed(0)
class Squares(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, i):
        x = torch.full((4,), float(i))
        return x, x.sum()
def main(workers, context):
    how = dict(num_workers=workers, multiprocessing_context=context) if workers else {}
    loader = DataLoader(Squares(), batch_size=8, shuffle=True, **how)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for epoch in range(1 if context in ("spawn", "forkserver") else 2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = ((model(x)[:, 0] - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            print(epoch, loss.item())
    print([p.tolist() for p in model.parameters()], repr(loader.dataset)[:20])
if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.parametrize(
    ("workers", "context"),
    [("0", "-"), ("2", "fork"), ("1", "spawn"), ("1", "forkserver")],
)
def test_a_whole_training_gives_the_same_numbers(tmp_path: Path, workers: str, context: str) -> None:
    write(tmp_path / "train.py", TRAIN)
    expected = plain(tmp_path, "train.py", workers, context)
    got = harness(tmp_path, tmp_path / "out", "train.py", workers, context, run_to_end=True)
    assert expected.code == 0, expected.err
    assert_same(expected, got)


@from_the_start
def test_what_a_script_leaves_open_is_flushed_when_it_ends_after_all_windows(tmp_path: Path) -> None:
    """The samples of its stack kept its globals alive, with a file in them, until after the interpreter."""
    write(
        tmp_path / "train.py",
        """
        import sys, torch
        log = open("log.txt", "w")
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        for step in range(400):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            log.write(f"{step}\\n")
        sys.exit(5)
        """,
    )
    got = harness(tmp_path, tmp_path / "out", "train.py", run_to_end=True)
    assert got.code == 5, got.err
    assert read_run(got.folder).artefacts["stacks"].status == "ok"
    assert (tmp_path / "log.txt").read_text().split() == [str(step) for step in range(400)]


def test_processes_of_the_script_s_own_are_as_they_would_be(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import multiprocessing, sys, time
        def work(queue, x):
            queue.put((x, multiprocessing.current_process().name))
        def fails():
            raise SystemExit(7)
        def waits():
            time.sleep(60)
        if __name__ == "__main__":
            import torch  # not in what is spawned: each would take seconds for it
            for method in ("fork", "spawn"):
                context = multiprocessing.get_context(method)
                queue = context.Queue()
                process = context.Process(target=work, args=(queue, 3), name="helper")
                process.start(); print(queue.get()); process.join(); print(process.exitcode)
                process = context.Process(target=fails); process.start(); process.join()
                print(process.exitcode)
                process = context.Process(target=waits); process.start(); time.sleep(0.3)
                process.terminate(); process.join(); print(process.exitcode)
            with multiprocessing.Pool(1) as pool:
                print(pool.map(abs, [-1, -2]))
        """,
    )
    expected, got = both(tmp_path, "train.py")
    assert "-15" in expected.out
    assert_same(expected, got)


def test_a_daemon_that_imports_torch_trains_on_when_its_run_folder_is_gone(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import os, time
        if os.fork():
            os._exit(0)
        while os.path.isdir(".run.partial"):
            time.sleep(0.05)
        import torch
        try:
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(200):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            said = "trained to its end"
        except BaseException as error:
            said = repr(error)
        open("said", "w").write(said)
        """,
    )
    done = diagnose(tmp_path, "train.py")
    assert "No training step was seen" in done.out
    assert (tmp_path / "said").read_text() == "trained to its end"


def test_a_script_may_clear_the_folder_that_runs_go_to(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import shutil, torch
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(120):
            if step == 3:
                shutil.rmtree("out", ignore_errors=True)
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        print(sum(p.sum().item() for p in model.parameters()) < 0)
        """,
    )
    expected = plain(tmp_path, "train.py")
    got = harness(tmp_path, tmp_path / "out", "train.py", run_to_end=True)
    assert_same(expected, got)
    found = read_run(got.folder)
    assert found.artefacts["trace"].status == "ok"
    assert {window.name for window in found.windows} >= {"warm-up", "baseline", "trace", "after"}


def test_a_start_method_may_be_set_after_loaders_are_built(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import torch, multiprocessing
        from torch.utils.data import DataLoader
        if __name__ == "__main__":
            loader = DataLoader([1, 2, 3], num_workers=1)
            torch.multiprocessing.set_start_method("fork")
            print([int(x) for x in loader])
        """,
    )
    expected, got = both(tmp_path, "train.py")
    assert expected.code == 0
    assert_same(expected, got)


@from_the_start
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_before_any_training_act_as_on_python(tmp_path: Path, number: int) -> None:
    write(tmp_path / "train.py", "import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    command = harness_command(tmp_path / "out", "train.py")
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        time.sleep(0.1)
        process.send_signal(number)
        _, err = process.communicate(timeout=600)
    if number == signal.SIGINT:
        assert process.returncode == -signal.SIGINT
        assert err.endswith("KeyboardInterrupt\n")
        assert "harness" not in err
    else:
        assert process.returncode == 128 + signal.SIGTERM


def test_the_whole_command_leaves_stdout_to_the_script_while_it_runs(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAIN)
    expected = plain(tmp_path, "train.py", "0", "-")
    got = run(command_line("--run-to-end", "--out", "run", "train.py", "0", "-"), tmp_path)
    assert got.out.startswith(expected.out)
    assert len(got.out) > len(expected.out), "our report follows"


def test_a_child_that_is_ended_as_soon_as_it_is_forked_dies_of_it(tmp_path: Path) -> None:
    """A pool ends workers that have hardly begun, and waits for them without a limit."""
    write(
        tmp_path / "train.py",
        """
        import multiprocessing, os, signal, time
        ends = []
        for _ in range(40):
            pid = os.fork()
            if pid == 0:
                time.sleep(1)
                os._exit(7)
            os.kill(pid, signal.SIGTERM)
            ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(set(ends))
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1,))
        process.start(); process.terminate(); process.join(); print(process.exitcode)
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        """,
    )
    expected, got = both(tmp_path, "train.py")
    assert expected.out == "{-15}\n-15\nset()\n"
    assert_same(expected, got)
