"""Rewards a small language model for proofs that end well."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 340))
WORDS, WIDTH, LENGTH, PROMPT, BATCH, BETA = 200, 40, 1536, 64, 2, 0.02


class CausalBlock(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.pad = 3 * dilation
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Conv1d(WIDTH, 2 * WIDTH, 4, dilation=dilation)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = nn.functional.pad(self.norm(x).transpose(1, 2), (self.pad, 0))
        return x + self.out(nn.functional.glu(self.mix(y), 1).transpose(1, 2))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*[CausalBlock(4**i) for i in range(3)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        logits = self.head(self.blocks(self.words(tokens)))[:, :-1]
        return torch.log_softmax(logits, 2).gather(2, tokens[:, 1:, None])[..., 0]


class Estimator:
    def __init__(self, gamma=1.0, whole=False):
        self.gamma, self.whole = gamma, whole

    def returns(self, rewards, mask):
        rewards = rewards * mask
        if self.whole and self.gamma == 1.0:
            return rewards.flip(1).cumsum(1).flip(1)
        returns, running = torch.zeros_like(rewards), torch.zeros(len(rewards))
        for t in reversed(range(rewards.shape[1])):
            running = rewards[:, t] + self.gamma * running
            returns[:, t] = running
        return returns


class Reinforce:
    def __init__(self):
        self.policy, self.reference = Policy(), Policy()
        self.reference.load_state_dict(self.policy.state_dict())
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=3e-4)
        self.estimator = Estimator(whole=VARIANT == "b")

    def advantages(self, tokens, log_probs, lengths):
        with torch.no_grad():
            reference = self.reference(tokens)
        place = torch.arange(LENGTH - 1)
        mask = ((place >= PROMPT) & (place < lengths[:, None])).float()
        rewards = -BETA * (log_probs.detach() - reference)
        rewards[torch.arange(len(tokens)), lengths - 1] += (tokens[:, -8:] < WORDS // 2).float().mean(1)
        returns = self.estimator.returns(rewards, mask)
        mean = (returns * mask).sum() / mask.sum()
        spread = ((returns - mean).square() * mask).sum() / mask.sum()
        return (returns - mean) * (spread + 1e-6).rsqrt() * mask, mask

    def step(self, tokens, lengths):
        log_probs = self.policy(tokens)
        advantages, mask = self.advantages(tokens, log_probs, lengths)
        loss = -(advantages * log_probs).sum() / mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    trainer = Reinforce()
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH))
        loss = trainer.step(tokens, torch.randint(LENGTH // 2, LENGTH, (BATCH,)))
    print(f"loss {loss:.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
