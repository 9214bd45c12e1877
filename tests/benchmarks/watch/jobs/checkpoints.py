"""A checkpoint every 60 steps, made of copies first, and a short validation every 100; batches by hand."""

from clock import clock, lap, no_more_laps

with clock("interpreter and imports"):
    import copy
    import time

    import torch
    import torch._dynamo  # optimizers import it

with clock("set-up"):
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 256))
    ema = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())

lap(first=True)
for step in range(600):
    x = torch.randn(16, 256)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), model.parameters()):
            a.lerp_(b, 0.01)
    if step % 60 == 59:
        with clock("checkpoints"):
            state = copy.deepcopy(optimizer.state_dict())
            torch.save(
                {"model": model.state_dict(), "optimizer": state, "pad": torch.zeros(8_000_000)}, "last.pt"
            )
    if step % 100 == 99:
        with clock("validation"), torch.no_grad():
            for _ in range(30):
                x = torch.randn(16, 256)
                float((ema(x) - x).square().mean())
                time.sleep(0.005)
    lap()
no_more_laps()
