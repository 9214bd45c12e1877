"""Teaches a six-legged walker to get ahead; two processes walk with the current policy, one learns."""

import os
import time

import torch
from torch import multiprocessing as mp
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 90))
WALKERS, MOMENTS, LEGS, WALKS, ROUNDS = 128, 8, 6, 2, 2


class Ground:
    """Many walkers at once: legs that swing like coupled springs and push while they are down."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.swing = 0.1 * torch.randn(WALKERS, LEGS, generator=self.g)
        self.rate = torch.zeros(WALKERS, LEGS)
        self.speed = torch.zeros(WALKERS, 1)

    def view(self):
        return torch.cat([self.swing.sin(), self.swing.cos(), self.rate, self.speed], 1)

    def step(self, force):
        pull = self.swing.roll(1, 1) - self.swing
        self.rate = 0.9 * self.rate + 0.1 * (force.clamp(-2, 2) + 0.3 * pull - self.swing)
        self.swing = self.swing + 0.3 * self.rate
        push = (-self.rate * (self.swing > 0)).mean(1, keepdim=True)
        self.speed = 0.95 * self.speed + push
        return self.speed[:, 0] - 0.01 * force.square().mean(1)


class Policy(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(3 * LEGS + 1, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
        )
        self.force, self.value = nn.Linear(width, LEGS), nn.Linear(width, 1)

    def forward(self, view):
        x = self.body(view)
        return self.force(x), self.value(x)[..., 0]


def walk(number, policy, orders, walks):
    """Walks a while on each order and hands over what was seen, done and earned."""
    torch.manual_seed(100 + number)
    if VARIANT == "b":
        torch.set_num_threads(1)
    ground = Ground(number)
    while orders.get():
        views, forces, gains = [], [], []
        with torch.no_grad():
            for _ in range(MOMENTS):
                views.append(ground.view())
                mean, _ = policy(views[-1])
                forces.append(mean + 0.4 * torch.randn(mean.shape))
                gains.append(ground.step(forces[-1]))
            last = policy(ground.view())[1]
        walks.put((number, *(x.numpy() for x in (*map(torch.stack, (views, forces, gains)), last))))


def learn(policy, optimizer, batches):
    views, forces, gains, last = (torch.cat(x, min(1, x[0].dim() - 1)) for x in batches)
    later, returns = last, []
    for gain in reversed(gains):
        later = gain + 0.97 * later
        returns.insert(0, later)
    for _ in range(ROUNDS):
        mean, value = policy(views)
        error = torch.stack(returns) - value
        chance = -(forces - mean).square().sum(-1) / 0.32
        worth = (error.detach() / (error.detach().std() + 1e-6) * chance).mean()
        loss = error.square().mean() - 0.1 * worth
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


def main():
    torch.manual_seed(46)
    policy = Policy().share_memory()
    context = mp.get_context("spawn")
    orders, walks = [context.SimpleQueue() for _ in range(WALKS)], context.SimpleQueue()
    walkers = [context.Process(target=walk, args=(n, policy, orders[n], walks)) for n in range(WALKS)]
    for walker in walkers:
        walker.start()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        for order in orders:
            order.put(True)
        found = sorted((walks.get() for _ in range(WALKS)), key=lambda walk: walk[0])
        loss = learn(policy, optimizer, [[torch.from_numpy(w[k]) for w in found] for k in range(1, 5)])
    elapsed = time.perf_counter() - start
    for order, walker in zip(orders, walkers, strict=True):
        order.put(False)
        walker.join()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
