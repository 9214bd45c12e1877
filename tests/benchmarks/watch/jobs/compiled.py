"""A compiled model whose batches become another shape half way."""

from clock import clock, lap, no_more_laps

with clock("interpreter and imports"):
    import time

    import torch
    import torch._dynamo  # optimizers import it

with clock("set-up"):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    model = torch.compile(inner, dynamic=False)
    optimizer = torch.optim.AdamW(inner.parameters())

lap(first=True)
for step in range(500):
    x = torch.randn(16 if step < 250 else 24, 64)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.008)
    lap()
no_more_laps()
