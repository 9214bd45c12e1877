"""Fixes of the host's part of the step: waiting for the device, other work, collector, threads, copies.

In: nothing. Out: `FIXES`, data.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Arithmetic, Fix, Option, RemovalEdit, Risk, Shortens, StatementEdit, Variable
from .build import ON_GPU, docs, given, if_known, recipe, seen, source

_TUNING = recipe(
    "recipes/recipes/tuning_guide.html",
    "PyTorch performance tuning guide: avoid unnecessary CPU-GPU synchronization",
)
_SYNC_MODE = docs("generated/torch.cuda.set_sync_debug_mode.html", "torch.cuda.set_sync_debug_mode")
_CPU = given("device.kind", "==", "cpu", "training runs on the CPU")
_THREADS = docs("notes/cpu_threading_torchscript_inference.html", "CPU threading")

_ACTS = "forward passes without gradients and what goes with them"

_ARRAY_WEIGHT = 0.8
"""Of what torch.tensor takes for a list, np.stack leaves a hundredth for arrays, np.array a fifth to a quarter
for plain numbers (204,800 values, torch 2.13)."""
_LOOP_WEIGHT = 0.8
"""Four of the five loops that were rewritten gave this share of their bound and more (reports/trials.md)."""
_DETOUR_WEIGHT = 0.8
"""Two that were rewritten for the device gave 0.84 of their bound and all of it (reports/threads-unseen50-gpu.md,
ZZ06, and threads-unseen48-gpu.md, XX04)."""

_FOR_SIZES = given("sync.waits_for", "==", "sizes", "most waits are for the size of a result")
_FOR_COPIES = given("sync.waits_for", "==", "copies", "most waits are for copies of what the host has made")
_ASKED_FOR = given("sync.waits_for", "==", "device", "most waits are calls of torch.cuda.synchronize()")
_FOR_ACTIVATIONS = given("sync.waits_for", "==", "activations", "most waits are for activations on their way")

_IN_FORWARD = seen("host.tensors_made_in", "==", "forward", "the model's forward makes the tensors")

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX501",
        title="Read the loss every N steps, not every step",
        addresses=("BN601",),
        what_to_change="loss.item(), float(loss), .cpu() and printing a tensor wait until the device has"
        " finished everything queued. The device is then idle while the host catches up. Sum on the"
        " device and read the sum every N steps.",
        what_if=WhatIf.READS_LATE,
        basis="the waits removed",
        may_break="Logged values come later; early stopping reacts N steps later.",
        code="""\
import torch

running = torch.zeros((), device=device)
for step, (inputs, targets) in enumerate(loader):
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    running += loss.detach()  # was: total += loss.item()
    if step % 100 == 99:
        print(running.item() / 100)
        running.zero_()""",
        undo="Read it in every step again.",
        verify="No synchronising call in a normal step; torch.cuda.set_sync_debug_mode('warn') stays silent.",
        can_try=True,
        options={"every": Option(kind="int")},
        unless=(_FOR_SIZES, _FOR_COPIES, _FOR_ACTIVATIONS, _ASKED_FOR),
        only_answered=True,  # otherwise nothing waits for a read
        sources=(_TUNING, _SYNC_MODE),
    ),
    Fix(
        id="FX502",
        title="Replace operations that need a value on the host",
        addresses=("BN601",),
        what_to_change="Boolean indexing, nonzero, masked_select, unique, repeat_interleave and tensor.any()"
        " in an if need a size or a value that depends on the data, so the host waits. Use operations of"
        " fixed size on masks instead.",
        when=(ON_GPU,),
        unless=(_FOR_COPIES, _FOR_ACTIVATIONS, _ASKED_FOR),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.SYNCS_GONE,
        narrower=WhatIf.PICKS_GONE,
        basis="the waits removed",
        may_break="Masked-out elements are computed; keep NaN and infinity out of them.",
        code="""\
import torch

# was: loss = losses[mask].mean()
loss = torch.where(mask, losses, 0.0).sum() / mask.sum().clamp(min=1)""",
        undo="Index with the mask again.",
        verify="No cudaStreamSynchronize at that line.",
        sources=(_TUNING, _SYNC_MODE),
    ),
    Fix(
        id="FX503",
        title="Bring values back without waiting",
        addresses=("BN601", "BN702"),
        what_to_change="Copy metrics into pinned memory with non_blocking=True, record an event, and read"
        " them one step later, when the copy has arrived.",
        when=(ON_GPU,),
        unless=(_FOR_SIZES, _FOR_COPIES, _FOR_ACTIVATIONS, _ASKED_FOR),
        what_if=WhatIf.SYNCS_GONE,
        basis="the waits removed",
        may_break="Reading before the event has completed gives wrong values.",
        code="""\
import torch


class Later:
    \"\"\"A scalar of the step before, without a wait in this one.\"\"\"

    def __init__(self):
        self.host = torch.zeros(1, pin_memory=True)
        self.ready = torch.cuda.Event()

    def put(self, value):
        self.host.copy_(value.detach().reshape(1), non_blocking=True)
        self.ready.record()

    def get(self):
        self.ready.synchronize()  # a step later this returns at once
        return float(self.host)""",
        undo="Use .item() again.",
        verify="The host does not wait in the step.",
        sources=(recipe("intermediate/pinmem_nonblock.html", "A guide on pin_memory() and non_blocking"),),
    ),
    Fix(
        id="FX521",
        title="Make constants on the device once",
        addresses=("BN601",),
        what_to_change="torch.tensor(..., device=device) and .to(device) of a new tensor copy from the host, which"
        " waits for the copy each time. Make such a tensor once and keep it as a buffer. A single number needs"
        " no tensor. A batch is copied from pinned memory with non_blocking=True.",
        when=(ON_GPU, _FOR_COPIES),
        what_if=WhatIf.SYNCS_GONE,
        basis="the waits removed",
        may_break="A buffer is shared by all steps: do not change it in place.",
        code="""\
import torch


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        scale = torch.tensor([0.5, 2.0, 1.0])
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, x):
        # was: x * torch.tensor([0.5, 2.0, 1.0], device=x.device)
        return x * self.scale""",
        undo="Make it in each step again.",
        verify="No copy to the device at that line.",
        can_try=True,
        sources=(_TUNING, _SYNC_MODE),
    ),
    Fix(
        id="FX504",
        title="Move side work out of the step",
        named="Take {call} out of the step",
        addresses=("BN904", "BN806", "BN901"),
        takes_out=True,
        what_to_change="Do it less often, or elsewhere: copy the state to the host and write it in a thread,"
        " log from a queue, validate every N steps or in another process. Step many environments at once, in"
        " processes of their own.",
        unless=(
            given("host.rare", "==", "evaluation", "it is an evaluation every few steps"),
            given("host.rare", "==", _ACTS, "it is a model that acts every few steps"),
            given("host.before_update_share", ">=", 0.5, "most of it makes what the update needs"),
            given("host.unnamed", "==", True, "samples of the stack show no such work"),
        ),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.HOST_WORK_GONE,
        basis="the host work named here removed",
        may_break="A crash loses what was not yet written; wait for the thread before the process ends.",
        code="""\
import threading

import torch

for step, batch in enumerate(loader, start=1):
    loss = train_step(batch)
    if step % 100 == 0:  # not in every step
        print(step, loss.item())


def save_in_background(model, path):
    state = model.state_dict()
    state = {k: v.detach().to("cpu", copy=True) for k, v in state.items()}
    thread = threading.Thread(target=torch.save, args=(state, path))
    thread.start()
    return thread


writer = save_in_background(model, "checkpoint.pt")
writer.join()  # before the next one, or at the end""",
        undo="Save in the loop again.",
        verify="'other host work' falls below 2 % of the step.",
        can_try=True,
        leaves_out=True,
        options={"function": Option(kind="str", of_run="{host.leaves_out}", needed=True)},
        shortens=(
            Shortens(part="between steps", change="a tenth as often", removes=0.9),
            Shortens(part="checkpoints", change="half as often", removes=0.5),
        ),
        sources=(
            recipe(
                "recipes/distributed_async_checkpoint_recipe.html",
                "Asynchronous saving with Distributed Checkpoint",
            ),
        ),
    ),
    Fix(
        id="FX532",
        title="Do for all at once what a loop does one by one",
        named="Do for all at once what {call} does one by one",
        addresses=("BN904", "BN101"),
        for_rounds=True,
        what_to_change="The call goes through tensors, samples or nodes in a Python loop, with a few small operations"
        " in each round. Weights, gradients and averages are lists of tensors: torch._foreach_ functions handle all of a"
        " list in a few launches. Samples, priorities and nodes of a tree fit into arrays: NumPy or torch handle"
        " a whole batch in one operation per level. Images of one size are one tensor, and what differs by image is"
        " a factor that broadcasts.",
        keeps_what="FX504",
        what_if_bound=True,
        bound_weight=_LOOP_WEIGHT,
        basis="the step without it; the same work in a few operations takes time, too",
        risk=Risk.NEEDS_REVIEW,
        may_break="Rounds that change the same place: where an index occurs twice, only one of its values is kept.",
        code="""\
import torch

norms = torch._foreach_norm(grads)  # was: [g.norm() for g in grads]
ids = torch.tensor([numbers[word] for word in words])  # not one by one
images = jitter(images, factors.view(-1, 1, 1, 1))  # not image by image
with torch.no_grad():
    # was: for a, w in zip(averages, weights): a.lerp_(w, 1 - m)
    torch._foreach_lerp_(averages, weights, 1 - m)""",
        undo="Loop again.",
        verify="The call is gone from the lines that take longest; the loss is the same.",
        sources=(
            docs("generated/torch.optim.swa_utils.AveragedModel.html", "AveragedModel"),
            source("https://github.com/lightly-ai/lightly/pull/1899", "lightly: averages of weights"),
            source("https://github.com/AgileRL/AgileRL/pull/541", "AgileRL: priorities of a replay"),
        ),
    ),
    Fix(
        id="FX511",
        title="Evaluate less often, or on fewer batches",
        named="Call {call} less often, or on fewer batches",
        for_calls=("evaluation",),
        addresses=("BN904", "BN901"),
        what_to_change="An evaluation every few steps can cost more than the steps between. Evaluate once"
        " per epoch, or every few hundred steps on a fixed part of the data. Use the largest batch that"
        " fits and torch.inference_mode(). Add results up on the device instead of calling .item() per"
        " batch.",
        when=seen("host.rare", "==", "evaluation", "some steps hold an evaluation"),
        risk=Risk.NEEDS_REVIEW,
        may_break="Early stopping and best-checkpoint rules see fewer points.",
        what_if=WhatIf.HOST_WORK_GONE,
        what_if_bound=True,
        basis="the step without any evaluation, the most that rarer evaluations can save",
        code="""\
import torch


@torch.inference_mode()
def evaluate(model, batches):
    right, seen = torch.zeros((), device=device), 0
    for x, y in batches:
        right += (model(x.to(device)).argmax(1) == y.to(device)).sum()
        seen += len(y)
    return right.item() / seen  # one read for the whole set


for step, batch in enumerate(loader, start=1):
    train_step(batch)
    if step % 500 == 0:
        evaluate(model, val_loader)""",
        undo="Evaluate as often as before.",
        verify="'other host work' falls below 2 % of the step.",
        shortens=(Shortens(part="validation", change="on a tenth of the batches", removes=0.9),),
        sources=(docs("generated/torch.autograd.grad_mode.inference_mode.html", "torch.inference_mode"),),
    ),
    Fix(
        id="FX515",
        title="Collect more samples per forward pass",
        addresses=("BN901",),
        what_to_change="Every few steps the model runs without gradients and in training mode, many times"
        " on little: a rollout collects what the next steps train on. Step more environments with one"
        " forward pass, step them in processes of their own or on the device, and keep observations and"
        " actions there. A model that writes word by word should keep the keys and values of what it has"
        " written (use_cache): each pass then computes the newest word only. If it is a test set, call"
        " model.eval() and test less often.",
        when=seen("host.rare", "==", _ACTS, "some steps hold forward passes without gradients"),
        risk=Risk.NEEDS_REVIEW,
        may_break="More environments and fewer steps of each change the batches, and learning with them.",
        what_if=WhatIf.HOST_WORK_GONE,
        what_if_bound=True,
        basis="the step without any such forward passes and what runs between them",
        code="""\
import gymnasium as gym
import torch

envs = gym.vector.AsyncVectorEnv([make_env] * 64)  # was SyncVectorEnv, of 4
seen, _ = envs.reset()
with torch.inference_mode():
    for step in range(steps // 16):  # as many samples as before
        actions = policy(torch.as_tensor(seen)).argmax(1)
        seen, rewards, ended, cut, infos = envs.step(actions.numpy())""",
        undo="Step as few environments as before.",
        verify="'other host work' falls; samples per second rise.",
        sources=(
            source("https://gymnasium.farama.org/api/vector/", "Gymnasium: vectorized environments"),
            source("https://github.com/meta-pytorch/torchtune/pull/2066", "torchtune: rollouts with a cache"),
        ),
    ),
    Fix(
        id="FX516",
        title="Scale gradients only where they are too large",
        named="Scale gradients only where they are too large",
        for_calls=("torch.nn.utils.clip_grad.",),
        addresses=("BN904",),
        what_to_change="clip_grad_norm_ reads all gradients for their norm and then writes all of them, times"
        " 1 where the norm is small enough. Without a GPU the norm can be looked at for nothing: scale only"
        " where it is too large. Accumulated gradients need clipping once, before the update.",
        when=(_CPU,),
        may_break="Nothing where few steps are clipped; it saves nothing where all are.",
        what_if=WhatIf.HOST_WORK_GONE,
        what_if_bound=True,
        basis="the step without clipping; the norm is still to be read",
        code="""\
import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

gradients = [p.grad for p in model.parameters() if p.grad is not None]
norm = get_total_norm(gradients)
if norm > 1.0:
    clip_grads_with_norm_(model.parameters(), 1.0, norm)""",
        undo="Call clip_grad_norm_ again.",
        verify="The line takes about half as long; the loss is the same.",
        sources=(docs("generated/torch.nn.utils.get_total_norm.html", "torch.nn.utils.get_total_norm"),),
    ),
    Fix(
        id="FX505",
        title="Keep Python's garbage collector out of the step",
        addresses=("BN902",),
        what_to_change="A full collection visits every object of the process. With a large model or dataset"
        " in Python objects it takes many ms, at an arbitrary step. Freeze objects that live until the"
        " end, and collect at chosen steps.",
        when=(given("gc.ms_per_step", ">", 0.0, "the collector runs during steps"),),
        what_if=WhatIf.GC_FREE,
        basis="the collector's time removed",
        may_break="Reference cycles live until the next chosen collection, so memory can grow in between.",
        code="""\
import gc

gc.collect()
gc.freeze()  # model, optimizer and dataset are not walked again
gc.disable()
for step, batch in enumerate(loader):
    train_step(batch)
    if step % 1000 == 999:
        gc.collect()""",
        undo="gc.enable()",
        verify="No collector time in the steps; memory does not grow.",
        can_try=True,
        shortens=(Shortens(part="garbage collections", change="at chosen steps only", at_best=True),),
        sources=(source("https://docs.python.org/3/library/gc.html", "Python: gc"),),
    ),
    Fix(
        id="FX506",
        title="Use no more threads than find a core",
        addresses=("BN903",),
        what_to_change="Intra-op threads beyond the number of cores that this process may use wait for one"
        " another. DataLoader workers and other processes need cores too: beside busy ones try one thread.",
        when=(_CPU,),
        basis="not predicted: it must be tried",
        may_break="Sums over a different number of threads differ in the last bits.",
        code="""\
import os

import torch

# And OMP_NUM_THREADS, for libraries with threads of their own.
torch.set_num_threads(len(os.sched_getaffinity(0)))""",
        fills={"len(os.sched_getaffinity(0))": "{threads.useful}"},
        undo="Remove the line.",
        verify="The step time and its spread fall.",
        can_try=True,
        options={"threads": Option(kind="int", of_run="{threads.useful}", measured="cores")},
        environment=(
            Variable(name="OMP_NUM_THREADS", value="{threads}"),
            Variable(name="MKL_NUM_THREADS", value="{threads}"),
        ),
        arithmetic=Arithmetic.REORDERED,
        sources=(
            _THREADS,
            recipe("recipes/recipes/tuning_guide.html", "Tuning guide: CPU specific optimizations"),
        ),
    ),
    Fix(
        id="FX522",
        title="Give the process back the cores it began with",
        addresses=("BN106", "BN903"),
        what_to_change="Something has taken cores away from this process since its start: a library binds the"
        " thread that imports it, or the script does so. Its threads and worker processes inherit that. Note the"
        " cores before other imports, and use them again. Or find what takes them: OMP_PROC_BIND, KMP_AFFINITY,"
        " GOMP_CPU_AFFINITY or a call of sched_setaffinity.",
        when=seen("host.cores_taken", ">", 0, "the process may use fewer cores than at its start"),
        what_if=WhatIf.WORKERS_ON_CORES,
        basis="production of batches without waiting for a core",
        code="""\
import os

cores = os.sched_getaffinity(0)  # before other imports

from torch.utils.data import DataLoader


def use_all_cores(worker: int) -> None:
    os.sched_setaffinity(0, cores)


os.sched_setaffinity(0, cores)  # after them
loader = DataLoader(dataset, num_workers=4, worker_init_fn=use_all_cores)""",
        undo="Remove both calls.",
        verify="Each worker has a core of its own; batches arrive sooner.",
        can_try=True,
        sources=(
            source(
                "https://github.com/pytorch/pytorch/issues/101850", "pytorch #101850: workers on one core"
            ),
            source("https://github.com/aws/sagemaker-python-sdk/issues/3952", "sagemaker-python-sdk #3952"),
            source("https://man7.org/linux/man-pages/man2/sched_setaffinity.2.html", "sched_setaffinity(2)"),
        ),
    ),
    Fix(
        id="FX507",
        title="Bind the process to one NUMA node",
        addresses=("BN903",),
        note=True,
        what_to_change="On a machine with several sockets, keep threads and their memory on one node. Start"
        " with `numactl --cpunodebind=0 --membind=0` or torch.backends.xeon.run_cpu.",
        basis="not predicted: the replay does not model memory nodes",
        may_break="The process gets the cores of one node only.",
        code="""\
import os
from pathlib import Path

node = Path("/sys/devices/system/node/node0/cpulist")
if node.exists():
    cores = set()
    for part in node.read_text().strip().split(","):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores & allowed or allowed)""",
        undo="Start the script without it.",
        verify="numastat -p shows memory on one node; step time and spread fall.",
        can_try=True,
        sources=(
            recipe("recipes/xeon_run_cpu.html", "Optimizing CPU performance on Intel Xeon with run_cpu"),
        ),
    ),
    Fix(
        id="FX508",
        title="Copy the next batch while this one computes",
        addresses=("BN702", "BN701"),
        what_to_change="Pinned, non-blocking copies on the compute stream still queue behind its kernels."
        " Issue the next batch's copy on a separate stream and wait for it when it is needed.",
        when=(ON_GPU,),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.COPIES_GONE,
        basis="every copy hidden behind other work",
        may_break="Without wait_stream or record_stream, memory is reused too early.",
        code="""\
import torch


def on_device(loader, device):
    copies = torch.cuda.Stream()
    ahead = None
    for batch in loader:
        with torch.cuda.stream(copies):
            coming = [t.to(device, non_blocking=True) for t in batch]
        if ahead is not None:
            yield ahead
        torch.cuda.current_stream().wait_stream(copies)
        for tensor in coming:
            tensor.record_stream(torch.cuda.current_stream())
        ahead = coming
    if ahead is not None:
        yield ahead""",
        undo="Copy in the loop again.",
        verify="Copies and kernels overlap in the trace; exposed copies fall.",
        sources=(docs("notes/cuda.html#cuda-streams", "CUDA streams"),),
    ),
    Fix(
        id="FX509",
        title="Send fewer bytes to the device",
        addresses=("BN702", "BN701"),
        what_to_change="Send images as uint8 and tokens as int32, and convert and normalise on the device."
        " uint8 takes a quarter of the bytes of fp32. If the data fits on the device, keep it there.",
        when=(ON_GPU, given("copies.h2d_ms", ">", 0.0, "batches are copied to the device")),
        what_if=WhatIf.COPIES_GONE,
        what_if_bound=True,
        basis="copies cost nothing, the most that sending less can save",
        may_break="Augmentation in floating point must move to the device too.",
        code="""\
for images, labels in loader:  # images are uint8 here
    images = images.to(device, non_blocking=True).float().div_(255)
    labels = labels.to(device, non_blocking=True)""",
        undo="Convert in the dataset again.",
        verify="Bytes copied per step fall to a quarter.",
        sources=(recipe("intermediate/pinmem_nonblock.html", "A guide on pin_memory() and non_blocking"),),
    ),
    Fix(
        id="FX523",
        title="Keep on the device what does not change",
        addresses=("BN702", "BN701"),
        what_to_change="What is copied here stays on the host as it is, and is copied again: several passes over"
        " one rollout, a dataset that is one tensor, a mask. Copy all of it once and take each batch from that"
        " on the device.",
        when=(ON_GPU, *seen("copies.kept_share", ">", 0.0, "copies are made of memory that does not change")),
        unless=(given("copies.kept_fits", "==", False, "the device has no room for it"),),
        what_if=WhatIf.COPIES_GONE,
        narrower=WhatIf.COPIES_KEPT,
        basis="no copy of what stays as it is",
        may_break="It takes memory of the device. What is changed in place there stays changed.",
        code="""\
import torch

samples = [torch.randn(512, 64), torch.randn(512, 1)]
samples = [column.to(device) for column in samples]  # once
for rows in torch.randperm(512, device=device).split(128):
    inputs, targets = (column[rows] for column in samples)""",
        undo="Copy each batch again.",
        verify="No copy to the device at that line.",
        can_try=True,
        sources=(
            source("https://github.com/ray-project/ray/pull/17371", "Ray RLlib: load the rollout once"),
        ),
    ),
    Fix(
        id="FX524",
        title="Compute on the device, not on the host",
        addresses=("BN701", "BN702", "BN601", "BN901"),
        what_to_change="Operators work on tensors of the host in the middle of the step: random numbers, a sort or"
        " a mask that are drawn, sorted or filled there and copied to the device. Or values of the device are"
        " copied back, worked on in NumPy or in a Python loop, and sent there again. Make such a tensor with"
        " device=device (ones_like and its kin do), and leave what the device has made where it is.",
        when=(ON_GPU, if_known("host.on_device_ms")),
        what_if=WhatIf.OPERATORS_ON_DEVICE,
        bound_weight=_DETOUR_WEIGHT,
        basis="what the host computes and the copies around it gone",
        may_break="Random numbers of the device are others than those of the host.",
        code="""\
import torch

probabilities = torch.rand(8, 100, device=device)
# was: torch.multinomial(probabilities.cpu(), 1).to(device)
drawn = torch.multinomial(probabilities, 1)
# was: torch.ones(probabilities.shape).to(device)
weights = torch.ones_like(probabilities)""",
        undo="Compute it on the host again.",
        verify="'other host work' and the copies at that line are gone.",
        sources=(
            source(
                "https://github.com/rasbt/reasoning-from-scratch/pull/178", "Tokens drawn on the GPU: 20 %"
            ),
            source(
                "https://github.com/signatrix/efficientdet/issues/30",
                "Targets made on the GPU: about 4 times",
            ),
        ),
    ),
    Fix(
        id="FX510",
        title="Make fewer, larger operations",
        general="unpriced",
        addresses=("BN503", "BN501"),
        what_to_change="A Python loop over samples, heads, tasks or parameters dispatches every operator"
        " once per iteration. Turn the loop into a tensor dimension (batched matmul, vmap, index_add_),"
        " or use torch._foreach_ functions on lists.",
        unless=(
            given("loop.carried", "==", True, "the loop's rounds build on one another"),
            given("dispatch.in_optimizer", ">=", 0.5, "most of the dispatch is the optimizer's"),
        ),
        what_if=WhatIf.LOOP_GONE,
        bound_weight=_LOOP_WEIGHT,
        what_if_bound=True,
        risk=Risk.NEEDS_REVIEW,
        may_break="The batched form holds all intermediate results at once.",
        basis="the loop removed, the most that one operator for all its iterations can save",
        code="""\
import torch

# was: out = torch.stack([x @ w for x, w in zip(inputs, weights)])
out = torch.bmm(inputs, weights)
# or, for a function of one sample: out = torch.vmap(one)(inputs, weights)""",
        undo="Loop again.",
        verify="Operators (launches) per step fall.",
        sources=(
            docs("generated/torch.vmap.html", "torch.vmap"),
            docs("generated/torch.bmm.html", "torch.bmm"),
        ),
    ),
    Fix(
        id="FX513",
        title="Run the loop over time steps in one operator",
        addresses=("BN503",),
        what_to_change="Each iteration of this Python loop needs the one before, so its operators are"
        " dispatched once per iteration. nn.LSTM, nn.GRU and nn.RNN run all iterations in one call. For"
        " a cell of your own, move out of the loop what does not need the state: the input's projection"
        " for all steps is one matmul. A simulator can step many environments at once.",
        when=seen("loop.carried", "==", True, "the loop's rounds build on one another"),
        what_if=WhatIf.LOOP_GONE,
        bound_weight=_LOOP_WEIGHT,
        what_if_bound=True,
        risk=Risk.NEEDS_REVIEW,
        may_break="nn.GRU and nn.LSTM differ from other cells in details: compare the outputs.",
        basis="the loop removed, the most that one operator for all its iterations can save",
        code="""\
import torch

# was: for t in range(steps): state = cell(inputs[:, t], state)
rnn = torch.nn.GRU(features, hidden, batch_first=True)
outputs, state = rnn(inputs)""",
        undo="Loop again.",
        verify="Operators (launches) per step fall.",
        sources=(docs("generated/torch.nn.GRU.html", "torch.nn.GRU"),),
    ),
    Fix(
        id="FX528",
        title="Call the model once, on all of its inputs",
        addresses=("BN507",),
        what_to_change="The model is called several times before one backward, on inputs of the same shape (views"
        " of a batch, pairs, triplets). Join them along the first dimension, call it once, and take the outputs"
        " apart: a third or a half of the operators, forward and backward, each on more.",
        what_if=WhatIf.CALLS_JOINED,
        risk=Risk.NEEDS_REVIEW,
        may_break="BatchNorm takes its statistics over all inputs together, and dropout draws other masks. The"
        " joined call holds no more activations than its parts held before the backward.",
        basis="what all calls but the first dispatch; the work of the operators stays",
        code="""\
import torch

# was: a, b = model(first), model(second)
a, b = model(torch.cat([first, second])).chunk(2)""",
        undo="Call it for each.",
        verify="Operators (launches) per step fall; the loss is the same up to rounding.",
        sources=(
            source(
                "https://github.com/MPI-Dortmund/tomotwin-cryoet/pull/105",
                "tomotwin-cryoet: one pass for anchor, positive and negative",
            ),
        ),
    ),
    Fix(
        id="FX514",
        title="Replace the Python between batch and update",
        addresses=("BN901",),
        what_to_change="In the forward, or between it and the update, plain Python works on values of the"
        " batch or on the model: NumPy on single rows, lists, dictionaries, a solver, a look through all"
        " parameters. Compute once what is the same in every step. Write the rest as operators over the"
        " whole batch. What cannot be written that way (an assignment, a simulator) can run in a pool of"
        " processes for all samples at once.",
        when=seen("host.before_update_share", ">=", 0.5, "most of it makes what the update needs"),
        what_if=WhatIf.PYTHON_GONE,
        what_if_bound=True,
        risk=Risk.NEEDS_REVIEW,
        may_break="Summing in another order changes the last bits.",
        basis="the step without it, before the cost of the operators that replace it",
        code="""\
import torch

# was: weights = torch.tensor([1 - p[i, int(y[i])] for i in range(len(p))])
weights = 1 - p.gather(1, y[:, None])[:, 0]""",
        undo="Write it in Python again.",
        verify="'other host work' falls below 2 % of the step; the loss is the same.",
        sources=(docs("generated/torch.gather.html", "torch.gather"),),
    ),
    Fix(
        id="FX517",
        title="Turn the checks of torch.distributions off",
        addresses=("BN505", "BN601"),
        what_to_change="Each distribution checks its parameters when it is made, and the values in log_prob:"
        " comparisons over all of them, and on a GPU a wait for each answer. Switch the checks off once the"
        " script has run without a complaint.",
        when=seen("distributions.checked", "==", True, "distributions check their arguments"),
        may_break="A parameter or value that is out of range, or NaN, is no longer an error.",
        what_if=WhatIf.DISTRIBUTIONS_UNCHECKED,
        what_if_bound=True,
        only_answered=True,  # otherwise no distribution is in the step
        basis="the step without the calls that check; what they compute stays",
        code="""\
import torch

torch.distributions.Distribution.set_default_validate_args(False)""",
        undo="torch.distributions.Distribution.set_default_validate_args(True)",
        verify="aten::is_nonzero is gone from these lines.",
        can_try=True,
        edits=(
            StatementEdit(
                statement="torch.distributions.Distribution.set_default_validate_args(False)",
                setting="set_default_validate_args",
            ),
        ),
        sources=(
            docs("distributions.html#torch.distributions.distribution.Distribution", "torch.distributions"),
        ),
    ),
    Fix(
        id="FX518",
        title="Remove gc.collect() from the loop",
        named="Take {call} out of the step",
        for_calls=("gc.",),
        addresses=("BN904",),
        what_to_change="gc.collect() visits every object of the process, and frees only what refers to itself in"
        " a circle. Tensors are freed without it as soon as nothing refers to them. Python collects by itself,"
        " too: after set-up or between epochs is early enough for a call.",
        what_if=WhatIf.GC_FREE,
        basis="the step without that line",
        may_break="Reference cycles that hold tensors live until Python collects them by itself.",
        code="""\
for inputs, targets in loader:
    optimizer.zero_grad(set_to_none=True)
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
    # no gc.collect() here""",
        undo="Put the call back.",
        verify="No collector time in the steps; memory does not grow.",
        can_try=True,
        edits=(RemovalEdit(call="collect"),),
        sources=(source("https://docs.python.org/3/library/gc.html", "Python: gc"),),
    ),
    Fix(
        id="FX533",
        title="Train without a debugger or coverage",
        addresses=("BN911",),
        what_to_change="Each line or call of Python goes through a function: of a debugger, of coverage or of a"
        " profiler of Python. Start the training without it, or end it where the steps begin.",
        when=(if_known("python.traced"),),
        risk=Risk.SAFE,
        basis="not predicted: it must be tried",
        code="""\
import sys

sys.settrace(None)
sys.setprofile(None)""",
        undo="Attach it again.",
        verify="Python's share of the step falls.",
        can_try=True,
        sources=(
            source("https://docs.python.org/3/library/sys.html#sys.settrace", "Python: sys.settrace"),
            source("https://github.com/pytorch/pytorch/issues/134191", "Steps under a debugger"),
        ),
    ),
    Fix(
        id="FX519",
        title="End the script's own profiler",
        addresses=("BN905",),
        what_to_change="A profiler that records every step belongs into a run of its own. Remove it, or give"
        " it a schedule that ends.",
        when=seen("profiler.always", "==", True, "the script's profiler records every step"),
        risk=Risk.SAFE,
        basis="not predicted: it must be tried",
        code="""\
from torch import profiler

# Six steps, and then no more.
few = profiler.schedule(wait=1, warmup=2, active=3, repeat=1)
with profiler.profile(schedule=few) as recorded:
    for inputs, targets in loader:
        loss = loss_fn(model(inputs), targets)
        recorded.step()""",
        undo="Let it record on.",
        verify="Steps after the sixth are shorter.",
        can_try=True,
        sources=(
            docs("profiler.html#torch.profiler.schedule", "torch.profiler.schedule"),
            source("https://github.com/facebookresearch/dlrm/issues/197", "Profiling left on"),
        ),
    ),
    Fix(
        id="FX526",
        title="Have the other thread wait, or work elsewhere",
        named="Have {call} wait, or work elsewhere",
        addresses=("BN908",),
        what_to_change="A thread of the program takes a core that the training needs. If it asks again and again"
        " whether it may go on, have it block: put() and get() of a queue with a size, Event.wait(), or at least"
        " a sleep of some ms. If it computes, run it in another process, or less often.",
        basis="the time for which the training had no core",
        risk=Risk.SAFE,
        may_break="A thread that blocks must be woken when the program ends: put a last item, or make it a daemon.",
        code="""\
import queue

ready = queue.Queue(maxsize=4)
ready.put("batch")  # blocks; was: while ready.full(): time.sleep(0)
batch = ready.get()""",
        undo="Let it ask again.",
        verify="The thread uses next to no processor time (top -H); the step is shorter.",
        sources=(
            source(
                "https://github.com/ray-project/ray/pull/16162", "ray: a full queue is polled without end"
            ),
            source("https://github.com/rwth-i6/returnn/issues/1479", "returnn: a thread that watches memory"),
        ),
    ),
    Fix(
        id="FX531",
        title="Set no default device while training",
        addresses=("BN508",),
        what_to_change="While torch.set_default_device is in force, or inside `with torch.device(...)`, each call"
        " of a function of torch's goes through Python once more. Use it to build the model, end it before the"
        " loop, and name the device where tensors are made there.",
        when=seen("calls.modes", "contains", "torch.utils._device.DeviceContext", "a default device is set"),
        what_if=WhatIf.MODES_GONE,
        basis="calls without that look",
        may_break="A tensor that is made without a device is on the CPU then: name the device.",
        code="""\
import torch

torch.set_default_device(device)
model = Net()
torch.set_default_device(None)

for inputs, targets in loader:
    noise = torch.randn(inputs.shape, device=device)""",
        undo="Leave the default device set.",
        verify="Operators follow each other sooner; the loss is the same.",
        can_try=True,
        sources=(
            docs("generated/torch.set_default_device.html", "torch.set_default_device"),
            source(
                "https://github.com/pytorch/pytorch/issues/92701",
                "set_default_device and its cost for each call",
            ),
            source("https://github.com/pymc-devs/pytensor/pull/820", "8 to 11 ms faster without it"),
        ),
    ),
    Fix(
        id="FX530",
        title="Spare the Python of a function",
        named="Spare the Python of {call}",
        addresses=("BN910",),
        what_to_change="The model, the loss or the update runs this function or loop in every step, and no"
        " operator is called in it. Where it checks shapes, types or values: check the first steps only, or while"
        " testing. Where it looks something up, parses or makes names: do so once, before the loop, and keep the"
        " result. Where it searches a list: use a dict or a set. Where it goes over a list for each of many: go over"
        " it once, or cut it into their parts.",
        what_if_bound=True,
        basis="the step without that function or loop",
        risk=Risk.NEEDS_REVIEW,
        may_break="A check that is off finds nothing any more.",
        code="""\
from functools import lru_cache


@lru_cache(maxsize=None)  # was: parsed again for each tensor
def axes_of(note):
    return tuple(note.split())


def check_shape(tensor, note, step):
    if step >= 10:  # shapes do not change after the first steps
        return
    assert tensor.dim() == len(axes_of(note)), note""",
        undo="Call it in each step again.",
        verify="The function is gone from the stack samples; the loss is the same.",
        sources=(
            source(
                "https://github.com/patrick-kidger/jaxtyping/issues/315",
                "Checks of shapes at each assignment",
            ),
            docs("generated/torch.compile.html", "torch.compile"),
        ),
    ),
    Fix(
        id="FX529",
        title="Make in the model's forward no tensor of a list",
        named="Call {call} once, not in each forward",
        addresses=("BN907",),
        what_to_change="A list that the model makes a tensor of is mostly the same in each step: columns, scales,"
        " offsets. torch reads it value by value each time, and copies it to the device. Make the tensor once,"
        " and keep it as a buffer; .to(device) of the model moves it along.",
        when=_IN_FORWARD,
        what_if_bound=True,
        bound_weight=_ARRAY_WEIGHT,
        basis="the step without that line",
        may_break="A list that changes between steps has to be given as a tensor.",
        code="""\
import torch


class Spread(torch.nn.Module):
    def __init__(self, columns, width):
        super().__init__()
        self.width = width
        columns = torch.tensor(columns)
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, update):
        # was: torch.tensor(self.columns, device=update.device)
        full = update.new_zeros(*update.shape[:-1], self.width)
        return full.index_copy(-1, self.columns, update)""",
        undo="Make it in each forward again.",
        verify="No copy to the device at that line; the outputs are the same.",
        conflicts=("FX521",),
        can_try=True,
        sources=(_TUNING,),
    ),
    Fix(
        id="FX520",
        title="Make one array of the list, then the tensor",
        named="Make one array of what {call} gets",
        addresses=("BN907",),
        unless=_IN_FORWARD[1:],
        what_to_change="torch reads a list value by value, and of a list of arrays each value through a Python"
        " object. NumPy copies whole arrays: np.stack for arrays of one shape, np.array for plain numbers."
        " torch.from_numpy takes the result without another copy. Of one array it does so, too, where"
        " torch.tensor copies. Tensors in a list are for torch.stack.",
        what_if_bound=True,
        bound_weight=_ARRAY_WEIGHT,
        basis="the step without that line; making the array takes time, too",
        may_break="np.array makes float64 of Python's numbers, and int64 of integers, as NumPy does: give it"
        " the type that the tensor should have. from_numpy shares its memory with the array.",
        code="""\
import numpy as np
import torch

# was: torch.tensor(arrays)
inputs = torch.from_numpy(np.stack(arrays))""",
        undo="Call torch.tensor on the list again.",
        verify="The line takes about a hundredth for arrays, a quarter for plain numbers; the values are the"
        " same.",
        sources=(
            docs("generated/torch.from_numpy.html", "torch.from_numpy"),
            source(
                "https://github.com/pytorch/pytorch/issues/13918",
                "torch.tensor of a list of arrays",
                "extremely slow",
            ),
            source("https://github.com/facebookresearch/ParlAI/issues/4470", "ParlAI"),
        ),
    ),
    Fix(
        id="FX512",
        title="Turn anomaly detection off",
        addresses=("BN504", "BN501"),
        what_to_change="torch.autograd.set_detect_anomaly(True) formats a Python traceback for every forward"
        " operator and checks every gradient for NaN in backward. It is meant for finding one NaN, not"
        " for training.",
        when=seen("debug.anomaly", "==", True, "anomaly detection is on"),
        may_break="A NaN is no longer traced to the operator that made it: turn detection on again to find"
        " one.",
        what_if=WhatIf.ANOMALIES_IGNORED,
        basis="what it adds to each operator and to backward removed",
        code="""\
import torch

torch.autograd.set_detect_anomaly(False)""",
        undo="torch.autograd.set_detect_anomaly(True)",
        verify="Operators per step fall (the NaN checks are gone), and the step time with them.",
        can_try=True,
        edits=(RemovalEdit(call="set_detect_anomaly"),),
        sources=(docs("autograd.html#torch.autograd.detect_anomaly", "torch.autograd.detect_anomaly"),),
    ),
    Fix(
        id="FX525",
        title="Unset CUDA_LAUNCH_BLOCKING",
        addresses=("BN506",),
        what_to_change="With CUDA_LAUNCH_BLOCKING=1 each launch waits until its kernel has ended, so host and"
        " device never work at the same time. It is meant for finding the operator that fails on the"
        " device, not for training. Take it out of the script, the shell or the job's file.",
        when=seen("debug.launch_blocking", "==", True, "CUDA_LAUNCH_BLOCKING=1 is set"),
        may_break="An error on the device is reported later, by another line than the one that caused it.",
        what_if=WhatIf.LAUNCHES_ASYNC,
        what_if_bound=True,
        basis="without the calls that launch",
        code="""\
import os

os.environ.pop("CUDA_LAUNCH_BLOCKING", None)  # before CUDA starts""",
        undo="Set CUDA_LAUNCH_BLOCKING=1 again.",
        verify="The device is busy for more of the step, and calls of cudaLaunchKernel take microseconds.",
        sources=(
            docs("notes/cuda.html#asynchronous-execution", "CUDA semantics"),
            source("https://github.com/jishengpeng/WavTokenizer/issues/17", "WavTokenizer"),
            source("https://github.com/OpenRLHF/OpenRLHF/pull/46", "OpenRLHF"),
            source("https://github.com/k2-fsa/icefall/pull/554", "icefall"),
            source("https://github.com/RLinf/RLinf/pull/642", "RLinf"),
        ),
    ),
    Fix(
        id="FX527",
        title="Remove torch.cuda.synchronize() from the step",
        addresses=("BN601",),
        what_to_change="torch.cuda.synchronize() waits until the device has finished everything queued, and the"
        " device is idle until the host launches again. A loop needs none: results are waited for where they are"
        " read. To time a step, record torch.cuda.Event(enable_timing=True) on both sides, and read them later.",
        when=(ON_GPU,),
        what_if=WhatIf.ASKED_WAITS_GONE,
        basis="the calls removed",
        may_break="Times taken around a call no longer include the device's work. A copy to the host with"
        " non_blocking=True must still be waited for: by an event that is recorded behind it.",
        code="""\
for inputs, targets in loader:
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
    # no torch.cuda.synchronize() here""",
        undo="Put the call back.",
        verify="No cudaDeviceSynchronize in the steps of the trace.",
        can_try=True,
        edits=(RemovalEdit(call="synchronize"),),
        only_answered=True,
        sources=(_TUNING, docs("notes/cuda.html#asynchronous-execution", "CUDA semantics")),
    ),
)
