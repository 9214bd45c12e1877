"""The tools that an assistant may call: each is the command of that name, run in one folder.

In: the folder. Out: a server of the official SDK. A tool starts the command as a process of its own and
answers what it prints; what the command says while it runs becomes progress. Nothing is read outside of the
folder, and no script runs but the one that the call names.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import Process
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from ... import __version__
from ...catalog.registry import is_fix_id
from ...clocks import monotonic
from ...errors import BottleneckError
from ...runs.place import free_folder
from ...verify.source import find_source

_COMMAND = "import sys; sys.path[:] = filter(None, sys.path); from {} import main; main()"
"""Without the folder on the path: a file in it that is called like a module would run."""
_OURS = "bottleneck: "
_TAIL_LINES = 30
_SECONDS_TO_END = 10.0


def make_server(root: Path) -> MCPServer:
    """Return a server whose tools work in `root`, a resolved path."""
    server = MCPServer("bottleneck", version=__version__, log_level="WARNING", instructions=_INSTRUCTIONS)
    tools = _Tools(root)
    runs = ToolAnnotations(read_only_hint=False, open_world_hint=True)
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in (tools.diagnose, tools.verify):
        server.add_tool(tool, annotations=runs, structured_output=False)
    for reader in (tools.analyze, tools.compare, tools.explain, tools.search_catalog):
        server.add_tool(reader, annotations=reads, structured_output=False)
    return server


_INSTRUCTIONS = """\
Why is this PyTorch training slow? Call `diagnose` with a training script, or `analyze` with profiler traces:
the answer is JSON with the verdict, what each cause costs per step, the lines, and the first fixes with code.
`explain` tells what a code of a report means. Prove a fix with `verify` before you recommend it."""


@dataclass(slots=True)
class _Said:
    """What a command has left: its exit code, its report, and the last of what it said."""

    code: int = 0
    report: bytearray = field(default_factory=bytearray)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))

    def answer(self, *fine: int) -> str:
        """Return the report; a command that ended otherwise is an error that says why."""
        if self.code not in (0, *fine):
            raise ToolError("\n".join(self.lines) or f"bottleneck ended with exit code {self.code}.")
        return self.report.decode(errors="replace") or "\n".join(self.lines)


class _Tools:
    """The tools; docstrings are what the assistant reads."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def diagnose(
        self,
        script: str,
        *,
        ctx: Context,
        args: list[str] | None = None,
        max_seconds: float | None = None,
        run_to_end: bool = False,
    ) -> list[str]:
        """Run a training script and say what its step waits on, with prices, lines and fixes.

        JSON, times in ms. It takes a minute or more; the script is stopped once enough is measured.

        Args:
            script: path of the script, from the working folder.
            args: the script's own arguments.
            max_seconds: limit on the measured windows, after warm-up.
            run_to_end: let the script run to its end.
        """
        script = self._inside(script)
        out = self._inside(free_folder(Path(script).stem, root=self.root))
        words = ["diagnose", f"--out={out}", *(["--run-to-end"] if run_to_end else [])]
        if max_seconds is not None:
            words.append(f"--max-seconds={max_seconds}")
        ran = await self._run([*words, script, *_own(args)], ctx, quiet=True)
        if not (self.root / out / "diagnosis.json").is_file():
            raise ToolError("\n".join(ran.lines) or f"Nothing was measured (exit code {ran.code}).")
        brief = await self._run(["report", "--format=brief", out], ctx)
        ended = f"The script ended with exit code {ran.code}.\n" if ran.code not in (0, 3) else ""
        return [brief.answer(), f"{ended}Run folder, for verify and compare: {out}"]

    async def analyze(self, paths: list[str], ctx: Context, true_step_ms: float | None = None) -> str:
        """Diagnose what is on disk: run folders or profiler traces; several traces are ranks of one job.

        Args:
            paths: from the working folder.
            true_step_ms: step time without a profiler, which a bare trace does not hold.
        """
        if not paths:
            raise ToolError("Name at least one path.")
        given = [] if true_step_ms is None else [f"--true-step-ms={true_step_ms}"]
        places = [self._inside(path) for path in paths]
        return (await self._run(["analyze", "--format=brief", *given, "--", *places], ctx)).answer(3)

    async def verify(
        self,
        script: str,
        *,
        ctx: Context,
        fixes: list[str] | None = None,
        args: list[str] | None = None,
        run: str | None = None,
        budget_minutes: float = 10.0,
    ) -> str:
        """Run a script with and without fixes, in turns: measured gain, loss and memory. It takes minutes.

        Args:
            script: path of the script, from the working folder.
            fixes: ids with their options, as ID:num_workers=8, or a file with a diff, to measure an edit of
                your own; without any, those that `run` suggests.
            args: the script's own arguments.
            run: run folder of `diagnose` for the same script and arguments: its predictions stand beside.
            budget_minutes: time for all of it.
        """
        script = self._inside(script)
        words = [
            "verify",
            "--format=md",
            f"--budget={budget_minutes}",
            *(f"--fix={fix if is_fix_id(fix) else self._inside(fix)}" for fix in fixes or []),
        ]
        if run is None:
            what = [script, *_own(args)]
        else:
            run = self._inside(run)
            self._expect(run, script, args or [])
            what = ["--yes", run]
        return (await self._run([*words, *what], ctx)).answer()

    async def compare(self, base: str, head: str, ctx: Context) -> str:
        """Compare two runs: which counters grew, whether the step got slower, and why.

        Args:
            base: run folder, diagnosis.json or baseline, from the working folder.
            head: the other one.
        """
        words = ["compare", "--format=md", "--", self._inside(base), self._inside(head)]
        return (await self._run(words, ctx)).answer(1, 3)

    async def explain(self, code: str, ctx: Context) -> str:
        """Explain the code of a finding or a fix, or a class (input-bound): how it is measured."""
        return (await self._run(["explain", "--", code], ctx)).answer()

    async def search_catalog(self, words: str, ctx: Context) -> str:
        """List the fixes that mention every one of the words."""
        if not words.split():
            raise ToolError("Give at least one word.")
        return (await self._run(["catalog", "search", "--", *words.split()], ctx)).answer(1)

    # -- what is allowed -----------------------------------------------------------------------

    def _inside(self, name: str) -> str:
        """Return the path from the working folder; one that leads out of it is refused."""
        try:
            place = (self.root / name).resolve().relative_to(self.root)
        except (ValueError, OSError):
            raise ToolError(f"{name!r} is outside of the working folder {self.root}.") from None
        return f"./{place}" if str(place).startswith("-") else str(place)

    def _expect(self, run: str, script: str, args: list[str]) -> None:
        """Refuse a run folder that would start anything but what the call names."""
        try:
            target = find_source(None, (str(self.root / run),), launcher=()).target
        except BottleneckError as error:
            raise ToolError(str(error)) from None
        there = target.cwd or self.root
        same = target.script is not None and (there / target.script).resolve() == self.root / script
        if not same or list(target.args) != args or target.launcher or not there.is_relative_to(self.root):
            what = shlex.join([*target.launcher, target.name, *target.args])
            raise ToolError(
                f"{run} would run, in {there}: {what}. The call must name the same script and args."
            )

    # -- the command ---------------------------------------------------------------------------

    async def _run(self, words: list[str], ctx: Context, *, quiet: bool = False) -> _Said:
        """Run one command to its end; where the call is cancelled, the command and its script end, too."""
        said, began = _Said(), monotonic()
        code = _COMMAND.format(__name__.rpartition(".mcp.")[0] + ".main")
        process = await anyio.open_process(
            [sys.executable, "-c", code, *words],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
        )
        try:
            async with anyio.create_task_group() as group:
                if process.stdout is not None:
                    group.start_soon(_read_report, process, said)
                async for line in _lines(process):
                    said.lines.append(line)
                    if line.startswith(_OURS):
                        await ctx.report_progress(monotonic() - began, message=line.removeprefix(_OURS))
            said.code = await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
        return said


def _own(args: list[str] | None) -> list[str]:
    """Return the script's arguments, behind a mark: none of them is an option of ours."""
    return ["--", *args] if args else []


async def _read_report(process: Process, said: _Said) -> None:
    assert process.stdout is not None
    async for data in process.stdout:
        said.report += data


async def _lines(process: Process) -> AsyncIterator[str]:
    assert process.stderr is not None
    rest = b""
    async for data in process.stderr:
        *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if line.strip():
                yield line.decode(errors="replace")
    if rest.strip():
        yield rest.decode(errors="replace")


async def _end(process: Process) -> None:
    if process.returncode is None:
        # The command hands it on to the script.
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(_SECONDS_TO_END):
            await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.aclose()
