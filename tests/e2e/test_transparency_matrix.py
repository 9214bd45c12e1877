"""Whatever a script does, it does the same under the tool: situation x (plain, diagnose, --run-to-end).

One table. Each row is a small training that does something unusual on its way and tells what it sees in
lines that begin with "| ": what its children's statuses are, which handlers are in place, the final loss and
what the random generators give next. With `--run-to-end` these lines, the files and the exit code are those
of plain python. Without it the script is stopped on its way: its lines are a beginning of plain python's.
"""

from __future__ import annotations

import os
import subprocess
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import forked
import pytest
from e2e.running import PYTHON, Result, environment

START = """
import os, random, sys, threading, time
def say(*words):
    print("|", *words, flush=True)
"""
TRAINING = """
import torch
torch.set_num_threads(1); torch.manual_seed(0); random.seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""
LOOP = """
for i in range(STEPS):
    loss = step()
    if i % 10 == 0: say(i, loss)
    each(i)
"""
END = """
say("ended", loss, random.random(), torch.rand(1).item(), [p.sum().item() for p in model.parameters()])
"""
STEPS = 900
"""Enough for every window; the situations come at steps of the warm-up, of the windows, and after them."""
WORDS = ("-q", "--warmup", "4", "--steps", "3", "--max-seconds", "0.3", "--trial-seconds", "0")


@dataclass(frozen=True)
class Situation:
    """One row of the table."""

    before: str = ""
    """Runs before torch is imported."""
    each: str = ""
    """Runs after each step `i`."""
    after: str = ""
    """Runs after the training."""
    loop: str = LOOP
    variables: dict[str, str] = field(default_factory=dict)
    name: bytes = b"train.py"
    code: int = 0
    """Exit code of plain python, as subprocess gives it."""
    stopped: int | None = None
    """Exit code of diagnose; None: 0 or 3, as the script is stopped before its end."""
    new: bool = False
    """Needs an interpreter of its own."""


FORKS = """
import multiprocessing, pty, signal, subprocess
def wait(what, pid, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return say(what, os.waitstatus_to_exitcode(status))
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
    say(what, "never ended")
def fork(what, child):
    pid = os.fork()
    if pid == 0:
        child()
    wait(what, pid)
def train(code):
    for _ in range(5):
        step()
    threading.Thread(target=step).start()
    sys.exit(code)
def ignoring(code):
    signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), code)
def in_thread(code):
    def body():
        fork("from a thread", lambda: (step(), os._exit(code)))
    thread = threading.Thread(target=body); thread.start(); thread.join()
def daemon():
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            step(); os.write(writer, b"trained"); sys.exit(0)
        sys.exit(2)
    wait("first fork", pid)
    os.close(writer)
    say("daemon", os.read(reader, 99), os.read(reader, 9)); os.close(reader)
def terminal():
    pid, end = pty.fork()
    if pid == 0:
        print("in a terminal", flush=True); step(); sys.exit(6)
    said = b""
    while True:
        try: part = os.read(end, 99)
        except OSError: break
        if not part: break
        said += part
    say(said); os.close(end); wait("pty", pid)
def work(code):
    step(); raise SystemExit(code)
def helpers():
    context = multiprocessing.get_context("fork")
    process = context.Process(target=work, args=(9,)); process.start(); process.join(60)
    say("multiprocessing", process.exitcode)
    with context.Pool(2) as pool:
        say(pool.map(abs, [-1, -2]))
    def before_exec(): os.umask(0o22)
    said = subprocess.run([sys.executable, "-c", "print(7)"], preexec_fn=before_exec, capture_output=True)
    say("preexec_fn", said.returncode, said.stdout)
def situations(i):
    if i in (8, 896):
        fork("exits", lambda: sys.exit(0))
    if i == 12:
        fork("trains", lambda: train(3)); fork("text", lambda: sys.exit("why")); in_thread(4); terminal()
        fork("leaves", lambda: os._exit(5)); fork("signal", lambda: ignoring(15))
    if i == 594:
        daemon(); helpers()
    if i % 40 == 1:
        fork("trains and leaves", lambda: (step(), os._exit(4)))
"""

TABLE: dict[str, Situation] = {
    "nothing unusual": Situation(),
    "forks of every kind, in every window": Situation(before=FORKS, each="situations(i)", new=True),
    "clocks that stand still, and no sleep": Situation(
        before="""
        real = {name: getattr(time, name) for name in (
            "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns", "sleep")}
        def each(i):
            if i != 1:
                return
            # As freezegun does: wherever somebody holds a clock.
            for name, clock in real.items():
                fake = None if name == "sleep" else (lambda now: lambda: now)(clock())
                for module in list(sys.modules.values()):
                    for key, value in list(getattr(module, "__dict__", {}).items()):
                        if value is clock and key != "real":
                            setattr(module, key, fake)
        """,
        after="say(time.sleep is None, time.perf_counter() == time.perf_counter(), threading.active_count())",
    ),
    "a name that is not UTF-8, in such a folder, with line breaks": Situation(
        before="say(ascii(sys.argv), ascii(__file__), ascii(sys.path[0]))",
        name=b"f\xfe\nolder/tr\xff\nain\x1b[31m.py",
        variables={"PYTHONWARNINGS": "ignore"},
        new=True,
    ),
    "hooks and limits of the interpreter": Situation(
        before="""
        import faulthandler, gc, warnings, tracemalloc, atexit, resource
        warnings.simplefilter("error"); gc.disable(); sys.setrecursionlimit(400); tracemalloc.start()
        sys.setswitchinterval(0.001)
        def trace(*_): return None
        sys.settrace(trace); sys.setprofile(trace); threading.setprofile(trace)
        def hook(*error): say("hook", error[0].__name__)
        sys.excepthook = threading.excepthook = sys.unraisablehook = hook
        atexit.register(lambda: say("at exit", sys.getswitchinterval(), gc.isenabled(), gc.callbacks))
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        """,
        after="""
        say(sys.gettrace() is trace, sys.getprofile() is trace, sys.getrecursionlimit())
        say(sys.excepthook is hook, sys.unraisablehook is hook, tracemalloc.is_tracing(), gc.isenabled())
        """,
    ),
    "habits of torch code": Situation(
        before="""
        def each(i):
            global saved
            if i == 3:
                torch.set_default_dtype(torch.float64); model.double()
            if i == 5:
                plain = optimizer.step
                optimizer.step = lambda *a, **k: plain(*a, **k)
                torch.nn.Linear.__call__ = lambda self, *a: torch.nn.Module.__call__(self, *a)
            if i == 20:
                with torch.inference_mode(): model(torch.randn(8, 16))
                with torch.autograd.set_detect_anomaly(True): step()
                with torch.device("meta"): say(torch.empty(3).device)
                try:
                    model(torch.randn(8, 15))
                except RuntimeError as error: say(type(error).__name__)
                class Bad(torch.autograd.Function):
                    forward = staticmethod(lambda ctx, x: x * 2)
                    @staticmethod
                    def backward(ctx, g): raise KeyError("mine")
                try: Bad.apply(torch.ones(2, requires_grad=True)).sum().backward()
                except KeyError as error: say(error)
            if i == 30:
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own: step()
                say(any(e.key == "aten::mm" or e.key == "aten::addmm" for e in own.key_averages()))
            if i == 595:
                import copy, io, pickle
                file = io.BytesIO(); torch.save({"m": model.state_dict(), "o": optimizer.state_dict()}, file)
                say(len(pickle.dumps(torch.nn.Linear(2, 2))), copy.deepcopy(model)(torch.ones(1, 16)).item())
                say(torch.nn.Module.__call__.__name__, len(torch.overrides.get_overridable_functions()) > 9)
        """,
    ),
    "streams": Situation(
        before="""
        import io, contextlib
        say(repr(sys.stdin.read(3)))
        def each(i):
            if i == 2:
                sys.stdout.write("x" * 1_000_000 + "\\n"); sys.stderr.write("to stderr\\n")
            if i == 8:
                kept = os.dup(2); os.close(2); os.dup2(kept, 2); os.close(kept)
            if i == 20:
                with contextlib.redirect_stdout(io.StringIO()) as caught: print("caught")
                say(caught.getvalue())
            if i == 25:
                sys.stderr.close(); sys.stderr = None; sys.__stderr__ = None
            if i == 30:
                sys.stdout.reconfigure(line_buffering=False, errors="replace")
            if i == 595:
                os.write(1, b"| raw\\n"); say(sys.stdin.read(), sys.stderr)
        """,
    ),
    "folders and variables": Situation(
        before="""
        import tempfile, shutil
        open("beside.txt", "w").write("b"); os.umask(0o77)
        def each(i):
            if i == 2:
                os.mkdir("sub"); os.chdir("sub"); os.environ["HOME"] = "/nowhere"; del os.environ["PATH"]
            if i == 6:
                os.rmdir(os.getcwd())
            if i == 25:
                os.environ["TMPDIR"] = tempfile.tempdir = "/nowhere"; os.environ["LANG"] = "xx"
            if i == 896:
                os.chdir(HERE); torch.save(model.state_dict(), "last.pt"); open("log.txt", "a").close()
                say(oct(os.stat("log.txt").st_mode), sorted(os.listdir("."))[:2], os.environ["HOME"])
        HERE = os.getcwd()
        """,
        variables={"HOME": "", "TMPDIR": "", "COLUMNS": "0", "TERM": "dumb"},
    ),
    "signals": Situation(
        before="""
        import signal
        got = []
        for name in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGALRM", "SIGVTALRM", "SIGWINCH", "SIGCONT"):
            signal.signal(getattr(signal, name), lambda number, frame: got.append(number))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.01, 0.01)
        def each(i):
            if i % 100 == 3:
                for name in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGALRM", "SIGWINCH", "SIGCONT"):
                    os.kill(os.getpid(), getattr(signal, name))
                say({n for n in got if n in (1, 10, 12, 14, 28, 18)})
            if i == 896:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                signal.pthread_sigmask(signal.SIG_BLOCK, [10]); os.kill(os.getpid(), 10)
                say(signal.sigwait([signal.SIGUSR1]))
        """,
    ),
    "asyncio": Situation(
        loop="""
        import asyncio
        async def ticks(seen):
            while True:
                await asyncio.sleep(0); seen.append(1)
        async def main():
            global loss
            seen, loop = [], asyncio.get_running_loop()
            task = asyncio.create_task(ticks(seen))
            for i in range(STEPS):
                loss = await loop.run_in_executor(None, step) if i == 890 else step()
                say(i, loss) if i % 10 == 0 else None; await asyncio.sleep(0)
            task.cancel(); say(len(seen) >= STEPS)
        asyncio.run(main())
        """,
    ),
    "threads": Situation(
        loop="""
        import queue
        from concurrent.futures import ThreadPoolExecutor
        answers, stop = queue.Queue(), threading.Event()
        def spin():
            while not stop.is_set(): sum(range(100)); time.sleep(0.0005)
        def body():
            global loss
            for i in range(STEPS):
                loss = step(); say(i, loss) if i % 10 == 0 else None
                if i == 40: ThreadPoolExecutor(2).submit(lambda: torch.ones(3).sum()).result()
            answers.put(loss)
        for _ in range(3): threading.Thread(target=spin, daemon=True).start()
        trainer = threading.Thread(target=body, name="trainer"); trainer.start(); trainer.join(); stop.set()
        say("answer", answers.get(timeout=60) if not answers.empty() else None)
        """,
    ),
    "scripts inside scripts": Situation(
        before="""
        import runpy, subprocess, cProfile
        open("inner.py", "w").write("import sys; print('| inner', __name__, sys.argv, flush=True)")
        # A spawned process imports the script that is __main__ once more, so it must be one with a guard.
        open("pooled.py", "w").write(
            "import multiprocessing\\nif __name__ == '__main__':\\n"
            "    with multiprocessing.get_context('spawn').Pool(1) as pool:\\n"
            "        print('| pool', pool.map(abs, [-3]), flush=True)\\n")
        def each(i):
            if i in (3, 30, 896):
                runpy.run_path("inner.py", run_name="__main__")
                exec(compile(open("inner.py").read(), "inner.py", "exec"), {"__name__": "executed"})
                done = subprocess.run([sys.executable, "inner.py", "x"], capture_output=True, text=True)
                say(done.returncode, done.stdout.split("|")[-1].strip(), done.stderr)
            if i in (12, 597):
                runpy.run_path(os.path.abspath("pooled.py"), run_name="__main__")
            if i == 20:
                profile = cProfile.Profile(); profile.runcall(step); say(profile.getstats() != [])
        """,
    ),
    "raises in the middle": Situation(each="if i == 3: raise ValueError('mine')", code=1, stopped=4),
    "recursion without end": Situation(
        before="def deeper(n): return deeper(n + 1)",
        each="if i == 3: deeper(0)",
        code=1,
        stopped=4,
    ),
    "exits by itself": Situation(each="if i == 3: sys.exit(5)", code=5, stopped=5),
    "exits with a text": Situation(each="if i == 3: sys.exit('no data')", code=1, stopped=1),
    "exits beyond a byte": Situation(each="if i == 3: sys.exit(256 + 7)", code=7, stopped=7),
    "leaves without Python's end": Situation(each="if i == 3: os._exit(9)", code=9, stopped=9),
    "killed": Situation(each="if i == 3: os.kill(os.getpid(), 9)", code=-9, stopped=4),
    "exits after training": Situation(after="sys.exit(6)", code=6),
    "terminates itself": Situation(each="if i == 3: os.kill(os.getpid(), 15)", code=-15, stopped=4),
    "becomes another program": Situation(
        each="if i == 3: os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(8)'])",
        code=8,
        stopped=8,
    ),
}


def script_of(row: Situation) -> str:
    each = "" if "def each" in row.before else "def each(i):\n    " + (row.each or "pass")
    parts = (START, f"STEPS = {STEPS}", row.before, each, TRAINING, row.loop, row.after, END)
    if row.loop == LOOP and row.after and row.code:
        parts = (*parts[:6], END, row.after)
    return "\n".join(textwrap.dedent(part) for part in parts)


def run(row: Situation, place: Path, *words: str) -> Result:
    place.mkdir()
    name = os.fsdecode(row.name)
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(script_of(row))
    out = place.parent / f"{place.name} out"
    if words:
        words = ("-m", "torch_bottleneck", "diagnose", *WORDS, "--out", str(out), *words)
    start = subprocess.run if row.new else forked.run
    done = start(
        [PYTHON, *words, name],
        cwd=place,
        input="typed in",
        capture_output=True,
        text=True,
        env=environment(**row.variables),
        timeout=300,
    )
    return Result(done.returncode, done.stdout, done.stderr, out)


def lines(got: Result) -> list[str]:
    return [line for line in got.out.splitlines() if line.startswith("| ")]


def files(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def handed_on(code: int) -> tuple[int, ...]:
    """The exit codes of `--run-to-end` for one of plain python: a verdict may be undetermined."""
    return (code if code > 0 else 128 - code,) if code else (0, 3)


@pytest.mark.parametrize("name", list(TABLE))
def test_a_script_does_the_same_under_the_tool(tmp_path: Path, name: str) -> None:
    row = TABLE[name]
    expected = run(row, tmp_path / "plain")
    assert expected.code == row.code, expected.err
    assert "never ended" not in expected.out
    whole = run(row, tmp_path / "whole", "--run-to-end")
    cut = run(row, tmp_path / "cut", "--with-stack" if name == "nothing unusual" else "--no-memory")

    assert lines(whole) == [line.replace("/plain", "/whole") for line in lines(expected)]
    assert files(tmp_path / "whole") == files(tmp_path / "plain")
    assert whole.code in handed_on(row.code), whole.err
    shown = [line.replace("/plain", "/cut") for line in lines(expected)]
    # What it does while it is stopped (exit functions, `finally`) comes behind the gap.
    rest = iter(shown)
    assert all(line in rest for line in lines(cut)), lines(cut)[-3:]
    assert lines(cut)[:1] == shown[:1]
    # Windows that follow the clock may be longer than a script of so many steps; then its code is its own.
    ended = any(line.startswith("| ended") for line in lines(cut))
    stopped = handed_on(row.code) if ended else (0, 3)
    assert cut.code in (stopped if row.stopped is None else (row.stopped,)), cut.err
    for got in (whole, cut):
        assert "harness" not in got.err
        assert "Exception ignored" not in got.err
        assert (got.folder / "run.json").is_file()
    if not row.each and row.loop == LOOP and not row.before:
        assert len(lines(cut)) < len(shown), "nothing was stopped"
    if row.stopped is None:
        assert (cut.folder / "diagnosis.json").is_file()
