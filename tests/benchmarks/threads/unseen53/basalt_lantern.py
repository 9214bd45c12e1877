"""Train a frame predictor with fully sharded parameters and keep averaged weights for sampling."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 430))
GPU = torch.cuda.is_available()
WIDTH, DEPTH, HEADS = (2048, 24, 16) if GPU else (256, 4, 4)
BATCH, FRAMES = (8, 1024) if GPU else (4, 64)
DECAY = 0.99
WARM = 5


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Lantern(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(64, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.leave = nn.Linear(WIDTH, 64)

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return self.leave(x)


class Average:
    """Moving average of all weights, as the sampler will load them."""

    def __init__(self, model):
        self.shadow = {k: self.read(p).clone() for k, p in model.named_parameters()}

    @staticmethod
    def read(p):
        p = p.detach()
        return p.full_tensor() if VARIANT == "a" else p.to_local()

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(self.read(p), 1 - DECAY)


def main():
    dist.init_process_group("nccl" if GPU else "gloo")
    rank = dist.get_rank()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if GPU else "cpu")
    if GPU:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(3)
    model = Lantern().to(device)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    average = Average(model)

    torch.manual_seed(100 + rank)
    clips = torch.randn(64, FRAMES + 1, 64).cumsum(1) / 8
    start, loss = time.perf_counter(), None
    for step in range(STEPS):
        if step == WARM:
            if GPU:
                torch.cuda.synchronize()
            start = time.perf_counter()
        clip = clips[torch.randint(0, len(clips), (BATCH,))].to(device)
        with torch.autocast("cuda", torch.bfloat16, enabled=GPU):
            loss = F.mse_loss(model(clip[:, :-1]).float(), clip[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
    if GPU:
        torch.cuda.synchronize()
    spent = time.perf_counter() - start
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print(f"loss {mean.item() / dist.get_world_size():.4f}")
        print(f"{1000 * spent / (STEPS - WARM):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
