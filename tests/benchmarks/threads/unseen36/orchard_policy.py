"""Policy optimisation of a small language model with a soft gate on the importance ratio."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "400"))
GROUP = int(os.environ.get("GROUP", "24"))
TOKENS = int(os.environ.get("TOKENS", "512"))
WIDTH = int(os.environ.get("WIDTH", "512"))
LAYERS = int(os.environ.get("LAYERS", "6"))
VOCAB = int(os.environ.get("VOCAB", "16384"))
TEMPERATURE_POS, TEMPERATURE_NEG = 1.0, 1.05

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")


class OrchardBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 8, c // 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class OrchardPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*[OrchardBlock() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        return self.norm(self.blocks(self.embed(ids) + self.place.weight))


def gate(importance_ratio, temperature):
    return torch.sigmoid(temperature * (importance_ratio - 1)) * 4 / temperature


def gated_by_index(coef_1, advantages):
    per_token_loss = torch.empty_like(coef_1)
    advantages_expanded = advantages.unsqueeze(1).expand_as(coef_1)
    positive = advantages_expanded > 0
    per_token_loss[positive] = gate(coef_1[positive], TEMPERATURE_POS)
    per_token_loss[~positive] = gate(coef_1[~positive], TEMPERATURE_NEG)
    return -per_token_loss * advantages_expanded


def gated_by_where(coef_1, advantages):
    advantages_expanded = advantages.unsqueeze(1).expand_as(coef_1)
    per_token_loss = torch.where(
        advantages_expanded > 0, gate(coef_1, TEMPERATURE_POS), gate(coef_1, TEMPERATURE_NEG)
    )
    return -per_token_loss * advantages_expanded


gated = gated_by_index if VARIANT == "a" else gated_by_where


@torch.compile
def chunk_loss(hidden, weight, ids, old_logps, advantages):
    logits = (hidden @ weight.t()).float()
    logps = torch.log_softmax(logits, dim=-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    log_ratio = logps - old_logps
    per_token_loss = gated(torch.exp(log_ratio), advantages)
    kl = torch.exp(-log_ratio) + log_ratio - 1
    return (per_token_loss + 0.02 * kl).mean(-1).sum()


def policy_step(policy, ids, old_logps, advantages):
    hidden = policy(ids)
    leaf = hidden.detach().requires_grad_()
    total = torch.zeros((), device=device)
    for i in range(GROUP):
        loss = (
            chunk_loss(
                leaf[i : i + 1],
                policy.lm_head.weight,
                ids[i : i + 1],
                old_logps[i : i + 1],
                advantages[i : i + 1],
            )
            / GROUP
        )
        loss.backward()
        total += loss.detach()
    hidden.backward(leaf.grad)
    return total


def main():
    torch.manual_seed(0)
    policy = OrchardPolicy().to(device)
    opt = torch.optim.AdamW(policy.parameters(), lr=1e-5, fused=device.type == "cuda")
    ids = torch.randint(0, VOCAB, (8, GROUP, TOKENS), device=device)
    old_logps = -9.8 + 0.1 * torch.randn(8, GROUP, TOKENS, device=device)
    rewards = torch.rand(8, GROUP, device=device)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        k = step % 8
        loss = policy_step(policy, ids[k], old_logps[k], advantages[k])
        opt.step()
        opt.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
