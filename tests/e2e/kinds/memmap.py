"""nanoGPT's shape: get_batch from a memmap, micro-steps, the next batch taken after the forward."""

import tempfile

import numpy as np
import torch
from truth import iteration

folder = tempfile.TemporaryDirectory()
tokens = np.memmap(f"{folder.name}/tokens", dtype=np.uint16, mode="w+", shape=(10_000,))


def get_batch():
    start = torch.randint(9_900, (4,))
    return torch.stack([torch.from_numpy(tokens[i : i + 16].astype(np.float32)) for i in start])


model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = get_batch()
for _ in range(90):
    iteration()
    for _ in range(3):
        value = model(x).square().mean() / 3
        x = get_batch()
        value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
