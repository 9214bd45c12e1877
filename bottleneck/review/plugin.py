"""The Diagnosis tab of TensorBoard.

In: a log folder with pages that `review` or `diagnose` left in it. Out: a dynamic plugin that serves
them, the adapted traces beside them, and the page that draws both.

TensorBoard imports this module when it starts and dies where that raises, so nothing is imported here
but the standard library and TensorBoard's own base class; anything that can fail is tried when a page
asks for it. The texts were made ready when the folder was: nothing is computed here.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboard.plugins import base_plugin

from . import stock

logger = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
_PAGE = "bottleneck-page.json"
_FORMAT = 1
_RESCAN_S = 5.0
_DEEPEST = 6
_LONGEST_PAGE_BYTES = 16 * 1024 * 1024
_FILES = {
    "/index.js": ("index.js", "application/javascript"),
    "/trace.js": ("trace.js", "application/javascript"),
    "/page.css": ("page.css", "text/css"),
}


class DiagnosisPlugin(base_plugin.TBPlugin):  # type: ignore[misc]  # TensorBoard has no types
    """Serves the Diagnosis tab, and makes the stock profiler tab work offline."""

    plugin_name = "bottleneck"

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._logdir = str(getattr(context, "logdir", "") or "")
        self._lock = threading.Lock()
        self._pages: dict[str, Path] = {}
        self._scanned = float("-inf")
        stock.serve_offline()

    def is_active(self) -> bool:
        """Return whether any run below the log folder has a page."""
        return bool(self._runs())

    def frontend_metadata(self) -> Any:
        """Describe the tab."""
        return base_plugin.FrontendMetadata(
            es_module_path="/index.js", tab_name="Diagnosis", disable_reload=True
        )

    def get_plugin_apps(self) -> dict[str, Any]:
        """Return the routes below /data/plugin/bottleneck."""
        routes: dict[str, Any] = {route: _route(_static(*file)) for route, file in _FILES.items()}
        routes["/runs"] = _route(self._serve_runs)
        routes["/page"] = _route(self._serve_page)
        routes["/trace"] = _route(self._serve_trace)
        routes["/report.html"] = _route(self._serve_report)
        routes["/viewer.html"] = _route(_serve_viewer)
        routes["/trace_viewer_full.html"] = _route(_serve_catapult)
        routes["/webcomponents.js"] = _route(_serve_polyfill)
        return routes

    def _runs(self) -> dict[str, Path]:
        """Return the pages by run name, looked for anew every few seconds."""
        with self._lock:
            if time.monotonic() - self._scanned > _RESCAN_S:
                self._pages = _find_pages(self._logdir)
                self._scanned = time.monotonic()
            return dict(self._pages)

    def _serve_runs(self, request: Any) -> Any:
        pages = sorted(self._runs().items())
        return _json(
            request,
            {
                "runs": [run for run, _ in pages],
                "viewer": stock.viewer_file() is not None,
                "beside": [_brief(run, _read_page(path)) for run, path in pages] if len(pages) > 1 else [],
            },
        )

    def _page_of(self, request: Any) -> Path | None:
        # Only what the scan has found is ever opened: a name from outside is a key, never a path.
        return self._runs().get(request.args.get("run", ""))

    def _serve_page(self, request: Any) -> Any:
        path = self._page_of(request)
        if path is None:
            return _missing(request, "No such run.")
        page = _read_page(path)
        if page is None:
            return _missing(request, "This page cannot be read. Write the folder again with this version.")
        return _json(request, page | {"report": _report_of(path) is not None})

    def _serve_report(self, request: Any) -> Any:
        path = self._page_of(request)
        report = _report_of(path) if path is not None else None
        if report is None:
            return _missing(request, "This run has no report.html.")
        # Its own policy, in the page, allows none but its own scripts.
        return stock.page_response(report.read_bytes())

    def _serve_trace(self, request: Any) -> Any:
        path = self._page_of(request)
        page = _read_page(path) if path is not None else None
        wanted = request.args.get("file", "")
        files = {str(trace.get("file")) for trace in (page or {}).get("traces", ())}
        if path is None or wanted not in files or os.sep in wanted or not (path.parent / wanted).is_file():
            return _missing(request, "No such trace.")
        content = (path.parent / wanted).read_bytes()
        return _respond(request, content, "application/json", content_encoding="gzip")


def _find_pages(logdir: str) -> dict[str, Path]:
    """Return pages below a local log folder by the name that TensorBoard gives their runs."""
    found: dict[str, Path] = {}
    if not logdir or "://" in logdir:
        return found
    root = os.path.abspath(os.path.expanduser(logdir))  # noqa: PTH100, PTH111 - as TensorBoard does it
    for folder, below, files in os.walk(root, followlinks=True):
        depth = 0 if folder == root else folder[len(root) :].count(os.sep)
        # A folder that is still being written has a name with a dot.
        below[:] = [name for name in below if not name.startswith(".")] if depth < _DEEPEST else []
        if _PAGE in files:
            name = os.path.relpath(folder, root)
            found[Path(folder).name if name == "." else name] = Path(folder) / _PAGE
    return found


def _read_page(path: Path) -> dict[str, Any] | None:
    try:
        # A pipe in its place would be waited for.
        if not path.is_file() or path.stat().st_size > _LONGEST_PAGE_BYTES:
            return None
        page = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return page if isinstance(page, dict) and page.get("format") == _FORMAT else None


def _brief(run: str, page: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the table of all runs shows of one."""
    kept = ("title", "classes", "confidence", "headline", "step_ms", "budget")
    return {"run": run} | {name: (page or {}).get(name) for name in kept}


def _report_of(page: Path) -> Path | None:
    """Return the run's report.html: beside the page, or in the run folder that holds its folder."""
    beside, above = page.parent / "report.html", page.parent.parent / "report.html"
    if beside.is_file():
        return beside
    return above if above.is_file() and (page.parent.parent / "diagnosis.json").is_file() else None


def _route(answer: Callable[[Any], Any]) -> Any:
    """Make a WSGI application of a function; what goes wrong in it is an answer, not a crash."""
    from werkzeug import wrappers

    @wrappers.Request.application
    def application(request: Any) -> Any:
        try:
            return answer(request)
        except OSError as error:
            logger.warning("The Diagnosis tab could not serve %s: %s", request.path, error)
            return _missing(request, f"Cannot read it: {error.strerror or error}.")

    return application


def _respond(request: Any, content: Any, kind: str, **options: Any) -> Any:
    from tensorboard.backend import http_util

    return http_util.Respond(request, content, kind, **options)


def _json(request: Any, value: dict[str, Any]) -> Any:
    return _respond(request, json.dumps(value), "application/json")


def _missing(request: Any, why: str) -> Any:
    return _respond(request, json.dumps({"error": why}), "application/json", code=404)


def _static(name: str, kind: str) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        return _respond(request, (_STATIC / name).read_bytes(), kind)

    return answer


def _serve_viewer(request: Any) -> Any:
    del request
    return stock.page_response((_STATIC / "viewer.html").read_bytes())


def _serve_catapult(request: Any) -> Any:
    file = stock.viewer_file()
    if file is None:
        return _missing(request, "The trace viewer comes with torch-tb-profiler, which is not installed.")
    return stock.page_response(file.read_bytes())


def _serve_polyfill(request: Any) -> Any:
    return _respond(request, stock.polyfill_script(), "application/javascript")
