"""A spiking network: four time steps through twelve blocks."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
BATCH = int(os.environ.get("BATCH", 8))
TIMES = 4


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (1 + (3.14159 * v).square())


class Neuron(nn.Module):
    def forward(self, currents):
        v, out = torch.zeros_like(currents[0]), []
        for current in currents:
            v = v + (current - v) / 2.0
            spike = Spike.apply(v - 1.0)
            v = v * (1.0 - spike)
            out.append(spike)
        return torch.stack(out)


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.neuron = Neuron()

    def forward(self, x):
        currents = self.norm(self.conv(x.flatten(0, 1)))
        return self.neuron(currents.view(TIMES, -1, *currents.shape[1:]))


class Spiking(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [3, 64, 64, 64, 128, 128, 128, 256, 256, 256, 512, 512, 512]
        strides = [1, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1]
        shapes = zip(widths[:-1], widths[1:], strides, strict=True)
        self.blocks = nn.Sequential(*[Block(*shape) for shape in shapes])
        self.head = nn.Linear(512, 10)

    def forward(self, frames):
        return self.head(self.blocks(frames).mean((0, 3, 4)))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Spiking().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    frames = torch.rand(TIMES, BATCH, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (BATCH,), device=device)

    def forward_backward():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(frames), labels)
        loss.backward()
        return loss

    if VARIANT == "b":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                forward_backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = forward_backward()
            optimizer.step()
    for step in range(STEPS):
        if step == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
        frames.uniform_()
        labels.random_(0, 10)
        if VARIANT == "b":
            graph.replay()
        else:
            loss = forward_backward()
            optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
