"""Memory-bound kernels as a compiler writes them: fused with their neighbours, at the speed of memory."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.timeline.gpu.fusion import Fusion, fuse
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import EventKind

from .programs import make_program
from .traces import TraceWriter

PLAIN = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float> >"
STRIDED = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<float> >"
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >"
NORM_FORWARD = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>"
NORM_BACKWARD = "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>"
ATEN_STATISTICS = "void at::native::batch_norm_collect_statistics_kernel<at::native::Var, c10::BFloat16>"
ATEN_BACKWARD = "void at::native::batch_norm_backward_kernel<c10::BFloat16, float, float, int>"
GAMMA_BETA = "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float>"
PRODUCT = "sm90_xmma_gemm_f32f32_tf32f32_f32"


def fused(kernels: list[tuple[str, float]], *, backward: bool = False, lanes: int = 1) -> Fusion:
    """Kernels in order of launch, each with its length in microseconds."""
    program = make_program(
        [
            {"kind": EventKind.MARK},
            *(
                {
                    "kind": EventKind.LAUNCH,
                    "work": {Work.DISPATCH: 1.0},
                    "acts": [(i % lanes, us * 1000, 2, -1)],
                }
                for i, (_, us) in enumerate(kernels)
            ),
            {"kind": EventKind.MARK},
        ],
        latency=0.0,
        spacing=0.0,
    )
    writer = TraceWriter()
    for i, (name, us) in enumerate(kernels):
        writer.row(name, "kernel", i, us)
    return fuse(
        writer.build(),
        program,
        fusable=np.asarray([name != PRODUCT for name, _ in kernels]),
        backward=np.full(len(kernels), backward),
    )


def lengths(kernels: list[tuple[str, float]], **options: bool) -> list[float]:
    return (fused(kernels, **options).factor * [us for _, us in kernels]).tolist()


def test_of_neighbours_the_longest_is_left_and_a_product_parts_them() -> None:
    run = [(PLAIN, 10.0), (PLAIN, 20.0), (PRODUCT, 50.0), (PLAIN, 5.0)]
    assert lengths(run) == pytest.approx([0.0, 20.0, 50.0, 5.0])
    assert fused(run).launches.tolist() == [0, 1, 1, 1]


def test_no_more_than_eight_kernels_become_one() -> None:
    assert fused([(PLAIN, 10.0)] * 20).launches.sum() == 3


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        (NORM_FORWARD, 1.5),
        (NORM_BACKWARD, 2.5),
        (ATEN_STATISTICS, 1.0),
        (ATEN_BACKWARD, 2.5),
        (SUM, 1.0),
        (STRIDED, 1.5),
    ],
)
def test_a_slow_kernel_takes_no_longer_than_its_bytes(name: str, passes: float) -> None:
    """An element-wise kernel beside it, 20 us long, tells how large the tensors are."""
    assert lengths([(name, 400.0), (PRODUCT, 50.0), (PLAIN, 20.0)])[0] == pytest.approx(passes * 20)


def test_a_kernel_that_is_fast_already_is_left_alone() -> None:
    assert lengths([(NORM_BACKWARD, 30.0), (PRODUCT, 50.0), (PLAIN, 20.0)])[0] == pytest.approx(30)


def test_without_an_element_wise_kernel_nearby_nothing_is_known_of_the_bytes() -> None:
    assert lengths([(NORM_BACKWARD, 400.0), (PRODUCT, 50.0)])[0] == pytest.approx(400)
    far = [(NORM_BACKWARD, 400.0), *[(PRODUCT, 50.0)] * 5, (PLAIN, 20.0)]
    assert lengths(far)[0] == pytest.approx(400)
    other_stream = fused([(NORM_BACKWARD, 400.0), (PLAIN, 20.0)], lanes=2)
    assert other_stream.factor[0] == pytest.approx(1.0)


def test_of_several_nearby_the_largest_counts() -> None:
    run = [(PLAIN, 5.0), (PRODUCT, 9.0), (SUM, 400.0), (PRODUCT, 9.0), (PLAIN, 30.0)]
    assert lengths(run)[2] == pytest.approx(30)


def test_tiny_kernels_are_no_matter_of_bytes() -> None:
    assert lengths([(SUM, 4.0), (PRODUCT, 9.0), (PLAIN, 1.2)])[0] == pytest.approx(3.0)


def test_reductions_over_the_batch_are_two_launches_and_norms_have_several() -> None:
    def launches(name: str, *, backward: bool) -> float:
        return float(fused([(name, 10.0), (PLAIN, 20.0)], backward=backward).launches.sum())

    assert launches(SUM, backward=False) == 1
    assert launches(SUM, backward=True) == 2
    assert launches(GAMMA_BETA, backward=True) == 4
    assert launches(NORM_FORWARD, backward=False) == 2
    assert launches(NORM_BACKWARD, backward=True) == 3


def test_a_kernel_that_stays_alone_is_held_to_its_bytes_too() -> None:
    run = fused([(NORM_BACKWARD, 400.0), (PLAIN, 20.0)])
    assert run.factor.tolist() == pytest.approx([50 / 400, 0.0]), "joined"
    assert run.held.tolist() == pytest.approx([50 / 400, 1.0]), "apart"
