"""The server for assistants, as the client of the official SDK sees it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp`")
import anyio
from mcp import Client, StdioServerParameters, stdio_client

TRAIN = """
import sys, time
from pathlib import Path
import torch
Path(f"ran-{len(list(Path().glob('ran-*')))}").touch()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("the script's own output")
for step in range(int(sys.argv[1])):
    time.sleep(0.004)
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (tmp_path / "outside.py").write_text("open('ran', 'w')\n")
    (folder / "link.py").symlink_to("../outside.py")
    # What a project may hold, and nobody has asked to run.
    for name in ("click", "msgspec", "torch_bottleneck"):
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    return folder


def talk(project: Path, say: Callable[[Client], Awaitable[None]]) -> None:
    """Start the server as a client does, in a folder that is not the project."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "torch_bottleneck", "mcp", str(project)],
        env={"OMP_NUM_THREADS": "1", "BOTTLENECK_TRIAL_SECONDS": "0"},
        cwd=Path(__file__).parent,
    )

    async def session() -> None:
        async with Client(stdio_client(server)) as client:
            await say(client)

    # A browser's tests, in the same process, keep an event loop on this thread.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(anyio.run, session).result()


def text_of(result: Any) -> str:
    return str(result.content[0].text)


def test_its_tools_are_described_and_answer(project: Path) -> None:
    async def say(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"diagnose", "analyze", "explain", "search_catalog", "verify", "compare"}
        assert all(tool.description for tool in tools.values())
        assert {name for name, tool in tools.items() if not tool.annotations.read_only_hint} == {
            "diagnose",
            "verify",
        }
        assert "ctx" not in str(tools["diagnose"].input_schema)
        page = await client.call_tool("explain", {"code": "BN101"})
        assert text_of(page).startswith("BN101 waiting-for-input")
        assert "FX101" in text_of(await client.call_tool("search_catalog", {"words": "num_workers"}))
        none = await client.call_tool("search_catalog", {"words": "zzz"})
        assert not none.is_error
        assert text_of(none) == "No fix mentions zzz."
        wrong = await client.call_tool("explain", {"code": "BN1O1"})
        assert wrong.is_error
        assert "Did you mean BN101?" in text_of(wrong)
        assert (await client.call_tool("explain", {"code": "--help"})).is_error

    talk(project, say)


def test_what_lies_outside_of_the_folder_is_refused_and_not_run(project: Path) -> None:
    async def say(client: Client) -> None:
        for tool, arguments in (
            ("diagnose", {"script": "../outside.py"}),
            ("diagnose", {"script": str(project.parent / "outside.py")}),
            ("diagnose", {"script": "link.py"}),
            ("verify", {"script": "link.py", "fixes": ["FX101"]}),
            ("verify", {"script": "train.py", "fixes": ["../change.diff"]}),
            ("verify", {"script": "train.py", "run": ".."}),
            ("analyze", {"paths": ["train.py", "/etc/passwd"]}),
            ("compare", {"base": ".", "head": "../../"}),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.is_error, (tool, arguments)
            assert "is outside of the working folder" in text_of(result)

    talk(project, say)
    assert not list(project.parent.rglob("ran*"))


def test_a_script_is_diagnosed_with_progress_and_a_fix_is_verified_only_for_what_is_named(
    project: Path,
) -> None:
    told: list[str] = []

    async def progress(at: float, total: float | None, message: str | None) -> None:
        told.append(str(message))

    async def say(client: Client) -> None:
        wrong = await client.call_tool("diagnose", {"script": "train.py", "args": ["--help"]})
        assert wrong.is_error
        assert "invalid literal for int" in text_of(wrong)
        asked = {"script": "train.py", "args": ["500"], "max_seconds": 3}
        result = await client.call_tool("diagnose", asked, progress_callback=progress)
        assert not result.is_error, text_of(result)
        brief = json.loads(text_of(result))
        assert brief["verdict"] in ("input-bound", "host-bound", "launch-bound")
        assert brief["script"].startswith("train.py")
        run = result.content[1].text.rpartition(": ")[2]
        assert (project / run / "diagnosis.json").is_file()
        again = await client.call_tool("analyze", {"paths": [run]})
        assert json.loads(text_of(again))["verdict"] == brief["verdict"]
        same = await client.call_tool("compare", {"base": run, "head": run})
        assert not same.is_error, text_of(same)
        count = len(list(project.glob("ran-*")))
        for other in ({"args": ["500", "x"]}, {"args": []}, {"script": "click.py", "args": ["500"]}):
            named = {"script": "train.py", "args": ["500"], "run": run, **other}
            refused = await client.call_tool("verify", named)
            assert refused.is_error
            assert "would run, in " in text_of(refused)
        assert len(list(project.glob("ran-*"))) == count

    talk(project, say)
    assert any(text.startswith("baseline window") for text in told)
    assert any(text.startswith("run folder: ") for text in told)


def test_a_call_that_is_cancelled_ends_its_script(project: Path) -> None:
    async def say(client: Client) -> None:
        with anyio.move_on_after(120):
            async with anyio.create_task_group() as group:
                asked = {"script": "train.py", "args": ["1000000"]}
                group.start_soon(client.call_tool, "diagnose", asked)
                while not list(project.glob("ran-*")):
                    await anyio.sleep(0.1)
                group.cancel_scope.cancel()
        # The server goes on.
        assert not (await client.call_tool("explain", {"code": "BN101"})).is_error

    talk(project, say)
    deadline = time.monotonic() + 60
    while (left := processes_of(project)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def processes_of(project: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if (entry / "cwd").resolve() == project:
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


def test_without_the_sdk_one_line_says_what_to_install(bottleneck: Any, tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError('hidden')\n")
    done = bottleneck("mcp", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert "pip install 'torch-bottleneck[mcp]'" in done.stderr
    assert "Traceback" not in done.stderr
