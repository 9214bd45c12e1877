"""Two ranks over gloo; the first one also validates and saves, and the other one waits for it."""

from clock import clock, lap, no_more_laps

with clock("interpreter and imports"):
    import time

    import torch
    import torch._dynamo  # optimizers import it
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

with clock("set-up"):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    inner = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

lap(first=True)
for step in range(500):
    x = torch.randn(8, 64)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    time.sleep(0.012)
    optimizer.step()
    if step % 100 == 99:
        if rank == 0:
            with clock("validation"), torch.no_grad():
                for _ in range(30):
                    inner(x)
                    time.sleep(0.01)
            with clock("checkpoints"):
                torch.save([inner.state_dict(), torch.zeros(6_000_000)], "model.pt")
        with clock("between steps"):
            dist.barrier()
    lap()
no_more_laps()
dist.destroy_process_group()
