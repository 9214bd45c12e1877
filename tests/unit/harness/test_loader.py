"""What is recorded of DataLoaders: arguments as really constructed, production where it happens."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker
from unit.harness.samplers import wait_for_samplers

from torch_bottleneck.harness.loading.batches import BatchBook, tensors_of
from torch_bottleneck.harness.loading.watch import LoaderWatch
from torch_bottleneck.model.run import LoaderFacts
from torch_bottleneck.runs.store import Store

SLEEP_MS = 4.0
LARGE_BYTES = 1_000_000


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SLEEP_MS / 1e3)
        return torch.full((2,), float(index))


class Large(Slow):
    """More than a pipe holds."""

    def __init__(self) -> None:
        self.rows = b"x" * LARGE_BYTES


class Repeated(IterableDataset[torch.Tensor]):
    """Every worker yields everything."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((2,), float(i)) for i in range(40))


class Divided(Repeated):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is not None
        return (torch.full((2,), float(i)) for i in range(info.id, 40, info.num_workers))


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[LoaderWatch]:
    """A watch, and a check that nothing of it stays behind."""
    before = (vars(DataLoader)["__init__"], vars(DataLoader)["__iter__"], torch_worker._worker_loop)
    made = LoaderWatch(Store(tmp_path / "run"))
    made.install()
    yield made
    made.uninstall()
    assert before == (vars(DataLoader)["__init__"], vars(DataLoader)["__iter__"], torch_worker._worker_loop)
    assert not list((tmp_path / ".run.partial").glob(".loader*"))


def drain(watch: LoaderWatch, loader: Any, *, step: int = 0, window: str = "baseline") -> int:
    """Fetch everything as the agent's hook does."""
    iterator = iter(loader)
    while True:
        begun = time.perf_counter_ns()
        batch = next(iterator, None)
        wait_ms = (time.perf_counter_ns() - begun) / 1e6
        if batch is None:
            watch.exhausted(wait_ms=wait_ms, step_index=step)
            return step
        hand_over(watch, iterator, batch, wait_ms=wait_ms, step=step, window=window)
        step += 1


def hand_over(
    watch: LoaderWatch,
    iterator: Any,
    batch: Any,
    *,
    step: int,
    wait_ms: float = 0.1,
    window: str = "baseline",
) -> None:
    """Note a batch and look at it, as the agent does while events are taken at once."""
    at_ns, grad = time.perf_counter_ns(), torch.is_grad_enabled()
    watch.handed_over(iterator, at_ns=at_ns, grad=grad, wait_ms=wait_ms, step_index=step, window=window)
    watch.look_at(iterator, batch, tensors_of(batch))


def only(watch: LoaderWatch) -> LoaderFacts:
    (facts,) = watch.facts()
    return facts


def test_arguments_are_those_of_the_object_and_the_line_is_the_caller_s(watch: LoaderWatch) -> None:
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    loader = DataLoader(Slow(), 4, True, num_workers=2, persistent_workers=True)
    facts = only(watch)
    assert (facts.cls, facts.dataset, facts.length, facts.batch_size) == ("DataLoader", "Slow", 3, 4)
    assert (facts.num_workers, facts.persistent_workers, facts.prefetch_factor) == (2, True, 2)
    assert (facts.shuffle, facts.iterable, facts.fetches) == (True, False, 0)
    assert facts.site is not None
    assert (facts.site.file, facts.site.line) == (__file__, line)
    assert inspect.signature(DataLoader.__init__).parameters["dataset"], "its signature stays readable"
    del loader


def test_production_in_the_main_process(watch: LoaderWatch) -> None:
    drain(watch, DataLoader(Slow(), 4))
    facts = only(watch)
    assert facts.production is not None
    assert (facts.production.where, facts.production.batches) == ("main", 3)
    assert all(ms >= 4 * SLEEP_MS for ms in facts.production.fetch_ms)
    assert all(wait >= fetch for wait, fetch in zip(facts.wait_ms, facts.production.fetch_ms, strict=True))
    assert facts.wait_step == [0, 1, 2]
    assert len(facts.startup_ms) == facts.iterators == 1


def test_persistent_workers_over_epochs(watch: LoaderWatch) -> None:
    loader = DataLoader(Slow(), 4, num_workers=1, persistent_workers=True)
    drain(watch, loader)
    drain(watch, loader, step=3)
    facts = only(watch)
    assert (facts.iterators, facts.fetches, len(facts.startup_ms)) == (2, 6, 2)
    assert facts.production is not None
    assert facts.production.batches == 6
    del loader


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the kernel does not tell")
def test_workers_tell_how_long_they_wait_for_a_core_and_how_many_they_may_use(watch: LoaderWatch) -> None:
    def bind(_worker: int) -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    drain(watch, DataLoader(Slow(), 4, num_workers=2, worker_init_fn=bind))
    made = only(watch).production
    assert made is not None
    assert made.worker_cores == 1
    assert len(made.core_wait_ms) == len(made.fetch_ms) == 3
    whole = [fetch + collate for fetch, collate in zip(made.fetch_ms, made.collate_ms, strict=True)]
    assert all(0 <= wait <= ms + 1e-3 for wait, ms in zip(made.core_wait_ms, whole, strict=True))


class Products(Dataset[float]):
    """Samples that NumPy's BLAS computes, and a thread of Python's own beside it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        rows = np.full((400, 400), float(index))
        beside = threading.Thread(target=lambda: sum(range(100_000)))
        beside.start()
        for _ in range(8):
            rows = rows @ rows / 400
        beside.join()
        return float(rows[0, 0])


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the kernel does not tell")
@pytest.mark.parametrize("threads", [1, 2])
def test_workers_tell_what_their_threads_use_and_those_of_libraries(watch: LoaderWatch, threads: int) -> None:
    def limit(_worker: int) -> None:
        threadpool_limits(threads)

    drain(watch, DataLoader(Products(), 2, num_workers=1, worker_init_fn=limit))
    made = only(watch).production
    assert made is not None
    assert made.computed_ms is not None and made.computed_ms > 0
    assert (made.helped_ms is not None) == (threads == 2), "threads of Python's own do not count"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_timed_as_they_start_and_as_they_produce(watch: LoaderWatch, method: str) -> None:
    loader = DataLoader(Large(), 4, num_workers=2, multiprocessing_context=method)
    plain = multiprocessing.reduction.dump
    # Workers that are not forked import torch, which takes each of them seconds.
    steps = (5, 8) if method == "fork" else (5,)
    for step in steps:
        drain(watch, loader, step=step)
    assert multiprocessing.reduction.dump is plain
    facts = only(watch)
    assert facts.start_method == method
    assert facts.production is not None
    assert (facts.production.where, facts.production.batches) == ("workers", 3 * len(steps))
    assert all(ms >= 4 * SLEEP_MS for ms in facts.production.fetch_ms)
    assert 0 < (facts.production.busy_share or 0) <= 1
    assert [(start.step, start.stop_step) for start in facts.starts] == [(step, step + 3) for step in steps]
    for start in facts.starts:
        assert start.making_ms > 0
        assert start.wait_ms >= 4 * SLEEP_MS or method != "fork"
        assert start.stopping_ms > 0
        if method == "fork":
            assert (start.pickled_bytes, start.pickling_ms, start.unpickling_ms) == (0, 0.0, 0.0)
            continue
        assert start.pickled_bytes > 2 * LARGE_BYTES
        # Python and torch are imported first, and each worker is waited for before the next is started.
        assert 0 < start.pickling_ms < start.booting_ms < start.making_ms
        assert 0 < start.unpickling_ms < start.making_ms


def test_workers_that_are_kept_start_once_and_loaders_without_never(watch: LoaderWatch) -> None:
    kept = DataLoader(Slow(), 4, num_workers=1, persistent_workers=True)
    alone = DataLoader(Slow(), 4)
    for step in (0, 3):
        drain(watch, kept, step=step)
        drain(watch, alone, step=step)
    first, second = watch.facts()
    assert [(start.step, start.stop_step) for start in first.starts] == [(0, -1)]
    assert second.starts == []
    del kept


def test_a_loader_built_anew_each_epoch_is_one_loader(watch: LoaderWatch) -> None:
    step = 0
    for _ in range(3):
        step = drain(watch, DataLoader(Slow(), 6), step=step)
    facts = only(watch)
    assert (facts.iterators, facts.fetches, facts.role) == (3, 6, "train")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_only_its_iterator_is_kept_of_is_known_as_long_as_that_one(
    watch: LoaderWatch, workers: int
) -> None:
    iterator = iter(DataLoader(Slow(), 2, num_workers=workers))
    loader = weakref.ref(watch.loader_of(iterator))
    assert loader() is not None and loader().num_workers == workers
    del iterator
    assert loader() is None


def test_roles_are_told_by_what_lies_between_fetches(watch: LoaderWatch) -> None:
    data = TensorDataset(torch.zeros(12, 2))
    train, evaluation = DataLoader(data, 4, shuffle=True), DataLoader(data, 2)
    for epoch in range(2):
        drain(watch, train, step=3 * epoch)
        iterator = iter(evaluation)
        for batch in iterator:
            step = 3 * epoch + 3
            hand_over(watch, iterator, batch, step=step)
    assert [facts.role for facts in watch.facts()] == ["train", "eval"]


def test_a_loader_iterated_anew_for_every_batch_trains(watch: LoaderWatch) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(12, 2)), 4)
    for step in range(4):
        iterator = iter(loader)
        batch = next(iterator)
        hand_over(watch, iterator, batch, step=step)
        del iterator
    facts = only(watch)
    assert (facts.iterators, facts.fetches, facts.role) == (4, 4, "train")


def test_an_iterator_that_is_handed_out_again_goes_on_with_its_pass(watch: LoaderWatch) -> None:
    """With FX113 in force the price of a start was added to each step: 1.3x was told where it was 2.6x."""

    class Kept(DataLoader[Any]):
        kept: Any = None

        def __iter__(self) -> Any:
            return self.kept

    loader = Kept(TensorDataset(torch.zeros(12, 2)), 4)
    plain = vars(DataLoader)["__iter__"].__wrapped__
    loader.kept = plain(loader)
    with pytest.MonkeyPatch.context() as patched:
        watched = watch._make_iter(Kept.__iter__)
        patched.setattr(Kept, "__iter__", watched)
        for step in range(3):
            iterator = iter(loader)
            hand_over(watch, iterator, next(iterator), step=step)
    assert (only(watch).iterators, only(watch).fetches) == (1, 3)


def test_other_windows_leave_the_waits_alone(watch: LoaderWatch) -> None:
    drain(watch, DataLoader(Slow(), 6), window="trace")
    assert only(watch).wait_ms == []
    assert only(watch).fetches == 2


@pytest.mark.parametrize(("dataset", "share"), [(Repeated, 0.5), (Divided, 0.0)])
def test_samples_that_every_worker_repeats_are_found(
    watch: LoaderWatch, dataset: type[Repeated], share: float
) -> None:
    drain(watch, DataLoader(dataset(), 4, num_workers=2, multiprocessing_context="fork"))
    facts = only(watch)
    assert facts.iterable
    assert facts.duplicated_samples_share == share


def test_constant_data_is_not_taken_for_repeated_samples() -> None:
    book = BatchBook()
    for _ in range(8):
        batch = torch.zeros(16, 4)
        book.note(batch, tensors_of(batch), several_workers=True)
    assert book.duplicated_share(workers=2) is None


def test_asking_about_an_iterable_dataset_changes_nothing(watch: LoaderWatch) -> None:
    class Lies(Repeated):
        def __len__(self) -> int:
            return 8  # torch warns about this, but only if someone has asked for the length

    drain(watch, DataLoader(Lies(), 4))
    assert only(watch).length is None


def test_a_batch_of_any_nesting() -> None:
    book = BatchBook()
    mask = torch.tensor([[1, 1, 0, 0]])
    batch = {"input_ids": torch.zeros(1, 4, dtype=torch.int64), "attention_mask": mask, "x": [("a", mask)]}
    for each in (batch, {**batch, "input_ids": torch.zeros(1, 5, dtype=torch.int64)}):
        book.note(each, tensors_of(each), several_workers=False)
    facts = book.facts()
    assert facts is not None
    assert facts.tensors == ["int64[1, 5]", "int64[1, 4]", "int64[1, 4]"]
    assert (facts.bytes, facts.distinct_shapes, facts.padding_share) == (104, 2, 0.5)


class Slices(Dataset[torch.Tensor]):
    """Ten numbers of ten thousand."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(10_000)[index : index + 10]


def test_what_slices_from_workers_bring_with_them_is_counted_once(watch: LoaderWatch) -> None:
    drain(watch, DataLoader(Slices(), 2, num_workers=1, collate_fn=list))
    batch = only(watch).batch
    assert batch is not None
    assert (batch.bytes, batch.memory_bytes) == (2 * 40, 2 * 40_000)
    whole, book = torch.zeros(6), BatchBook()
    parts = [whole[:3], whole[3:], torch.zeros(2, 2).to_sparse()]
    book.note(parts, parts, several_workers=False)
    facts = book.facts()
    assert facts is not None and facts.memory_bytes == 24


def test_a_causal_mask_hides_no_padding() -> None:
    book = BatchBook()
    batch = (torch.zeros(4, 6, dtype=torch.int64), torch.ones(6, 6, dtype=torch.bool).tril())
    book.note(batch, tensors_of(batch), several_workers=False)
    facts = book.facts()
    assert facts is not None
    assert facts.padding_share is None


LENGTHS = torch.tensor([4, 1, 2, 4])
REAL = torch.arange(4)[None, :] < LENGTHS[:, None]


@pytest.mark.parametrize(
    ("mask", "share"),
    [
        (REAL, 0.3125),
        (~REAL, 0.3125),
        (REAL.flip(1), 0.3125),
        (torch.ones(4, 4, dtype=torch.bool), None),
        (REAL[1:3], None),
        (torch.eye(4, dtype=torch.bool), None),
        (REAL.int(), None),
    ],
    ids=[
        "real is True",
        "padding is True",
        "padded in front",
        "no padding",
        "no longest row",
        "no runs",
        "types",
    ],
)
def test_a_padding_mask_is_known_by_its_shape_whatever_it_is_called(
    mask: torch.Tensor, share: float | None
) -> None:
    book = BatchBook()
    batch = (torch.zeros(mask.shape, dtype=torch.int64), mask)
    book.note(batch, tensors_of(batch), several_workers=False)
    facts = book.facts()
    assert facts is not None
    assert facts.padding_share == share
    assert (facts.device, facts.pinned) == ("cpu", None)


def shares(*tensors: torch.Tensor) -> tuple[float | None, float | None]:
    book = BatchBook()
    book.note(tensors, list(tensors), several_workers=False)
    facts = book.facts()
    assert facts is not None
    return facts.padding_share, facts.beyond_share


def test_without_a_mask_rows_that_end_in_one_number_are_padded_and_told_apart_from_features() -> None:
    ids = torch.arange(1, 81).reshape(4, 20)
    length = torch.tensor([10, 4, 16, 10])
    padded = torch.where(torch.arange(20) < length[:, None], ids, 0)
    assert shares(padded) == (0.5, 0.2), "four columns are behind the longest"
    assert shares(torch.rand(4, 20), padded) == (0.5, 0.2)
    assert shares(ids) == (None, None)
    counts = torch.where(ids % 3 == 0, padded, 0)
    assert shares(counts) == (None, None), "that number is all over the rows"
    assert shares(torch.where(torch.arange(20) < 10, ids, 0)) == (None, None), "columns that hold nothing"
    assert shares(padded.float()) == (None, None)


def test_loader_json_is_written_even_before_anything_happened(watch: LoaderWatch, tmp_path: Path) -> None:
    watch.write()
    assert (tmp_path / ".run.partial/loader.json").read_text().strip() == "[]"


class TwoLines(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __init__(self) -> None:
        self.dear, self.cheap, self.worked = (multiprocessing.Value("d", 0.0) for _ in range(3))

    def __getitem__(self, index: int) -> torch.Tensor:
        begun, used = time.perf_counter(), time.thread_time()
        while time.perf_counter() - begun < 0.010:  # dear: burns the interpreter
            pass
        between, used = time.perf_counter(), time.thread_time() - used
        time.sleep(0.002)  # cheap: waits
        with self.dear, self.cheap, self.worked:
            self.worked.value += used
            self.dear.value += between - begun
            self.cheap.value += time.perf_counter() - between
        return torch.zeros(2)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_dear_line_of_the_dataset_is_found(watch: LoaderWatch, workers: int) -> None:
    wait_for_samplers()
    switch = sys.getswitchinterval()
    dataset = TwoLines()
    drain(watch, DataLoader(dataset, 4, num_workers=workers), window="warm-up")
    production = only(watch).production
    assert production is not None
    source = Path(__file__).read_text().splitlines()
    shares = {"dear": 0, "cheap": 0}
    for item in production.sites:
        assert (item.site.file, item.phase) == (__file__, "fetch")
        text = source[item.site.line - 1]
        shares["dear" if "dear" in text or text.strip() == "pass" else "cheap"] += item.count
    # Five to one on an idle machine. A sampler biased by the interpreter lock finds nearly all where it is
    # let go of.
    true_share = dataset.dear.value / (dataset.dear.value + dataset.cheap.value)
    cheap_share = shares["cheap"] / sum(shares.values())
    # Where other programs have the processors, the sampler comes when the loader waits.
    had_a_processor = dataset.worked.value / dataset.dear.value
    assert (1 - true_share) / 5 < cheap_share < (1 - true_share) + 0.3 / had_a_processor
    own = sum(item.count for item in production.sites) / production.samples
    assert sum(item.total_ms or 0 for item in production.sites) == pytest.approx(
        own * (sum(production.fetch_ms) + sum(production.collate_ms)), rel=0.01
    )
    assert production.rows_share is not None
    assert production.rows_share < 0.3
    hand_over(watch, object(), None, step=99)
    until = time.monotonic() + 60
    while sys.getswitchinterval() != switch and time.monotonic() < until:
        time.sleep(0.01)
    assert sys.getswitchinterval() == switch


class Opens(Dataset[torch.Tensor]):
    """Reads an index before the first row."""

    def __init__(self, rows: int) -> None:
        self.rows, self.index = rows, False

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> torch.Tensor:
        if not self.index:
            time.sleep(0.4)  # once
            self.index = True
        time.sleep(0.02)  # each
        return torch.zeros(2)


@pytest.mark.parametrize(("rows", "dear"), [(4, "# once"), (16, "# each")])
def test_what_only_the_first_batch_does_is_told_where_there_is_no_other(
    watch: LoaderWatch, rows: int, dear: str
) -> None:
    drain(watch, DataLoader(Opens(rows), 4), window="warm-up")
    production = only(watch).production
    assert production is not None
    source = Path(__file__).read_text().splitlines()
    assert dear in source[production.sites[0].site.line - 1]
    assert len(production.sites) == (2 if rows == 4 else 1)


class Works(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        sorted(range(60_000), key=str)
        return torch.zeros(2)


@pytest.mark.flaky(reruns=2)  # few samples of a few ms each, on a machine that others use
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_torch_handles_one_by_one_are_told_from_work(watch: LoaderWatch, workers: int) -> None:
    wait_for_samplers()
    rows = TensorDataset(torch.zeros(60_000, 8), torch.zeros(60_000))
    drain(watch, DataLoader(rows, 6_000, num_workers=workers), window="warm-up")
    drain(watch, DataLoader(Works(), 32, num_workers=workers), window="warm-up")
    tabular, working = (facts.production for facts in watch.facts())
    assert tabular is not None
    assert working is not None
    assert tabular.samples > 0
    # What is sampled at the edges of a batch is not told apart.
    assert tabular.rows_share is not None
    assert tabular.rows_share > 0.5
    assert tabular.sites == []
    assert working.rows_share is not None
    assert working.rows_share < 0.3
    assert working.sites[0].call == "sorted()"
    hand_over(watch, object(), None, step=99)
