"""What a trainer asks of a model that may or may not be spread over ranks."""

import contextlib

from torch import nn
from torch.nn.parallel import DistributedDataParallel


class WithAverage(nn.Module):
    """Keeps a running average of the weights beside the model."""

    def __init__(self, model, decay=0.999):
        super().__init__()
        self.model, self.decay = model, decay
        self.average = [p.detach().clone() for p in model.parameters()]

    def forward(self, *args):
        return self.model(*args)

    def follow(self):
        for mean, p in zip(self.average, self.model.parameters(), strict=True):
            mean.lerp_(p.detach(), 1 - self.decay)


def quiet_gradients(model):
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return contextlib.nullcontext()


def quiet_inner_gradients(model):
    return quiet_gradients(model.model if isinstance(model, WithAverage) else model)
