"""A torch 2 trace in the words that torch-tb-profiler 0.4.3 understands, event by event.

In: events as they stand in the file, and notes on what one event alone cannot tell. Out: the events of
the copy. The stock plugin was written for torch 1.9 and dropped in 2026; on today's traces it counts
steps twice, loader, runtime and NCCL time not at all, and recommends mixed precision to runs that have
it. What it looks for stands in its `event_parser.py`, `trace.py` and `tensor_core.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..model.codes import Part
from ..timeline.lanes.labels import Work, label_of
from ..timeline.trace.dialect import Kind, normalise
from ..timeline.trace.kernels import classify

Event: TypeAlias = dict[str, Any]

LANE = "Diagnosis"
"""The process that the lane is drawn as."""
_LOADER = "enumerate(DataLoader)#"
_LOADER_END = ".__next__"
_OPERATOR_LABEL = re.compile(r"^Optimizer\.|^(Distributed)?DataParallel\.forward$")
"""Labels that the plugin reads only if they are operators, as they were before torch 1.13."""
_TENSOR_CORE_MARKS = (
    "h884", "s884", "h1688", "s1688", "hmma", "i8816", "16816", "dgrad_1x1_stride_2x2",
    "first_layer_wgrad_kernel", "conv1x1", "conv2d_c1_k1", "direct_group", "xmma_implicit_gemm",
    "xmma_sparse_conv", "xmma_warp_specialized_implicit_gemm", "xmma_gemm", "xmma_sparse_gemm", "c1688",
)  # fmt: skip
"""What the plugin knows tensor-core kernels by (`TC_Allowlist`): nothing newer than Ampere."""
_TENSOR_CORE_TAG = " [tensor cores: hmma]"
_COLLECTIVES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?reduce|barrier", re.IGNORECASE), "all_reduce"),
    (re.compile(r"all_?gather|all_?to_?all|send_?recv|gather|scatter", re.IGNORECASE), "all_gather"),
    (re.compile(r"broad_?cast", re.IGNORECASE), "broadcast"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
)
_DTYPES = {
    "float": "float",
    "half": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "long": "long int",
    "int": "int",
    "byte": "unsigned char",
}
"""`dtype` of an NCCL kernel -> `Input type` of an operator; others count no bytes."""
_DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
_CALLS = (Kind.RUNTIME, Kind.DRIVER)
_HOST = (Kind.OP, Kind.ANNOTATION, Kind.PYTHON, *_CALLS)
_MOST_DEVICES = 64
"""`MAX_GPU_PER_NODE` of the plugin."""


def collective_name(name: str) -> str:
    """Fold the name of any collective into the five that the plugin counts."""
    for pattern, folded in _COLLECTIVES:
        if pattern.search(name):
            return folded
    return "all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What a single event does not show; times in the file's own microseconds."""

    low_us: float = float("-inf")
    high_us: float = float("inf")
    """Host events that begin outside are left out."""
    launched: frozenset[int] | None = None
    """Correlations of the calls inside; device work of others is left out. None: all of it stays."""
    steps: frozenset[str] = frozenset()
    """Names of the ProfilerStep ranges that count; others (the empty last one) are put aside."""
    thread: tuple[int | str, int | str] = (0, 0)
    """pid and tid of the training thread, as written."""
    calls_us: dict[int, tuple[float, int | str, int | str]] = field(default_factory=dict)
    """Correlation -> begin, pid and tid of the call that launched a collective."""
    without_python: bool = False
    """Leave out Python frames that are no module: there are too many of them."""


class Translator:
    """Turns the events of one trace into those of its copy."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._collectives: set[int] = set()
        self._next_id = 1 << 40

    def __call__(self, event: Event) -> list[Event]:
        """Return what becomes of an event: usually one, none when it is left out."""
        phase = event.get("ph")
        event.setdefault("name", "")
        if event.get("pid") == LANE:
            return []  # the lane of an earlier copy
        if phase == "M":
            return [event]
        if phase != "X":
            return self._other(event)
        if not _complete(event):
            return []
        kind = normalise(event["cat"])
        if not self._inside(event, kind):
            return []
        if kind in _DEVICE:
            return self._device(event, kind)
        if kind in _CALLS:
            event["cat"] = "runtime"
            _give_id(event["args"])
        elif kind is Kind.GPU_ANNOTATION:
            # Steps and labels a second time, on the device: the plugin would count both.
            event["cat"] = "gpu_annotation"
        elif kind is Kind.ANNOTATION:
            self._label(event)
        elif kind is Kind.OP:
            self._operator(event)
        elif kind is Kind.PYTHON and self._notes.without_python:
            return [event] if event["args"].get("Python module id") is not None else []
        return [event]

    def _inside(self, event: Event, kind: Kind) -> bool:
        notes = self._notes
        if kind in _DEVICE and notes.launched is not None:
            correlation = event["args"].get("correlation")
            if isinstance(correlation, int) and correlation > 0:
                return correlation in notes.launched
        return _within(event, notes)

    def _other(self, event: Event) -> list[Event]:
        category = event.get("cat")
        if event["name"] == "[memory]" and not isinstance(event.get("ts"), (int, float)):
            return []
        if category == "fwdbwd":
            event["cat"] = "forward_backward"
        if self._notes.launched is not None:
            if category == "ac2g" and isinstance(event.get("id"), int):
                return [event] if event["id"] in self._notes.launched else []
            if not _within(event, self._notes) and event.get("name") != "Record Window End":
                return []
        return [event]

    def _device(self, event: Event, kind: Kind) -> list[Event]:
        args = event["args"]
        if kind is not Kind.KERNEL:
            _give_id(args)
            return [event]
        part = classify(event["name"]).part
        if part is Part.COMMUNICATION:
            return self._collective(event)
        _give_id(args)
        if part is Part.TENSOR_CORE and not any(mark in event["name"] for mark in _TENSOR_CORE_MARKS):
            event["name"] += _TENSOR_CORE_TAG
        return [event]

    def _operator(self, event: Event) -> None:
        if event["name"].startswith("ProfilerStep#"):
            self._step(event)
        for key in ("External id", "external id"):
            if event["args"].get(key) == 0:
                # Calls of no operator have 0 too, and the plugin would make them this one's.
                del event["args"][key]

    def _collective(self, event: Event) -> list[Event]:
        """Tie a collective's kernel to a label that makes the plugin count it as communication.

        The plugin joins them by External id and counts the label's own time on the host as
        communication too, so this one has no length. The operator that launched the kernel keeps its
        id: sharing it leaves the operator tree as it was.
        """
        args = event["args"]
        identity = args.get("External id", args.get("external id"))
        if not isinstance(identity, int) or identity == 0:
            identity = args["External id"] = self._next_id
            self._next_id += 1
        if identity in self._collectives:
            return [event]
        self._collectives.add(identity)
        found = self._notes.calls_us.get(args.get("correlation", -1))
        begin, pid, tid = found if found is not None else (event["ts"], *self._notes.thread)
        told = str(args.get("Collective name") or event["name"])
        label: Event = {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"nccl:{collective_name(told)}",
            "pid": pid,
            "tid": tid,
            "ts": begin,
            "dur": 0,
            "args": {"External id": identity, "collective": told},
        }
        elements, dtype = args.get("In msg nelems"), _DTYPES.get(str(args.get("dtype", "")).lower())
        if isinstance(elements, int) and dtype is not None:
            label["args"] |= {"Input Dims": [[elements]], "Input type": [dtype]}
        return [label, event]

    def _label(self, event: Event) -> None:
        name: str = event["name"]
        if name.startswith("ProfilerStep#"):
            self._step(event)
        elif label_of(name) is Work.INPUT:
            event["cat"] = "cpu_op"
            if not (name.startswith(_LOADER) and name.endswith(_LOADER_END)):
                event["name"] = f"{_LOADER}{name}{_LOADER_END}"
        elif _OPERATOR_LABEL.search(name):
            event["cat"] = "cpu_op"
        elif name.startswith("gloo:"):
            event["name"] = f"gloo:{collective_name(name)}"
        elif name.startswith("nccl:"):
            # Its kernel gets a label of its own: this one's host time is no communication.
            event["cat"] = "nccl_annotation"

    def _step(self, event: Event) -> None:
        if self._notes.steps and event["name"] not in self._notes.steps:
            event["cat"] = "step_without_work"


def _complete(event: Event) -> bool:
    """Give an event what the plugin takes for granted: one without stops it from reading the file."""
    if not isinstance(event.get("ts"), (int, float)):
        return False
    if not isinstance(event.get("dur"), (int, float)):
        event["dur"] = 0
    if not isinstance(event.get("args"), dict):
        event["args"] = {}
    event["cat"], event["name"] = str(event.get("cat") or "other"), str(event["name"])
    if normalise(event["cat"]) in _HOST and not _is_number(event.get("tid")):
        event["tid"] = 0
    device = event["args"].get("device")
    if device is not None and not (isinstance(device, int) and 0 <= device < _MOST_DEVICES):
        del event["args"]["device"]
    if not isinstance(event.get("pid"), (int, str)) or (
        normalise(event["cat"]) in _DEVICE and not isinstance(event["pid"], int)
    ):
        event["pid"] = event["args"].get("device", 0)
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.lstrip("-").isdecimal())


def _within(event: Event, notes: Notes) -> bool:
    ts = event.get("ts")
    if not isinstance(ts, (int, float)):
        return True
    return notes.low_us <= ts < notes.high_us or event.get("cat") == "Trace"


def _give_id(args: Event) -> None:
    """Give work without an operator (CUDA graphs) the id that stands for none, on both sides alike."""
    if args.get("External id") is None and args.get("external id") is None:
        args["External id"] = 0
