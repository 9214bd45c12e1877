"""The true step boundaries of a script: it calls `iteration()` where each of its steps begins."""

import os
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
_FILE = None


def iteration():
    """Note the moment; written at once, so that a stop loses nothing."""
    global _FILE
    if _FILE is None:
        name = os.environ.get("TRUTH_FILE")
        path = name + os.environ.get("RANK", "") if name else os.devnull
        _FILE = Path(path).open("a", buffering=1)  # noqa: SIM115 - open as long as the script runs
    _FILE.write(f"{time.perf_counter_ns()}\n")


def loader(count=90, batch=4, **options):
    """A small map-style loader of (4, 16) inputs and labels."""
    data = torch.utils.data.TensorDataset(
        torch.randn(count * batch, 16), torch.randint(0, 4, (count * batch,))
    )
    return torch.utils.data.DataLoader(data, batch_size=batch, **options)


def network(width=32):
    """A small classifier."""
    return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4))
