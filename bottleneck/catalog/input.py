"""Fixes of the input pipeline: batches that arrive too late.

In: nothing. Out: `FIXES`, data.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Arithmetic, Beside, Fix, IteratorEdit, KeywordEdit, Option, Risk, Shortens
from .build import arguments, docs, given, if_known, paper, recipe, seen, source

_LOADER = given("loader.present", "==", True, "batches come from a DataLoader")
_HAS_WORKERS = given("loader.num_workers", ">", 0, "the DataLoader has worker processes")
_ONE_BATCH_EACH = given("loader.batches_per_iterator", "<", 1.5, "each step makes an iterator of its own")
_LOADERS = ("*Loader",)
_ONLY_WITH_WORKERS = ("persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context")
_WORKERS_EDIT = KeywordEdit(calls=_LOADERS, keywords=("num_workers", "persistent_workers"))
_COPIES_EDIT = KeywordEdit(calls=("to", "cuda"), keywords=("non_blocking",), each=True)
_DATA = docs("data.html", "torch.utils.data")
_TUNING = recipe("recipes/recipes/tuning_guide.html", "PyTorch performance tuning guide")
_WAIT_GONE = "The line 'waiting for input' falls below 2 % of the step."

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX101",
        title="Give the DataLoader enough workers",
        addresses=("BN101", "BN102"),
        what_to_change="Raise num_workers until the workers together make a batch in less time than the rest"
        " of the step takes. More workers only cost memory and start-up time.",
        when=(
            _LOADER,
            given(
                "loader.num_workers",
                "<",
                "@loader.needed_workers",
                "there are fewer workers than production needs",
            ),
        ),
        unless=(
            given("loader.num_workers", ">=", "@host.cores", "there are already as many workers as cores"),
            _ONE_BATCH_EACH,
        ),
        conflicts=("FX102",),
        risk=Risk.SAFE,
        may_break="Each worker holds a copy of the dataset object; random state and open files are per worker.",
        what_if=WhatIf.INPUT_WORKERS,
        basis="production time divided among the workers, bounded by the cores",
        code="""\
from torch.utils.data import DataLoader

loader = DataLoader(
    dataset,
    batch_size=batch_size,
    num_workers=4,
    persistent_workers=True,
)""",
        other_code=(arguments("dataloader_num_workers=4"),),
        undo="Set num_workers back.",
        verify=_WAIT_GONE,
        can_try=True,
        options={
            "num_workers": Option(kind="int", default=4, of_run="{min(loader.needed_workers,host.cores)}"),
            "persistent_workers": Option(kind="bool"),
        },
        edits=(_WORKERS_EDIT,),
        moves_samples=True,
        sources=(
            _DATA,
            recipe(
                "recipes/recipes/tuning_guide.html",
                "PyTorch performance tuning guide",
                "num_workers > 0 overlaps loading with training",
            ),
            source("", "Field report", "about 10 % for the loader's settings together"),
        ),
    ),
    Fix(
        id="FX102",
        title="Use fewer DataLoader workers",
        addresses=("BN104", "BN903"),
        what_to_change="Lower num_workers to what production needs, and at most to the number of cores."
        " Further workers compete with the training process, use memory and slow the start of every"
        " epoch.",
        when=(_LOADER, *seen("loader.num_workers", ">", "@host.cores", "there are more workers than cores")),
        conflicts=("FX101",),
        basis="not predicted: the replay does not model contention for the cores",
        code="""\
from torch.utils.data import DataLoader

loader = DataLoader(
    dataset,
    batch_size=batch_size,
    num_workers=2,
    persistent_workers=True,
)""",
        undo="Set num_workers back.",
        verify="The step does not get slower, and worker start-up gets shorter.",
        can_try=True,
        options={
            "num_workers": Option(kind="int", default=2, of_run="{min(loader.needed_workers,host.cores)}"),
            "persistent_workers": Option(kind="bool"),
        },
        edits=(_WORKERS_EDIT,),
        moves_samples=True,
        sources=(_DATA, source("", "Field report", "drop to 2-4 workers when trouble starts")),
    ),
    Fix(
        id="FX103",
        title="Pin host memory and copy without blocking",
        addresses=("BN701", "BN702"),
        what_to_change="Let the loader pin its batches (tensors without a loader: where they are made) and"
        " copy them with non_blocking=True. A copy from pageable memory blocks the host until it is done.",
        when=(
            given("device.kind", "in", ["cuda", "rocm"], "training runs on a GPU"),
            given("copies.h2d_ms", ">", 0.0, "batches are copied to the device"),
        ),
        unless=(given("loader.pin_memory", "==", True, "pin_memory is on"),),
        what_if=WhatIf.COPIES_ASYNC,
        basis="copies at pinned bandwidth that do not block the host",
        may_break="Pinned memory cannot be swapped; do not overwrite a batch on the host before its copy has"
        " finished.",
        code="""\
from torch.utils.data import DataLoader

loader = DataLoader(dataset, batch_size=batch_size, pin_memory=True)

for images, labels in loader:
    images = images.to(device, non_blocking=True)
    labels = labels.to(device, non_blocking=True)""",
        other_code=(
            (
                given("loader.present", "==", False, "no DataLoader was seen"),
                """\
images = images.pin_memory()  # once, where it is made

batch = images.to(device, non_blocking=True)""",
            ),
        ),
        undo="Remove pin_memory and non_blocking.",
        verify="Host-to-device copies no longer block; the trace shows 'Memcpy HtoD (Pinned -> Device)'.",
        can_try=True,
        edits=(
            KeywordEdit(calls=_LOADERS, keywords=("pin_memory",)),
            _COPIES_EDIT,
        ),
        by_hand={
            Beside.PINNED: "For the run, the tensors copied here were pinned. In the source, call .pin_memory()"
            " on them where they are made.",
        },
        sources=(
            recipe("intermediate/pinmem_nonblock.html", "A guide on pin_memory() and non_blocking"),
            source("", "Field report", "about 10 % for the loader's settings together"),
        ),
    ),
    Fix(
        id="FX104",
        title="Copy pinned batches with non_blocking=True",
        addresses=("BN701", "BN601"),
        what_to_change="The batches are already pinned. Without non_blocking=True each .to(device) still"
        " waits.",
        when=(
            given("device.kind", "in", ["cuda", "rocm"], "training runs on a GPU"),
            *seen("loader.pin_memory", "==", True, "pin_memory is on"),
        ),
        conflicts=("FX103",),
        what_if=WhatIf.COPIES_ASYNC,
        basis="copies that do not block the host",
        code="""\
for images, labels in loader:
    images = images.to(device, non_blocking=True)
    labels = labels.to(device, non_blocking=True)""",
        undo="Remove non_blocking.",
        verify="No cudaStreamSynchronize follows the copies in the trace.",
        can_try=True,
        edits=(_COPIES_EDIT,),
        sources=(recipe("intermediate/pinmem_nonblock.html", "A guide on pin_memory() and non_blocking"),),
    ),
    Fix(
        id="FX105",
        title="Keep the workers alive between epochs",
        addresses=("BN104", "BN101"),
        what_if=WhatIf.WORKERS_KEPT,
        what_to_change="Set persistent_workers=True for every loader with workers, that of an evaluation"
        " too. Otherwise every epoch starts new processes, which import and unpickle again before the first"
        " batch.",
        when=(if_known("loader.kept_ms"),),
        basis="no start but the first",
        unless=(_ONE_BATCH_EACH,),
        may_break="Changes made to the dataset object between epochs no longer reach the workers.",
        code="""\
from torch.utils.data import DataLoader

loader = DataLoader(
    dataset, batch_size=batch_size, num_workers=2, persistent_workers=True
)""",
        fills={"num_workers=2": "num_workers={loader.num_workers}"},
        undo="Remove persistent_workers.",
        verify="From the second epoch on, the first batch arrives as fast as the others.",
        can_try=True,
        edits=(KeywordEdit(calls=_LOADERS, keywords=("persistent_workers",)),),
        moves_samples=True,
        shortens=(Shortens(part="epoch starts", change="with workers that stay", of="again", at_best=True),),
        sources=(_DATA,),
    ),
    Fix(
        id="FX106",
        title="Prefetch more batches",
        addresses=("BN103",),
        what_to_change="Raise prefetch_factor. Production keeps up on average, but several slow batches in a"
        " row empty the queue.",
        when=(_LOADER, _HAS_WORKERS),
        may_break="Memory: num_workers x prefetch_factor batches are kept ready.",
        what_if=WhatIf.INPUT_READY,
        what_if_bound=True,
        basis="the step if no fetch ever waited, the most that a longer queue can save",
        code="""\
from torch.utils.data import DataLoader

loader = DataLoader(
    dataset,
    batch_size=batch_size,
    num_workers=2,
    prefetch_factor=8,
)""",
        fills={"num_workers=2": "num_workers={loader.num_workers}"},
        undo="Remove prefetch_factor (the default is 2).",
        verify="The longest waits for input disappear.",
        can_try=True,
        options={"prefetch_factor": Option(kind="int", default=8)},
        edits=(KeywordEdit(calls=_LOADERS, keywords=("prefetch_factor",)),),
        moves_samples=True,
        sources=(_DATA,),
    ),
    Fix(
        id="FX107",
        title="Make producing a batch cheaper",
        named="Make producing a batch cheaper: {call}",
        addresses=("BN102", "BN101"),
        what_to_change="Move the expensive part of __getitem__ or collate_fn out of the loop: decode, resize"
        " or tokenize once and store the result. Augment whole batches on the device. Index arrays"
        " instead of parsing files. Draw a sampler's indices for all batches at once.",
        unless=(if_known("loader.handed_ms"),),
        risk=Risk.NEEDS_REVIEW,
        may_break="Random augmentation must stay random: store only what is the same every epoch.",
        what_if=WhatIf.INPUT_READY,
        narrower=WhatIf.PRODUCTION_CHEAPER,
        what_if_bound=True,
        basis="the step if input cost nothing, the most that cheaper production can save",
        code="""\
import torch
from torch.utils.data import TensorDataset

# Once, before training: the part that is the same in every epoch.
samples = [dataset[i] for i in range(len(dataset))]
prepared = TensorDataset(*(torch.stack(column) for column in zip(*samples)))
torch.save(prepared.tensors, "prepared.pt")""",
        undo="Read the original data again.",
        verify="Production time per batch falls; " + _WAIT_GONE[0].lower() + _WAIT_GONE[1:],
        sources=(_DATA, _TUNING),
    ),
    Fix(
        id="FX108",
        title="Split an IterableDataset among its workers",
        addresses=("BN101", "BN102"),
        what_to_change="Every worker iterates its own copy of the dataset. Use get_worker_info() to give"
        " each worker its share; otherwise each sample arrives once per worker.",
        when=(
            *seen("loader.duplicated", "==", True, "several workers yield the same samples"),
            given("loader.iterable", "==", True, "the dataset is an IterableDataset"),
        ),
        risk=Risk.NEEDS_REVIEW,
        may_break="An epoch gets shorter: until now it repeated every sample once per worker.",
        basis="not predicted: the step takes as long as before, but samples are no longer repeated",
        code="""\
from itertools import islice

from torch.utils.data import IterableDataset, get_worker_info


class Shared(IterableDataset):
    def __init__(self, records):
        self.records = records

    def __iter__(self):
        worker = get_worker_info()
        first = worker.id if worker else 0
        every = worker.num_workers if worker else 1
        return islice(iter(self.records), first, None, every)""",
        undo="Yield everything from every worker again.",
        verify="No sample arrives twice in an epoch.",
        sources=(docs("data.html#torch.utils.data.IterableDataset", "torch.utils.data.IterableDataset"),),
    ),
    Fix(
        id="FX109",
        title="Compute less padding: bucket or pack sequences",
        addresses=("BN312", "BN301", "BN306"),
        what_to_change="Pad in collate_fn, to the longest sample of the batch, not to a fixed length. Group samples"
        " of similar length into batches, or pack several into one row. Padded positions cost as much as real ones. The Trainer of Transformers 5 groups with"
        ' train_sampling_strategy="group_by_length" (group_by_length=True before).',
        when=seen("batch.padding_share", ">=", 0.1, "at least a tenth of the batch is padding"),
        risk=Risk.NEEDS_REVIEW,
        may_break="Batches are no longer drawn independently of length; packed rows need an attention mask.",
        what_if=WhatIf.PADDING_GONE,
        basis="the padded share of the work that grows with the number of tokens",
        code="""\
import random

from torch.utils.data import Sampler


class Bucketed(Sampler):
    \"\"\"Batches of similar lengths, in random order.\"\"\"

    def __init__(self, lengths, batch_size):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        starts = range(0, len(order), batch_size)
        self.batches = [order[i : i + batch_size] for i in starts]

    def __iter__(self):
        return iter(random.sample(self.batches, len(self.batches)))

    def __len__(self):
        return len(self.batches)""",
        undo="Use the loader's old sampler.",
        verify="The padded share of the batch falls; the loss against tokens seen stays the same.",
        sources=(
            paper("2107.02027", "Efficient sequence packing without cross-contamination"),
            source(
                "https://huggingface.co/docs/transformers/main_classes/data_collator",
                "Transformers: data collators",
            ),
        ),
    ),
    Fix(
        id="FX110",
        title="Compute the frozen model's outputs once",
        addresses=("BN311",),
        what_to_change="A model that does not change (a teacher, an encoder, a reference) runs under no_grad"
        " in every step. If it sees the same samples again, store its outputs (features, latents,"
        " logits) once and read them instead.",
        when=seen(
            "ungraded.frozen", "==", True, "a model runs without gradients in every step and does not change"
        ),
        unless=(given("ungraded.fed_share", ">", 0.5, "layers that are trained make its inputs"),),
        what_if=WhatIf.FORWARD_STORED,
        what_if_bound=True,
        risk=Risk.NEEDS_REVIEW,
        may_break="Augmentation before the model is frozen with it. A target model that is updated now and"
        " then is not frozen.",
        basis="the step without it, before the cost of reading what was stored",
        code="""\
import torch

with torch.no_grad():
    features = [encoder(x.to(device)).cpu() for (x,) in feature_loader]
torch.save(torch.cat(features), "features.pt")""",
        undo="Run the encoder in the loop again.",
        verify="Forward time falls by the encoder's share; validation loss is unchanged.",
        sources=(paper("2112.10752", "High-resolution image synthesis with latent diffusion models"),),
    ),
    Fix(
        id="FX111",
        title="Fetch the next batch while this one trains",
        addresses=("BN101", "BN102"),
        what_to_change="Batches are made in the training loop itself, without a DataLoader. Make the next"
        " batch in a background thread (reading, decoding and NumPy release the GIL), or use a Dataset"
        " with workers.",
        when=seen("loader.present", "==", False, "batches do not come from a DataLoader"),
        what_if=WhatIf.INPUT_AHEAD,
        basis="the longer of making a batch and training on it",
        may_break="Random numbers are drawn in another thread: seed a separate generator.",
        code="""\
from concurrent.futures import ThreadPoolExecutor


def prefetched(get_batch, steps):
    with ThreadPoolExecutor(max_workers=1) as pool:
        ready = pool.submit(get_batch)
        for _ in range(steps - 1):
            batch, ready = ready.result(), pool.submit(get_batch)
            yield batch
        yield ready.result()


for batch in prefetched(get_batch, steps=10):
    train_step(batch)""",
        undo="Call get_batch() in the loop again.",
        verify=_WAIT_GONE,
        sources=(_DATA,),
    ),
    Fix(
        id="FX112",
        title="Fetch a whole batch with one call",
        addresses=("BN102",),
        what_to_change="Give the dataset a __getitems__(indices) method. One vectorised read replaces a"
        " Python call per sample, and samples are no longer collated one by one.",
        when=(
            _LOADER,
            given("loader.iterable", "==", False, "the dataset is read by index"),
            given("torch.version", ">=", "2.0", "torch is new enough to call __getitems__"),
        ),
        what_if=WhatIf.INPUT_READY,
        narrower=WhatIf.ROWS_BATCHED,
        what_if_bound=True,
        basis="the step if input cost nothing, the most that cheaper production can save",
        code="""\
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.inputs)

    def __getitems__(self, indices):
        return self.inputs[indices], self.targets[indices]


rows = Rows(inputs, targets)
loader = DataLoader(
    rows,
    batch_size=batch_size,
    shuffle=True,
    collate_fn=lambda batch: batch,
)""",
        undo="Remove __getitems__ and collate_fn.",
        verify="Production time per batch falls.",
        can_try=True,
        moves_samples=True,
        sources=(_DATA,),
    ),
    Fix(
        id="FX114",
        title="Make the batches without workers",
        addresses=("BN101", "BN104"),
        what_to_change="Making a batch takes less time than getting one from a worker, which must be started"
        " and woken, and must pack the batch and hand it over. num_workers=0 avoids all of that. If"
        " production gets slower later, use one or two workers with large batches, never more than there"
        " are cores.",
        when=(_HAS_WORKERS, if_known("loader.in_main_ms")),
        what_if=WhatIf.INPUT_IN_MAIN,
        basis="the wait replaced by making the batch in the training process",
        may_break="The dataset's random numbers are then drawn in the main process.",
        code="""\
from torch.utils.data import DataLoader

loader = DataLoader(dataset, batch_size=batch_size, num_workers=0)""",
        undo="Set num_workers again.",
        verify=_WAIT_GONE,
        can_try=True,
        edits=(KeywordEdit(calls=_LOADERS, keywords=("num_workers", *_ONLY_WITH_WORKERS)),),
        moves_samples=True,
        sources=(_DATA,),
    ),
    Fix(
        id="FX113",
        title="Keep one iterator, not next(iter(loader))",
        addresses=("BN104", "BN101"),
        what_to_change="next(iter(loader)) starts a new pass for a single batch: it shuffles all indices,"
        " starts every worker and discards what they fetched ahead. Keep one iterator and take the next"
        " batch from it.",
        when=seen("loader.batches_per_iterator", "<", 1.5, "each step makes an iterator of its own"),
        what_if=WhatIf.INPUT_READY,
        what_if_bound=True,
        basis="the step if no batch were waited for, the most that this can save",
        code="""\
import itertools

batches = itertools.chain.from_iterable(itertools.repeat(loader))
for step in range(10):
    train_step(next(batches))""",
        undo="Call next(iter(loader)) again.",
        may_break="Batches are drawn without replacement within an epoch, as they should be.",
        verify=_WAIT_GONE,
        can_try=True,
        arithmetic=Arithmetic.OTHER_SAMPLES,
        moves_samples=True,
        edits=(IteratorEdit(),),
        sources=(_DATA,),
    ),
    Fix(
        id="FX115",
        title="One thread per loader worker",
        addresses=("BN107", "BN102"),
        what_to_change="NumPy's BLAS, OpenMP and OpenCV start a thread per core in every worker, and these threads"
        " take the cores from one another. Limit them to one in worker_init_fn, as torch does with its own.",
        when=(_HAS_WORKERS, if_known("loader.one_thread_ms")),
        what_if=WhatIf.WORKERS_ONE_THREAD,
        basis="waiting for a core gone as far as threads of libraries take the cores",
        may_break="With few workers and idle cores, a large matrix product in the dataset takes longer.",
        code="""\
from threadpoolctl import threadpool_limits
from torch.utils.data import DataLoader


def one_thread(worker: int) -> None:
    threadpool_limits(1)  # OpenCV has its own: cv2.setNumThreads(0)


loader = DataLoader(dataset, num_workers=4, worker_init_fn=one_thread)""",
        fills={"num_workers=4": "num_workers={loader.num_workers}"},
        undo="Remove worker_init_fn.",
        verify="Batches arrive sooner; the workers' processor time falls.",
        can_try=True,
        moves_samples=True,
        sources=(
            source("https://github.com/joblib/threadpoolctl", "threadpoolctl"),
            source(
                "https://github.com/pytorch/pytorch/issues/1355", "pytorch #1355: OpenCV in loader workers"
            ),
            _DATA,
        ),
    ),
    Fix(
        id="FX116",
        title="Hand over less per batch",
        addresses=("BN108",),
        what_to_change="Each tensor of a batch comes from a worker through shared memory of its own. In collate_fn"
        " put those that belong together into one tensor, with their lengths, and split it behind the copy to"
        " the device. Send small types: uint8 images, not float32. A slice brings all the memory that it is cut"
        " from: clone() it.",
        when=(_HAS_WORKERS, if_known("loader.handed_ms")),
        what_if=WhatIf.BATCHES_HANDED_OVER,
        basis="the step if batches that are made were there at once, the most that this can save",
        may_break="What the loader gives has another form.",
        code="""\
import torch


def packed(samples):
    images, boxes = zip(*samples)  # slices as they are: image.clone()
    counts = [len(each) for each in boxes]
    return torch.stack(images), torch.cat(boxes), counts


# behind the copy: boxes = boxes.split(counts)""",
        undo="Return the list again.",
        verify=_WAIT_GONE,
        sources=(
            source("https://github.com/roboflow/rf-detr/pull/1399", "RF-DETR: 114 tensors per batch, then 9"),
            source(
                "https://github.com/embeddings-benchmark/mteb/pull/4747", "MTEB: a slice brings its video"
            ),
            docs("multiprocessing.html#sharing-cpu-tensors", "torch.multiprocessing: sharing CPU tensors"),
        ),
    ),
)
