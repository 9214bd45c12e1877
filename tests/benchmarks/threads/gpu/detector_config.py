"""Options of the detector, and what is made of them."""

from dataclasses import dataclass

import torch


@dataclass
class Config:
    compile: bool = True
    multi_scale: bool = True
    sizes: tuple[int, ...] = (160, 192, 224)
    batch: int = 4


def prepare(model, config):
    if config.compile and not config.multi_scale:
        return torch.compile(model)
    return model
