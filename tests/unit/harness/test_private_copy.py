"""A copy of the script's process: it computes on, and what it does reaches neither process nor files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.process import isolation, private_copy
from torch_bottleneck.harness.process.isolation import NotPrivateError, isolate, tell_of_effects
from torch_bottleneck.harness.process.private_copy import OwnPasses, make_copy, wait_for

ENOUGH = 60.0


def in_copy(call: Callable[[], object], *, seconds: float = ENOUGH) -> str:
    """Run it in a copy that is isolated; what it returns, or the name of what it raises, comes back."""
    read, write = os.pipe()
    copy = make_copy()
    if not copy:
        try:
            isolate(keep=write)
            said = str(call())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    why = wait_for(copy, seconds=seconds, unless=lambda: False)
    os.close(write)
    with os.fdopen(read) as pipe:
        return pipe.read() or why


def test_operators_run_on_as_many_threads_as_before() -> None:
    """A fork does not take threads along, and OpenMP would wait for its own for ever."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        matrix = torch.randn(400, 400)
        expected = (matrix @ matrix).exp().sum().item()
        try:
            got = in_copy(lambda: (matrix @ matrix).exp().sum().item())
        except NotPrivateError as error:
            # OpenMP 5.0 can; the library that comes with torch 2.6 is older.
            if torch.__version__.startswith("2.6."):
                pytest.skip(str(error))
            raise
        assert got == str(expected)
        assert in_copy(torch.get_num_threads) == "2"
        assert (matrix @ matrix).exp().sum().item() == expected
    finally:
        torch.set_num_threads(threads)


def test_a_backward_runs_in_a_copy() -> None:
    weight = torch.ones(3, requires_grad=True)

    def backward() -> object:
        (weight * 2).sum().backward()
        return weight.grad.tolist()  # type: ignore[union-attr]

    assert in_copy(backward) == "[2.0, 2.0, 2.0]"
    assert weight.grad is None


def test_files_have_a_position_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(range(200)))
    with path.open("rb", buffering=0) as file:
        file.read(3)
        assert in_copy(lambda: file.read(2)) == "b'\\x03\\x04'"
        assert file.read(1) == b"\x03"


def test_what_is_written_into_open_files_leads_nowhere(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, (tmp_path / "both").open("w+") as both:
        log.write("not yet written\n")
        both.write("one")
        both.flush()

        def writes() -> str:
            log.write("more\n")
            log.flush()
            both.seek(0)
            both.write("two")
            both.seek(0)
            return both.read()

        assert in_copy(writes) == "two"
    assert (tmp_path / "log").read_text() == "not yet written\n"
    assert (tmp_path / "both").read_text() == "one"


def test_pipes_and_shared_memory_are_its_own() -> None:
    read, write = os.pipe()
    number = multiprocessing.Value("i", 1)
    tensor = torch.ones(3).share_memory_()

    def changes() -> str:
        os.write(write, b"lost")
        number.value += 1
        tensor.add_(1)
        return f"{number.value} {tensor.tolist()}"

    assert in_copy(changes) == "2 [2.0, 2.0, 2.0]"
    os.close(write)
    assert os.read(read, 10) == b""
    os.close(read)
    assert number.value == 1 and tensor.tolist() == [1.0] * 3


def test_what_is_too_large_to_copy_stays_shared_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.ones(100_000).share_memory_()
    monkeypatch.setattr(isolation, "MOST_COPIED_BYTES", 100)
    assert in_copy(tensor.sum).startswith("NotPrivateError: the script shares")


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        (lambda path: path.write_text("x"), "writes {} at"),
        (lambda path: path.mkdir(), "os.mkdir {} at"),
        (lambda path: os.close(os.open(path, os.O_WRONLY | os.O_CREAT)), "writes {} at"),
        (lambda path: os.system(f"touch {path}"), "os.system"),
    ],
)
def test_what_changes_the_world_is_told_before_it_happens(
    tmp_path: Path, effect: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "mark"

    class ToldError(Exception):
        pass

    def tell(what: str) -> None:
        raise ToldError(what)

    def tries() -> object:
        tell_of_effects(tell, allowed=tmp_path / "run")
        return effect(path)

    assert in_copy(tries).startswith("ToldError: " + said.format(path))
    assert not path.exists()


def test_reading_and_the_run_folder_are_no_effects(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "data").write_text("data")

    def tries() -> str:
        tell_of_effects(lambda what: os._exit(1), allowed=tmp_path / "run")
        (tmp_path / "run" / "trials.json").write_text("{}")
        Path(os.devnull).write_text("x")
        return (tmp_path / "data").read_text()

    assert in_copy(tries) == "data"
    assert (tmp_path / "run" / "trials.json").exists()


def test_a_copy_that_hangs_is_ended(tmp_path: Path) -> None:
    assert in_copy(lambda: time.sleep(60), seconds=0.3) == "it did not end in time"
    assert in_copy(lambda: os.kill(os.getpid(), signal.SIGKILL)) == "by signal 9"


def test_handlers_of_the_script_do_not_run_in_a_copy() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        assert in_copy(lambda: (os.kill(os.getpid(), signal.SIGINT), "alive")[1]) == "alive"
        assert in_copy(lambda: os.kill(os.getpid(), signal.SIGUSR1)) == f"by signal {signal.SIGUSR1:d}"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_script_that_waits_for_its_own_processes_is_not_copied() -> None:
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        with pytest.raises(NotPrivateError, match="watches the processes"):
            make_copy()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_what_runs_on_a_gpu_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "device_kind", lambda: "cuda")
    with pytest.raises(NotPrivateError, match="GPU"):
        make_copy()


def test_the_scripts_warnings_are_not_touched() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        assert in_copy(lambda: "done") == "done"
        assert list(warnings.filters) == filters and not caught


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_pass_with_workers_goes_on_with_workers_of_its_own(method: str) -> None:
    loader = torch.utils.data.DataLoader(
        list(range(20)), batch_size=2, num_workers=1, multiprocessing_context=method
    )
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]

    def reads() -> list[int]:
        OwnPasses(lambda _: loader).install()
        return [next(iterator).tolist() for _ in range(3)][-1]

    assert in_copy(reads) == "[4, 5]"
    assert [batch.tolist() for batch in iterator] == [[i, i + 1] for i in range(2, 20, 2)]


def test_the_openmp_that_torch_brings_is_found() -> None:
    assert private_copy._openmp_libraries()


def test_what_a_compiler_writes_by_way_of_a_library_is_no_effect_of_the_script(tmp_path: Path) -> None:
    def calls(module: str, function: Callable[[], object]) -> Callable[[], object]:
        place = f"/usr/lib/python3/site-packages/{module}.py"
        found: dict[str, object] = {"__name__": module, "function": function}
        exec(compile("def call():\n    return function()\n", place, "exec"), found)
        return found["call"]  # type: ignore[return-value]

    path = tmp_path / "lock"
    by_library = calls("filelock", calls("filelock._util", path.mkdir))
    told: list[str] = []

    def tries(call: Callable[[], object]) -> Callable[[], object]:
        def in_there() -> object:
            tell_of_effects(told.append, allowed=tmp_path / "run")
            call()
            return len(told)

        return in_there

    assert in_copy(tries(calls("torch._inductor.cpu_vec_isa", by_library))) == "0"
    path.rmdir()
    assert in_copy(tries(by_library)) == "1"
