"""Policy updates for a walking robot on two ranks, with a learning rate that follows the divergence."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1650))
GPU = torch.cuda.is_available()
STATES, ACTIONS = 96, 18
WIDTH, SAMPLES, PARTS = (1024, 262144, 4) if GPU else (256, 8192, 4)
TARGET = 0.016
WARM = 5


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(STATES, WIDTH),
            nn.ELU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ELU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ELU(),
        )
        self.mean, self.value = nn.Linear(WIDTH, ACTIONS), nn.Linear(WIDTH, 1)
        self.log_std = nn.Parameter(torch.zeros(ACTIONS))

    def forward(self, states):
        h = self.body(states)
        return self.mean(h), self.value(h).squeeze(-1), self.log_std.expand(len(h), -1)


def divergence(mean, log_std, old_mean, old_log_std):
    ratio = (old_log_std.exp() ** 2 + (old_mean - mean) ** 2) / (2 * log_std.exp() ** 2)
    return (log_std - old_log_std + ratio - 0.5).sum(-1).mean()


def adapt(optimizer, kl):
    """A higher divergence than twice the target lowers the rate, a lower one than half raises it."""
    group = optimizer.param_groups[0]
    if kl > 2 * TARGET:
        group["lr"] = max(group["lr"] / 1.5, 1e-5)
    elif kl < TARGET / 2:
        group["lr"] = min(group["lr"] * 1.5, 1e-3)


def mean_of_ranks(value):
    value = value.clone()
    dist.all_reduce(value)
    return (value / dist.get_world_size()).tolist()


def main():
    dist.init_process_group("nccl" if GPU else "gloo")
    rank = dist.get_rank()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if GPU else "cpu")
    if GPU:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(17)
    model = DDP(Policy().to(device), device_ids=[device.index] if GPU else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    torch.manual_seed(170 + rank)
    states = torch.randn(SAMPLES, STATES, device=device)
    returns = states[:, :8].sum(1)
    gains = torch.randn(SAMPLES, device=device)
    with torch.no_grad():
        old_mean, _, old_log_std = model.module(states)
        actions = old_mean + torch.randn_like(old_mean)
        old_logp = -0.5 * (actions - old_mean).pow(2).sum(-1)

    start, loss, kls = time.perf_counter(), None, []
    for step in range(STEPS):
        if step == WARM:
            if GPU:
                torch.cuda.synchronize()
            start = time.perf_counter()
        if step % PARTS == 0:
            parts = torch.randperm(SAMPLES, device=device).chunk(PARTS)
        pick = parts[step % PARTS]
        mean, value, log_std = model(states[pick])
        logp = -(0.5 * ((actions[pick] - mean) / log_std.exp()).pow(2) + log_std).sum(-1)
        ratio = (logp - old_logp[pick]).exp()
        surrogate = torch.min(ratio * gains[pick], ratio.clamp(0.8, 1.2) * gains[pick]).mean()
        loss = F.mse_loss(value, returns[pick]) - surrogate
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            kl = divergence(mean, log_std, old_mean[pick], old_log_std[pick])
        if VARIANT == "a":
            adapt(optimizer, mean_of_ranks(kl))
        else:
            kls.append(kl)
            if len(kls) == PARTS:
                for mean_kl in mean_of_ranks(torch.stack(kls)):
                    adapt(optimizer, mean_kl)
                kls.clear()
    if GPU:
        torch.cuda.synchronize()
    spent = time.perf_counter() - start
    if rank == 0:
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * spent / (STEPS - WARM):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
