"""Replies to letters of a bakery's customers: a small language model tuned on pairs of a better and a worse reply."""

import copy
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 130))
PAIRS = int(os.environ.get("PAIRS", 3))
LENGTH = int(os.environ.get("LENGTH", 512))
WIDTH = int(os.environ.get("WIDTH", 1536))
DEPTH = int(os.environ.get("DEPTH", 14))
WORDS = int(os.environ.get("WORDS", 16384))
PROMPT, HEAD = LENGTH // 4, 64
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, c // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class ReplyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class PreferenceTrainer:
    def __init__(self, model, beta=0.1):
        self.model, self.beta = model, beta
        self.before = copy.deepcopy(model).requires_grad_(False).eval()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
        self.history = []

    def judge(self, model, better, worse):
        """Log-probabilities of both replies, and the scores they come from."""
        tokens = torch.cat([better, worse])
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(tokens)
        scores = scores[:, :-1].float()
        nats = F.cross_entropy(scores.transpose(1, 2), tokens[:, 1:], reduction="none")
        sums = -nats[:, PROMPT:].sum(1)
        return *sums.chunk(2), *scores.chunk(2)

    def average(self, values):
        values = values.detach()
        return values.mean().cpu() if VARIANT == "b" else values.cpu().mean()

    def loss_and_metrics(self, better, worse):
        good, bad, good_scores, bad_scores = self.judge(self.model, better, worse)
        with torch.no_grad():
            old_good, old_bad, *_ = self.judge(self.before, better, worse)
        good_reward, bad_reward = self.beta * (good - old_good), self.beta * (bad - old_bad)
        loss = -F.logsigmoid(good_reward - bad_reward).mean()
        metrics = {
            "rewards/better": self.average(good_reward),
            "rewards/worse": self.average(bad_reward),
            "rewards/margin": self.average(good_reward - bad_reward),
            "logps/better": self.average(good),
            "logps/worse": self.average(bad),
            "scores/better": self.average(good_scores),
            "scores/worse": self.average(bad_scores),
        }
        return loss, metrics

    def step(self, better, worse):
        loss, metrics = self.loss_and_metrics(better, worse)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.history.append(metrics)
        return loss.detach()


def letters(count):
    """Pairs of replies that begin with the same letter."""
    steps = torch.randint(1, 7, (2, count, LENGTH)).cumsum(2)
    steps[1, :, :PROMPT] = steps[0, :, :PROMPT]
    return (steps * 5 % WORDS).to(device)


def main():
    torch.manual_seed(31)
    with device:
        model = ReplyModel()
    trainer, (better, worse) = PreferenceTrainer(model), letters(16 * PAIRS)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 16 * PAIRS, (step % 16 + 1) * PAIRS)
        loss = trainer.step(better[rows], worse[rows])
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    margin = sum(m["rewards/margin"] for m in trainer.history) / STEPS
    print(f"loss {loss.item():.4f}, margin {margin:.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
