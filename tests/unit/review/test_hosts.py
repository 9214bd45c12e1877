"""Which requests TensorBoard answers to: those that ask for it by a name of its own."""

from __future__ import annotations

import pytest
from werkzeug.test import Client
from werkzeug.wrappers import Response

from torch_bottleneck.review.hosts import only_for


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("localhost", True),
        ("localhost:6006", True),
        ("LOCALHOST.", True),
        ("127.0.0.1:6006", True),
        ("[::1]:6006", True),
        ("my.proxy", True),
        ("my.proxy:443", True),
        ("evil.example", False),
        ("evil.example:6006", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:localhost", False),
        ("[evil.example]:6006", False),
        ("", False),
    ],
)
def test_only_its_own_names_are_answered(host: str, answered: bool) -> None:
    client = Client(only_for(Response("inside"), ["My.Proxy:443"]))
    answer = client.get("/data/plugin/bottleneck/runs", headers={"Host": host})
    assert answer.status_code == (200 if answered else 403)
    assert ("inside" in answer.text) == answered


def test_no_host_at_all_is_refused() -> None:
    environ: dict[str, object] = {}
    said: list[str] = []
    assert b"".join(only_for(Response("inside"), [])(environ, lambda status, _: said.append(status)))
    assert said == ["403 Forbidden"]
