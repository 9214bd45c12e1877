"""A classifier of small images whose trainer notes loss and memory as it goes."""

import os
import subprocess
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
SIDE, CLASSES, BATCH, WIDTH = 96, 20, 128, 96


def memory_used():
    """MiB in use on each card, as the driver reports it."""
    answer = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,nounits,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {f"gpu_{i}": int(line) for i, line in enumerate(answer.stdout.split())}


class Trainer:
    def __init__(self, model, log_gpu_memory):
        self.model, self.log_gpu_memory, self.rows = model, log_gpu_memory, []
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def training_step(self, x, y):
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def log(self, step, loss):
        row = {"step": step, "loss": loss}
        if self.log_gpu_memory:
            row.update(memory_used())
        self.rows.append(row)


def block(a, b, stride):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    body = [block(3, WIDTH, 1), *(block(WIDTH, WIDTH, 1) for _ in range(5)), block(WIDTH, 2 * WIDTH, 2)]
    body += [block(2 * WIDTH, 2 * WIDTH, 1) for _ in range(6)]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * WIDTH, CLASSES)).to(
        device
    )
    trainer = Trainer(model, log_gpu_memory=VARIANT == "a")
    images = torch.rand(1024, 3, SIDE, SIDE, device=device)
    labels = torch.randint(0, CLASSES, (1024,), device=device)
    for step in range(STEPS):
        if step == 15:
            torch.cuda.synchronize()
            start = time.perf_counter()
        picked = torch.randint(0, len(images), (BATCH,), device=device)
        loss = trainer.training_step(images[picked], labels[picked])
        trainer.log(step, loss)
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 15):.2f} ms per step")


if __name__ == "__main__":
    main()
