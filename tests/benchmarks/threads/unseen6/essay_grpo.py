"""Policy updates of GRPO for a writer of essays, rollouts of a small language model."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 800))
ANSWERS = int(os.environ.get("ANSWERS", 4))
PROMPT = int(os.environ.get("PROMPT", 1536))
RESPONSE = int(os.environ.get("RESPONSE", 512))
VOCAB = int(os.environ.get("VOCAB", 151936))
LAYERS = int(os.environ.get("LAYERS", 14))
WIDTH, HEADS = 1024, 16
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.lm_head.weight = self.embed.weight

    def forward(self, tokens, keep=None):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.lm_head(x if keep is None else x[:, -keep:])


def response_logps(actor, tokens):
    """Log probabilities of the tokens of the answers."""
    if VARIANT == "a":
        logits = actor(tokens)[:, :-1].float()
        labels = tokens[:, 1:]
    else:
        logits = actor(tokens, RESPONSE + 1)[:, :-1].float()
        labels = tokens[:, -RESPONSE:]
    logps = -F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    return logps[:, -RESPONSE:]


def main():
    torch.manual_seed(0)
    actor = Actor().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-6, fused=device.type == "cuda")
    rollouts = torch.randint(0, VOCAB, (4, ANSWERS, PROMPT + RESPONSE), device=device)
    advantages = torch.randn(4, ANSWERS, 1, device=device)
    old = torch.full((ANSWERS, RESPONSE), -11.9, device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        ratio = (response_logps(actor, rollouts[step % 4]) - old).clamp(-2, 2).exp()
        gain = advantages[step % 4]
        loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
