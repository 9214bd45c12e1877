"""Events of a torch 2 trace in the words of torch-tb-profiler 0.4.3."""

from __future__ import annotations

from typing import Any

import pytest

from torch_bottleneck.review.dialect import Notes, Translator, collective_name


def event(category: str, name: str, **more: Any) -> dict[str, Any]:
    args = more.pop("args", {})
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": 10.0,
        "dur": 5.0,
        "pid": 1,
        "tid": 1,
        "args": args,
        **more,
    }


def one(raw: dict[str, Any], notes: Notes | None = None) -> dict[str, Any]:
    (made,) = Translator(notes or Notes())(raw)
    return made


@pytest.mark.parametrize("category", ["cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime"])
def test_calls_of_every_device_api_are_runtime_calls(category: str) -> None:
    made = one(event(category, "cudaLaunchKernel", args={"External id": 7, "correlation": 3}))
    assert made["cat"] == "runtime" and made["args"]["External id"] == 7


def test_work_of_a_cuda_graph_belongs_to_no_operator_on_both_sides() -> None:
    call = one(event("cuda_runtime", "cudaGraphLaunch", args={"correlation": 3}))
    kernel = one(event("kernel", "elementwise", args={"correlation": 3}))
    assert call["args"]["External id"] == kernel["args"]["External id"] == 0


@pytest.mark.parametrize("key", ["External id", "external id"])
def test_an_operator_never_has_the_id_of_calls_without_one(key: str) -> None:
    assert key not in one(event("cpu_op", "aten::add", args={key: 0}))["args"]
    assert one(event("cpu_op", "aten::add", args={key: 3}))["args"][key] == 3


def test_labels_on_the_device_are_set_aside_so_that_steps_count_once() -> None:
    assert one(event("gpu_user_annotation", "ProfilerStep#3"))["cat"] == "gpu_annotation"
    assert one(event("user_annotation", "ProfilerStep#3"))["cat"] == "user_annotation"


def test_a_step_without_work_does_not_count() -> None:
    notes = Notes(steps=frozenset({"ProfilerStep#3"}))
    assert one(event("user_annotation", "ProfilerStep#4"), notes)["cat"] == "step_without_work"
    assert one(event("user_annotation", "ProfilerStep#3"), notes)["cat"] == "user_annotation"


def test_waiting_for_input_is_data_loader_time_whoever_labelled_it() -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert one(event("user_annotation", loader))["name"] == loader
    for name in (loader, "data"):
        made = one(event("user_annotation", name))
        assert made["cat"] == "cpu_op"
        assert made["name"].startswith("enumerate(DataLoader)#") and made["name"].endswith(".__next__")


def test_labels_that_the_plugin_looks_for_are_operators() -> None:
    for name in (
        "Optimizer.step#AdamW.step",
        "Optimizer.zero_grad#SGD.zero_grad",
        "DistributedDataParallel.forward",
    ):
        assert one(event("user_annotation", name))["cat"] == "cpu_op"
    assert one(event("user_annotation", "my label"))["cat"] == "user_annotation"


def test_a_collective_s_kernel_gets_a_label_that_takes_no_time_and_the_operator_s_id() -> None:
    kernel = event(
        "kernel",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        args={
            "External id": 14,
            "correlation": 5,
            "Collective name": "allreduce",
            "In msg nelems": 8,
            "dtype": "Float",
        },
    )
    translate = Translator(Notes(calls_us={5: (9.0, 588, 609)}))
    label, made = translate(kernel)
    assert (label["name"], label["ts"], label["dur"]) == ("nccl:all_reduce", 9.0, 0)
    assert (label["pid"], label["tid"]) == (588, 609)
    assert label["args"]["External id"] == made["args"]["External id"] == 14
    assert label["args"]["Input Dims"] == [[8]] and label["args"]["Input type"] == ["float"]
    assert len(translate(dict(kernel))) == 1, "a second kernel of the same call belongs to the same label"


def test_the_host_s_time_in_a_collective_label_is_no_communication() -> None:
    assert one(event("user_annotation", "nccl:all_reduce"))["cat"] == "nccl_annotation"


def test_a_collective_without_an_id_gets_one_of_its_own() -> None:
    translate = Translator(Notes())
    (first, _), (second, _) = (
        translate(event("kernel", "ncclDevKernel_AllGather", args={"correlation": k})) for k in (1, 2)
    )
    assert first["args"]["External id"] != second["args"]["External id"]
    assert first["name"] == "nccl:all_gather"


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16", "reduce_scatter"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("nccl:all_to_all", "all_gather"),
        ("ncclDevKernel_SendRecv", "all_gather"),
        ("broadcast", "broadcast"),
        ("ncclDevKernel_Reduce_Sum", "reduce"),
        ("barrier", "all_reduce"),
        ("something new", "all_reduce"),
    ],
)
def test_every_collective_is_one_of_the_five(name: str, folded: str) -> None:
    assert collective_name(name) == folded


def test_gloo_s_labels_stay_since_their_time_is_the_communication() -> None:
    made = one(event("user_annotation", "gloo:all_gather_into_tensor"))
    assert (made["cat"], made["name"]) == ("user_annotation", "gloo:all_gather")


def test_tensor_core_kernels_newer_than_the_plugin_say_so() -> None:
    assert "hmma" in one(event("kernel", "nvjet_sm90_tst_128x64_64x8_1x2_h_bz_TNN"))["name"]
    old = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_nn"
    assert one(event("kernel", old))["name"] == old
    plain = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
    assert one(event("kernel", plain))["name"] == plain


def test_events_that_would_stop_the_parser_are_completed_or_left_out() -> None:
    made = one({"ph": "X", "ts": 1.0, "pid": 1, "tid": 1, "args": None})
    assert isinstance(made["cat"], str) and isinstance(made["name"], str)
    assert made["args"] == {} and made["dur"] == 0
    assert one({"ph": "M", "pid": 1})["name"] == ""
    assert Translator(Notes())({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 1.0}) == []
    assert one(event("cpu_op", "aten::mm", tid="main"))["tid"] == 0
    assert one(event("cpu_op", "aten::mm", tid="17"))["tid"] == "17"
    assert "device" not in one(event("kernel", "gemm", args={"device": 77}))["args"]
    assert Translator(Notes())({"ph": "i", "name": "[memory]"}) == []


def test_the_lane_of_an_earlier_copy_is_dropped() -> None:
    assert Translator(Notes())(event("diagnosis", "step 3: input-bound", pid="Diagnosis")) == []
    assert Translator(Notes())({"ph": "M", "name": "process_name", "pid": "Diagnosis", "args": {}}) == []


def test_a_cut_copy_keeps_the_device_work_of_the_calls_it_keeps() -> None:
    translate = Translator(Notes(low_us=100.0, launched=frozenset({9})))
    assert translate(event("cpu_op", "aten::mm", ts=99.0)) == []
    assert translate(event("cpu_op", "aten::mm", ts=100.0))
    assert translate(event("kernel", "gemm", ts=150.0, args={"correlation": 8})) == [], "launched before"
    assert translate(event("kernel", "gemm", ts=150.0, args={"correlation": 9}))
    assert translate({"ph": "s", "cat": "ac2g", "id": 8, "ts": 99.0, "name": "ac2g"}) == []
    assert (
        translate({"ph": "s", "cat": "fwdbwd", "id": 8, "ts": 101.0, "name": "fwdbwd"})[0]["cat"]
        == "forward_backward"
    )
    assert translate({"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {}})


def test_python_frames_go_first_where_there_is_no_room_but_modules_stay() -> None:
    translate = Translator(Notes(without_python=True))
    assert translate(event("python_function", "train.py(3): main")) == []
    assert translate(event("python_function", "nn.Module: Net_0", args={"Python module id": 0}))
