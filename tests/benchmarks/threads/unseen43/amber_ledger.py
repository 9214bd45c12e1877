"""Trains a small language model by group-relative policy optimisation on completions from a server."""

import os
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2400))
SMALL = os.environ.get("SMALL") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"

VOCABULARY = 512 if SMALL else 32000
WIDTH = 64 if SMALL else 768
HEADS = 2 if SMALL else 12
LAYERS = 2 if SMALL else 12
INNER = 128 if SMALL else 2048
PROMPT = 8 if SMALL else 256
COMPLETION = 16 if SMALL else 768
GROUP = 4 if SMALL else 8
GROUPS = 2
EPSILON_LOW, EPSILON_HIGH = 0.2, 0.28
ROLLOUTS = 6
END = 1
LOG_EVERY = 100


class RolloutServer:
    """Stands for the server that answers prompts: groups of completions of one prompt and their rewards."""

    def __init__(self):
        generator = torch.Generator().manual_seed(11)
        self.rollouts = []
        for _ in range(ROLLOUTS):
            prompts = torch.randint(2, VOCABULARY, (GROUPS, PROMPT), generator=generator)
            answers = torch.randint(2, VOCABULARY, (GROUPS * GROUP, COMPLETION), generator=generator)
            lengths = torch.randint(COMPLETION // 2, COMPLETION, (GROUPS * GROUP,), generator=generator)
            rewards = (answers[:, :-1] < answers[:, 1:]).float().mean(dim=1)
            rewards += (lengths > 0.8 * COMPLETION).float()
            mask = torch.arange(COMPLETION) <= lengths[:, None]
            answers[torch.arange(GROUPS * GROUP), lengths] = END
            tokens = torch.cat([prompts.repeat_interleave(GROUP, dim=0), answers * mask], dim=1)
            self.rollouts.append((tokens, mask.float(), rewards))

    def generate(self, step):
        """The completions for one step, on the device."""
        return [part.to(device, non_blocking=True) for part in self.rollouts[step % ROLLOUTS]]


class Rotary(nn.Module):
    """Turns queries and keys by their places."""

    def __init__(self, size, length):
        super().__init__()
        rates = 10000.0 ** (-torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(length).float(), rates)
        self.register_buffer("cos", torch.cat([angles.cos(), angles.cos()], dim=1).to(torch.bfloat16))
        self.register_buffer("sin", torch.cat([angles.sin(), angles.sin()], dim=1).to(torch.bfloat16))

    def forward(self, x):
        first, second = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-second, first], dim=-1) * self.sin


class Block(nn.Module):
    """Attention and a gated inner layer, both after a norm."""

    def __init__(self, rotary):
        super().__init__()
        self.rotary = [rotary]
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        rotary = self.rotary[0]
        out = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        x = x + self.out(out.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Policy(nn.Module):
    """The language model; gives back scores of the words of the completion only."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.rotary = Rotary(WIDTH // HEADS, PROMPT + COMPLETION)
        self.blocks = nn.ModuleList(Block(self.rotary) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, PROMPT - 1 : -1]))


class GroupTrainer:
    """One optimizer step for each batch of completions."""

    def __init__(self, policy, server):
        self.policy = policy
        self.server = server
        self.num_iterations = 1
        fused = device == "cuda"
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, weight_decay=0.0, fused=fused)
        warm_up = lambda step: min(1.0, (step + 1) / 20)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warm_up)

    def per_token_logps(self, tokens):
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = self.policy(tokens)
        words = tokens[:, PROMPT:]
        losses = F.cross_entropy(logits.float().flatten(0, 1), words.flatten(), reduction="none")
        return -losses.view_as(words)

    def advantages(self, rewards):
        grouped = rewards.view(GROUPS, GROUP)
        spread = grouped.std(dim=1, keepdim=True) + 1e-4
        return ((grouped - grouped.mean(dim=1, keepdim=True)) / spread).flatten()

    def prepare(self, step):
        """Completions, advantages and, where asked for, the log-probabilities of the sampling policy."""
        tokens, mask, rewards = self.server.generate(step)
        batch = {"tokens": tokens, "mask": mask, "advantages": self.advantages(rewards), "old_logps": None}
        if VARIANT == "a" or self.num_iterations > 1:
            with torch.no_grad():
                batch["old_logps"] = self.per_token_logps(tokens)
        return batch

    def compute_loss(self, batch):
        logps = self.per_token_logps(batch["tokens"])
        old_logps = logps.detach() if batch["old_logps"] is None else batch["old_logps"]
        ratio = torch.exp(logps - old_logps)
        clipped = ratio.clamp(1 - EPSILON_LOW, 1 + EPSILON_HIGH)
        advantages = batch["advantages"].unsqueeze(1)
        per_token = -torch.min(ratio * advantages, clipped * advantages)
        mask = batch["mask"]
        clip_share = ((ratio > 1 + EPSILON_HIGH) | (ratio < 1 - EPSILON_LOW)).float()
        return (per_token * mask).sum() / mask.sum(), (clip_share * mask).sum() / mask.sum()

    def train_step(self, step):
        batch = self.prepare(step)
        loss, clip_share = self.compute_loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: loss {loss.item():.5f}, clipped {clip_share.item():.4f}")
        return loss.detach()


def main():
    torch.manual_seed(0)
    trainer = GroupTrainer(Policy().to(device), RolloutServer())
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        last = trainer.train_step(step)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
