"""Trains a policy with a memory by PPO on a made-up arcade game that is played in many copies."""

import os
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5000))
SMALL = os.environ.get("SMALL") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"

COPIES = 4 if SMALL else 16
HORIZON = 12 if SMALL else 128
SIDE = 36 if SMALL else 84
HIDDEN = 32 if SMALL else 512
ACTIONS = 6
MINIBATCHES = 2 if SMALL else 4
PPO_EPOCHS = 2 if SMALL else 4
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.1
EPISODE = 20 if SMALL else 900
LOG_EVERY = 10


class Arcade:
    """Copies of a game: a ball drifts over the screen; the right action depends on where it was."""

    def __init__(self):
        self.generator = torch.Generator(device=device).manual_seed(5)
        self.x = torch.rand(COPIES, generator=self.generator, device=device)
        self.age = torch.arange(COPIES, device=device) * (EPISODE // COPIES)
        line = torch.linspace(0, 1, SIDE, device=device)
        self.columns = line.view(1, 1, SIDE)
        self.rows = line.view(1, SIDE, 1)
        self.frames = torch.zeros(COPIES, 4, SIDE, SIDE, device=device)

    def look(self):
        y = (self.age.float() / 40).frac()
        distance = (self.columns - self.x.view(-1, 1, 1)).square() + (self.rows - y.view(-1, 1, 1)).square()
        self.frames = torch.cat([self.frames[:, 1:], torch.exp(-200 * distance).unsqueeze(1)], dim=1)
        return self.frames

    def step(self, action):
        wanted = (self.x * ACTIONS).long().clamp(max=ACTIONS - 1)
        reward = (action == wanted).float()
        drift = torch.randn(COPIES, generator=self.generator, device=device) * 0.05
        self.x = (self.x + drift).clamp(0, 1)
        self.age = self.age + 1
        done = self.age >= EPISODE
        self.age = torch.where(done, torch.zeros_like(self.age), self.age)
        return self.look(), reward, 1.0 - done.float()


class MemoryBase(nn.Module):
    """The part of the network that remembers; masks of zero stand where a new episode begins."""

    def __init__(self, size):
        super().__init__()
        self.gru = nn.GRUCell(size, size) if VARIANT == "a" else nn.GRU(size, size)
        for name, weight in self.gru.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(weight)
            else:
                nn.init.zeros_(weight)

    def forward_memory(self, x, hidden, masks):
        copies = hidden.shape[0]
        if x.shape[0] == copies:
            if VARIANT == "a":
                hidden = self.gru(x, hidden * masks.unsqueeze(1))
                return hidden, hidden
            out, hidden = self.gru(x.unsqueeze(0), (hidden * masks.unsqueeze(1)).unsqueeze(0))
            return out.squeeze(0), hidden.squeeze(0)
        length = x.shape[0] // copies
        x = x.view(length, copies, -1)
        masks = masks.view(length, copies, 1)
        if VARIANT == "a":
            outputs = []
            for t in range(length):
                hidden = self.gru(x[t], hidden * masks[t])
                outputs.append(hidden)
            return torch.stack(outputs).flatten(0, 1), hidden
        breaks = (masks[1:, :, 0] == 0.0).any(dim=1).nonzero().flatten().add(1).tolist()
        borders = [0] + breaks + [length]
        hidden = hidden.unsqueeze(0)
        outputs = []
        for begin, end in zip(borders[:-1], borders[1:]):
            out, hidden = self.gru(x[begin:end], hidden * masks[begin].unsqueeze(0))
            outputs.append(out)
        return torch.cat(outputs).flatten(0, 1), hidden.squeeze(0)


class ArcadePolicy(MemoryBase):
    """Convolutions, a memory, an actor and a critic."""

    def __init__(self):
        super().__init__(HIDDEN)
        self.convs = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 32, 3 if not SMALL else 2),
            nn.ReLU(),
            nn.Flatten(),
        )
        width = self.convs(torch.zeros(1, 4, SIDE, SIDE)).shape[1]
        self.enter = nn.Linear(width, HIDDEN)
        self.actor = nn.Linear(HIDDEN, ACTIONS)
        self.critic = nn.Linear(HIDDEN, 1)

    def forward(self, frames, hidden, masks):
        x = F.relu(self.enter(self.convs(frames)))
        x, hidden = self.forward_memory(x, hidden, masks)
        return self.actor(x), self.critic(x).squeeze(-1), hidden


class RolloutStorage:
    """What was seen, done and earned since the last round of updates."""

    def __init__(self):
        self.frames = torch.zeros(HORIZON + 1, COPIES, 4, SIDE, SIDE, device=device)
        self.hidden = torch.zeros(HORIZON + 1, COPIES, HIDDEN, device=device)
        self.masks = torch.ones(HORIZON + 1, COPIES, device=device)
        self.actions = torch.zeros(HORIZON, COPIES, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(HORIZON, COPIES, device=device)
        self.values = torch.zeros(HORIZON + 1, COPIES, device=device)
        self.rewards = torch.zeros(HORIZON, COPIES, device=device)

    @torch.no_grad()
    def collect(self, game, policy):
        for t in range(HORIZON):
            logits, value, hidden = policy(self.frames[t], self.hidden[t], self.masks[t])
            action = torch.multinomial(logits.softmax(dim=1), 1).squeeze(1)
            self.actions[t] = action
            self.log_probs[t] = logits.log_softmax(dim=1).gather(1, action.unsqueeze(1)).squeeze(1)
            self.values[t] = value
            self.frames[t + 1], self.rewards[t], self.masks[t + 1] = game.step(action)
            self.hidden[t + 1] = hidden
        self.values[HORIZON] = policy(self.frames[HORIZON], self.hidden[HORIZON], self.masks[HORIZON])[1]
        self.returns = torch.zeros_like(self.values)
        gae = torch.zeros(COPIES, device=device)
        for t in reversed(range(HORIZON)):
            delta = self.rewards[t] + GAMMA * self.values[t + 1] * self.masks[t + 1] - self.values[t]
            gae = delta + GAMMA * LAMBDA * self.masks[t + 1] * gae
            self.returns[t] = gae + self.values[t]
        advantages = self.returns[:-1] - self.values[:-1]
        self.advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-5)

    def start_again(self):
        for kept in (self.frames, self.hidden, self.masks):
            kept[0].copy_(kept[-1])

    def recurrent_batches(self):
        """Whole histories of some copies at a time."""
        each = COPIES // MINIBATCHES
        order = torch.randperm(COPIES)
        for first in range(0, COPIES, each):
            chosen = order[first : first + each].to(device)
            yield (
                self.frames[:-1, chosen].flatten(0, 1),
                self.hidden[0, chosen],
                self.masks[:-1, chosen].flatten(),
                self.actions[:, chosen].flatten(),
                self.log_probs[:, chosen].flatten(),
                self.returns[:-1, chosen].flatten(),
                self.advantages[:, chosen].flatten(),
            )


def batches(game, policy, storage):
    rounds = 0
    while True:
        storage.collect(game, policy)
        rounds += 1
        if rounds % LOG_EVERY == 0:
            print(f"round {rounds}: mean reward {storage.rewards.mean().item():.4f}")
        for _ in range(PPO_EPOCHS):
            yield from storage.recurrent_batches()
        storage.start_again()


def main():
    torch.manual_seed(0)
    policy = ArcadePolicy().to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2.5e-4, eps=1e-5)
    game, storage = Arcade(), RolloutStorage()
    storage.frames[0] = game.look()
    source = batches(game, policy, storage)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        frames, hidden, masks, actions, old_log_probs, returns, advantages = next(source)
        logits, values, _ = policy(frames, hidden, masks)
        log_probs = logits.log_softmax(dim=1)
        chosen = log_probs.gather(1, actions.unsqueeze(1)).squeeze(1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
        ratio = (chosen - old_log_probs).exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        loss = 0.5 * (returns - values).square().mean() - surrogate.mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        last = loss.detach()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
