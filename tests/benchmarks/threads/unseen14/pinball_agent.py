"""An agent that plays pinball from its pictures: soft actor-critic with nine discrete moves."""

import copy
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 240))
BATCH = int(os.environ.get("BATCH", 256))
WIDTH = int(os.environ.get("WIDTH", 32))
MEMORY = int(os.environ.get("MEMORY", 8192))
SIDE, MOVES, GAMMA, TAU, ALPHA = 84, 9, 0.99, 0.005, 0.05
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Stage(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.enter = nn.Conv2d(before, after, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(after, after, 3, padding=1) for _ in range(4)])

    def forward(self, x):
        x = F.max_pool2d(self.enter(x), 3, 2, 1)
        for first, second in zip(self.convs[::2], self.convs[1::2], strict=True):
            x = x + second(F.relu(first(F.relu(x))))
        return x


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(Stage(4, WIDTH), Stage(WIDTH, 2 * WIDTH), Stage(2 * WIDTH, 2 * WIDTH))
        head = nn.Linear(2 * WIDTH * 11 * 11, 256), nn.ReLU(), nn.Linear(256, MOVES)
        self.head = nn.Sequential(nn.ReLU(), nn.Flatten(), *head)

    def forward(self, pictures):
        return self.head(self.stages(pictures.float() / 255))


class Agent:
    def __init__(self):
        self.actor, self.q1, self.q2 = (Player().to(device) for _ in range(3))
        self.late1, self.late2 = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        critics, fused = [*self.q1.parameters(), *self.q2.parameters()], device.type == "cuda"
        self.critic_optimizer = torch.optim.Adam(critics, lr=3e-4, fused=fused)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4, fused=fused)

    def policy(self, pictures):
        logs = F.log_softmax(self.actor(pictures), dim=1)
        return logs.exp(), logs

    def learn_values(self, now, moves, rewards, ends, after):
        with torch.no_grad():
            chances, logs = self.policy(after)
            ahead = torch.min(self.late1(after), self.late2(after)) - ALPHA * logs
            target = rewards + (1 - ends) * GAMMA * (chances * ahead).sum(1)
        loss = sum(F.mse_loss(q(now).gather(1, moves)[:, 0], target) for q in (self.q1, self.q2))
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_optimizer.step()
        return loss.detach()

    def learn_moves(self, now):
        chances, logs = self.policy(now)
        with torch.set_grad_enabled(VARIANT == "a"):
            values = torch.min(self.q1(now), self.q2(now))
        loss = (chances * (ALPHA * logs - values)).sum(1).mean()
        self.actor_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.actor_optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def follow(self):
        for q, late in (self.q1, self.late1), (self.q2, self.late2):
            torch._foreach_lerp_(list(late.parameters()), list(q.parameters()), TAU)


def games(count):
    """Pictures of a ball that falls and springs back, the moves and what they brought."""
    t = torch.arange(count + 1)
    x, y = (t * 3 % (2 * SIDE) - SIDE).abs(), (t * 5 % (2 * SIDE) - SIDE).abs()
    at = torch.arange(SIDE)
    ball = ((at - x[:, None]).abs() < 4)[:, None, :] & ((at - y[:, None]).abs() < 4)[:, :, None]
    screens = (200 * ball + torch.randint(0, 40, ball.shape, dtype=torch.uint8)).to(torch.uint8).to(device)
    moves = torch.randint(0, MOVES, (count, 1), device=device)
    rewards = (moves[:, 0] == (x[:-1] * MOVES // (SIDE + 1)).to(device)).float()
    return screens, moves, rewards, (torch.rand(count, device=device) < 0.01).float()


def main():
    torch.manual_seed(97)
    agent = Agent()
    screens, moves, rewards, ends = games(MEMORY)
    back = torch.arange(-3, 1, device=device)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        picked = torch.randint(3, MEMORY, (BATCH,), device=device)
        now, after = screens[picked[:, None] + back], screens[picked[:, None] + back + 1]
        loss = agent.learn_values(now, moves[picked], rewards[picked], ends[picked], after)
        gain = agent.learn_moves(now)
        agent.follow()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f} {gain.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
