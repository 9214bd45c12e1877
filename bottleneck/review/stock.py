"""Makes the stock PYTORCH_PROFILER tab work without internet.

In: nothing; the plugin's class is looked up when TensorBoard runs. Out: its routes, with the two pages
that ask a CDN for scripts served with ours in their place. Where the plugin is absent, newer, or its
pages no longer ask, everything stays as it is.

Its pages load Google Charts from gstatic.com, without which no view appears, and a web-components
polyfill from cdnjs.com, without which no trace does.
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_OURS = Path(__file__).parent / "static"
_ECHARTS = Path(__file__).parents[1] / "reporters" / "html" / "static" / "echarts.min.js"
CHARTS = "bottleneck_charts.js"
POLYFILL = "bottleneck_webcomponents.js"
_SWAPS: dict[str, tuple[str, str]] = {
    "/index.html": ("https://www.gstatic.com/charts/loader.js", CHARTS),
    "/trace_embedding.html": (
        "https://cdnjs.cloudflare.com/ajax/libs/webcomponentsjs/0.7.24/webcomponents.min.js",
        POLYFILL,
    ),
}
_MARK = "_bottleneck_offline"
# The polyfill runs the scripts of an HTML import from data: addresses.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' data:; style-src 'self'"
    " 'unsafe-inline' data:; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self';"
    " object-src 'none'"
)


def _static_folder() -> Path | None:
    """Return where the stock plugin keeps its pages, or None where it is not installed."""
    try:
        module = importlib.import_module("torch_tb_profiler")
    except Exception:  # noqa: BLE001 - another package's import: whatever it raises, we do without it
        return None
    folder = Path(str(module.__file__)).parent / "static"
    return folder if folder.is_dir() else None


def viewer_file() -> Path | None:
    """Return the trace viewer that the stock plugin ships, or None."""
    folder = _static_folder()
    file = folder / "trace_viewer_full.html" if folder is not None else None
    return file if file is not None and file.is_file() else None


def charts_script() -> bytes:
    """Return ECharts and the stand-in for Google Charts, as one script.

    Raises:
        OSError: the package is incomplete.
    """
    return _ECHARTS.read_bytes() + b"\n;" + (_OURS / "charts.js").read_bytes()


def polyfill_script() -> bytes:
    """Return the web-components polyfill.

    Raises:
        OSError: the package is incomplete.
    """
    return (_OURS / "webcomponents.min.js").read_bytes()


def serve_offline() -> bool:
    """Wrap the routes of the stock plugin's class; return whether that was done.

    Called while TensorBoard makes its plugins: it asks for their routes only when all are made.
    """
    try:
        plugin = importlib.import_module("torch_tb_profiler.plugin").TorchProfilerPlugin
        if getattr(plugin, _MARK, False):
            return True
        routes_of = plugin.get_plugin_apps
        pages, scripts = _patched_pages(), {CHARTS: charts_script(), POLYFILL: polyfill_script()}
        if not pages:
            return False

        def get_plugin_apps(self: Any) -> dict[str, Any]:
            routes = dict(routes_of(self))
            for route, page in pages.items():
                if route in routes:
                    routes[route] = _serve(page, "text/html")
            for name, script in scripts.items():
                routes.setdefault(f"/{name}", _serve(script, "application/javascript"))
            return routes

        plugin.get_plugin_apps = get_plugin_apps
        setattr(plugin, _MARK, True)
    except Exception as error:  # noqa: BLE001 - a foreign plugin: TensorBoard must start all the same
        logger.info("The PYTORCH_PROFILER tab stays as it is: %s", error)
        return False
    return True


def _patched_pages() -> dict[str, bytes]:
    """Return the pages in which the expected address was found, with ours in its place."""
    folder = _static_folder()
    if folder is None:
        return {}
    pages: dict[str, bytes] = {}
    for route, (address, name) in _SWAPS.items():
        page = (folder / route.lstrip("/")).read_bytes()
        if page.count(address.encode()) == 1:
            pages[route] = page.replace(address.encode(), name.encode())
    return pages


def page_response(page: bytes) -> Any:
    """Make a response of a page that consists of inline scripts: it may load and ask this server only."""
    return _response(page, "text/html", [("Content-Security-Policy", _POLICY)])


def _response(content: bytes, kind: str, headers: list[tuple[str, str]]) -> Any:
    from werkzeug import wrappers

    return wrappers.Response(
        content,
        content_type=f"{kind}; charset=utf-8",
        headers=[
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-cache, must-revalidate"),
            *headers,
        ],
    )


def _serve(content: bytes, kind: str) -> Any:
    from werkzeug import wrappers

    @wrappers.Request.application
    def application(request: Any) -> Any:
        del request
        return page_response(content) if kind == "text/html" else _response(content, kind, [])

    return application
