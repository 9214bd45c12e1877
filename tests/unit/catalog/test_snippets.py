"""What the catalogue shows computes what it says that it stands for."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from torch_bottleneck.catalog.registry import by_id


def test_a_convolution_by_transforms_is_the_convolution() -> None:
    signal, kernel = torch.randn(2, 1, 1000), torch.randn(1, 1, 200)
    names = {"signal": signal, "kernel": kernel[0]}
    exec(by_id("FX359").code, names)
    assert torch.allclose(names["out"], F.conv1d(signal, kernel), atol=1e-4)


def test_small_matrices_by_formula_are_their_inverses() -> None:
    x = torch.randn(5, 3, 3, dtype=torch.float64) + 4 * torch.eye(3, dtype=torch.float64)
    names = {"x": x}
    exec(by_id("FX362").code, names)
    assert torch.allclose(names["inverse"], torch.linalg.inv(x), atol=1e-5)
    assert torch.allclose(names["det"], torch.linalg.det(x), rtol=1e-4)
