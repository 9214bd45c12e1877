"""What TensorBoard loads: it must not fail, must serve only what it found, and leave others alone."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tensorboard.plugins import base_plugin
from unit.reporters.sample import hostile, sample
from werkzeug.test import Client

from torch_bottleneck.review import stock
from torch_bottleneck.review.logdir import prepare_run
from torch_bottleneck.review.plugin import DiagnosisPlugin


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    prepare_run(sample(), [], tmp_path / "logs" / "first")
    prepare_run(hostile(), [], tmp_path / "logs" / "deep" / "er" / "second")
    return tmp_path / "logs"


@pytest.fixture
def plugin(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> DiagnosisPlugin:
    monkeypatch.setattr(stock, "serve_offline", lambda: False)
    return DiagnosisPlugin(base_plugin.TBContext(logdir=str(logdir)))


def ask(plugin: DiagnosisPlugin, route: str, **query: str) -> tuple[int, Any, str]:
    answer = Client(plugin.get_plugin_apps()[route]).get("/", query_string=query)
    return answer.status_code, answer.get_data(), answer.headers["Content-Type"]


def test_it_imports_nothing_that_may_be_missing() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'pandas', 'msgspec', 'torch_tb_profiler', 'rich', 'click'):\n"
        "    sys.modules[name] = None\n"
        "from torch_bottleneck.review.plugin import DiagnosisPlugin\n"
        "print(DiagnosisPlugin.plugin_name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "bottleneck"), done.stderr


def test_it_is_active_where_there_is_a_diagnosis(plugin: DiagnosisPlugin, tmp_path: Path) -> None:
    assert plugin.is_active()
    assert not DiagnosisPlugin(base_plugin.TBContext(logdir=str(tmp_path / "nothing"))).is_active()
    assert not DiagnosisPlugin(base_plugin.TBContext(logdir="gs://bucket/logs")).is_active()
    assert not DiagnosisPlugin(base_plugin.TBContext()).is_active()


def test_runs_are_named_as_tensorboard_names_them(plugin: DiagnosisPlugin) -> None:
    status, body, _ = ask(plugin, "/runs")
    assert status == 200 and json.loads(body)["runs"] == ["deep/er/second", "first"]


def test_a_run_that_is_still_being_written_does_not_show(plugin: DiagnosisPlugin, logdir: Path) -> None:
    (logdir / "first").rename(logdir / ".first.123.partial")
    assert json.loads(ask(plugin, "/runs")[1])["runs"] == ["deep/er/second"]


def test_a_page_is_served_as_it_was_made(plugin: DiagnosisPlugin, logdir: Path) -> None:
    status, body, kind = ask(plugin, "/page", run="first")
    assert status == 200 and kind.startswith("application/json")
    made = json.loads((logdir / "first" / "bottleneck-page.json").read_text())
    assert json.loads(body) == made | {"report": False}


def test_the_full_report_is_served_where_the_run_has_one(plugin: DiagnosisPlugin, logdir: Path) -> None:
    assert ask(plugin, "/report.html", run="first")[0] == 404
    (logdir / "report.html").write_text("<p>somebody else's</p>")
    assert ask(plugin, "/report.html", run="first")[0] == 404, "no run folder around it"
    (logdir / "diagnosis.json").touch()
    assert ask(plugin, "/report.html", run="first")[1] == b"<p>somebody else's</p>"
    (logdir / "first" / "report.html").write_text("<p>its own</p>")
    assert ask(plugin, "/report.html", run="first")[1] == b"<p>its own</p>"
    assert json.loads(ask(plugin, "/page", run="first")[1])["report"] is True


@pytest.mark.parametrize("run", ["", "nope", "../logs/first", "/etc", "first/../first"])
def test_no_name_from_outside_is_a_path(plugin: DiagnosisPlugin, run: str) -> None:
    assert ask(plugin, "/page", run=run)[0] == 404
    assert ask(plugin, "/trace", run=run, file="rank_0.pt.trace.json.gz")[0] == 404


@pytest.mark.parametrize(
    "file", ["", "../../../etc/passwd", "bottleneck-page.json", "rank_0.pt.trace.json.gz"]
)
def test_only_traces_that_the_page_names_are_served(plugin: DiagnosisPlugin, file: str) -> None:
    assert ask(plugin, "/trace", run="first", file=file)[0] == 404


def test_even_a_page_that_names_other_files_opens_none(plugin: DiagnosisPlugin, logdir: Path) -> None:
    path = logdir / "first" / "bottleneck-page.json"
    page = json.loads(path.read_text())
    path.write_text(json.dumps(page | {"traces": [{"file": "../../../../../../etc/passwd"}]}))
    assert ask(plugin, "/trace", run="first", file="../../../../../../etc/passwd")[0] == 404


def test_a_page_of_another_format_or_broken_is_an_answer(plugin: DiagnosisPlugin, logdir: Path) -> None:
    path = logdir / "first" / "bottleneck-page.json"
    for text in ('{"format": 99}', "{", "[]"):
        path.write_text(text)
        status, body, _ = ask(plugin, "/page", run="first")
        assert status == 404 and "cannot be read" in json.loads(body)["error"]
    path.unlink()
    assert ask(plugin, "/page", run="first")[0] == 404


def test_scripts_and_styles_come_from_the_package(plugin: DiagnosisPlugin) -> None:
    for route in ("/index.js", "/trace.js", "/page.css", "/viewer.html", "/webcomponents.js"):
        status, body, _ = ask(plugin, route)
        assert status == 200 and len(body) > 500, route
    assert b"https://" not in ask(plugin, "/viewer.html")[1]


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> types.ModuleType:
    """A stand-in for the stock plugin, as a package on disk."""
    folder = tmp_path / "torch_tb_profiler"
    (folder / "static").mkdir(parents=True)
    (folder / "__init__.py").touch()
    package = types.ModuleType("torch_tb_profiler")
    package.__file__ = str(folder / "__init__.py")
    module = types.ModuleType("torch_tb_profiler.plugin")

    class TorchProfilerPlugin:
        def get_plugin_apps(self) -> dict[str, Any]:
            return {"/index.html": "its own", "/trace_embedding.html": "its own", "/runs": "its own"}

    module.TorchProfilerPlugin = TorchProfilerPlugin  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_tb_profiler", package)
    monkeypatch.setitem(sys.modules, "torch_tb_profiler.plugin", module)
    return module


def pages(module: types.ModuleType, index: str, trace: str) -> dict[str, Any]:
    static = Path(str(sys.modules["torch_tb_profiler"].__file__)).parent / "static"
    (static / "index.html").write_text(index)
    (static / "trace_embedding.html").write_text(trace)
    stock.serve_offline()
    routes: dict[str, Any] = module.TorchProfilerPlugin().get_plugin_apps()
    return routes


GOOGLE = '<script src="https://www.gstatic.com/charts/loader.js"></script>'
CDN = '<script src="https://cdnjs.cloudflare.com/ajax/libs/webcomponentsjs/0.7.24/webcomponents.min.js"></script>'


def test_the_stock_pages_ask_this_server_in_place_of_the_internet(profiler: types.ModuleType) -> None:
    routes = pages(profiler, GOOGLE, CDN)
    for route, name in (("/index.html", stock.CHARTS), ("/trace_embedding.html", stock.POLYFILL)):
        page = Client(routes[route]).get("/")
        assert page.get_data(as_text=True) == f'<script src="{name}"></script>'
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
        script = Client(routes[f"/{name}"]).get("/")
        assert script.status_code == 200 and len(script.get_data()) > 100_000
    assert routes["/runs"] == "its own"


def test_a_newer_plugin_without_those_addresses_stays_as_it_is(profiler: types.ModuleType) -> None:
    routes = pages(profiler, "<p>all local now</p>", "<p>here too</p>")
    assert routes == {"/index.html": "its own", "/trace_embedding.html": "its own", "/runs": "its own"}


def test_one_page_can_change_without_the_other(profiler: types.ModuleType) -> None:
    routes = pages(profiler, GOOGLE, "<p>new</p>")
    assert routes["/index.html"] != "its own" and routes["/trace_embedding.html"] == "its own"


def test_a_plugin_that_is_absent_or_broken_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, logdir: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch_tb_profiler", None)
    monkeypatch.setitem(sys.modules, "torch_tb_profiler.plugin", None)
    assert stock.serve_offline() is False and stock.viewer_file() is None
    made = DiagnosisPlugin(base_plugin.TBContext(logdir=str(logdir)))
    assert json.loads(ask(made, "/runs")[1])["viewer"] is False
    status, body, _ = ask(made, "/trace_viewer_full.html")
    assert status == 404 and "torch-tb-profiler" in json.loads(body)["error"]
    broken = types.ModuleType("torch_tb_profiler.plugin")
    monkeypatch.setitem(sys.modules, "torch_tb_profiler.plugin", broken)
    assert stock.serve_offline() is False


def test_every_third_party_file_has_its_licence_beside() -> None:
    static = Path(stock.__file__).parent / "static"
    assert "Redistribution and use" in (static / "webcomponents.LICENSE").read_text()
    assert (static / "webcomponents.min.js").read_text().startswith("/**\n * @license")
