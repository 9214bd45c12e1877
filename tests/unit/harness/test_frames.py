"""The stack of another thread is read in one piece, and leaves nothing behind."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from torch_bottleneck.harness.lines.frames import stack_of, threads
from torch_bottleneck.harness.lines.sites import is_library


class Waiting:
    """A thread that stands in `inner`, called by `outer`."""

    def __init__(self) -> None:
        self.reached, self.leave = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.outer)

    def outer(self) -> None:
        self.inner()

    def inner(self) -> None:
        self.reached.set()
        self.leave.wait()

    def __enter__(self) -> int:
        self.thread.start()
        self.reached.wait()
        assert self.thread.ident is not None
        return self.thread.ident

    def __exit__(self, *_: object) -> None:
        self.leave.set()
        self.thread.join()


def _names(thread: int) -> list[str]:
    return [frame.code.co_name for frame in stack_of(thread)]


def test_the_frames_of_another_thread_innermost_first() -> None:
    with Waiting() as thread:
        names = _names(thread)
        assert names[names.index("inner") : names.index("inner") + 2] == ["inner", "outer"]
        assert thread in threads()
        frame = next(frame for frame in stack_of(thread) if frame.code.co_name == "inner")
        assert (frame.file, frame.namespace["__name__"]) == (__file__, __name__)
        assert frame.line == Waiting.inner.__code__.co_firstlineno + 2
    assert stack_of(thread) == []
    assert thread not in threads()


def test_the_same_frames_as_python_tells() -> None:
    expected, frame = [], sys._getframe()
    while frame is not None:
        expected.append((frame.f_code, frame.f_globals))
        frame = frame.f_back  # type: ignore[assignment]
    got = stack_of(threading.get_ident())
    got = got[next(i for i, item in enumerate(got) if item.code is expected[0][0]) :]
    assert [(item.code, item.namespace) for item in got] == expected


def test_no_frame_and_no_local_variable_outlives_its_function() -> None:
    class Thing:
        pass

    def holds() -> weakref.ref[Thing]:
        thing = Thing()
        stack_of(threading.get_ident())
        return weakref.ref(thing)

    gc.disable()
    try:
        assert holds()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("on", [True, False])
def test_garbage_collection_is_as_before(on: bool) -> None:
    (gc.enable if on else gc.disable)()
    try:
        stack_of(threading.get_ident())
        assert gc.isenabled() is on
        assert stack_of(-1) == []
        assert gc.isenabled() is on
    finally:
        gc.enable()


def test_code_that_inductor_has_written_is_no_line_of_the_user_s() -> None:
    assert is_library("/tmp/torchinductor_me/k5/ck5abtvh.py")
    assert not is_library("/home/me/torchinductor.py")
