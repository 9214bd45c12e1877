"""Policy updates of a small language model that shares its device with the rollout engine."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1500))
BATCH = int(os.environ.get("BATCH", 8))
WIDTH, DEPTH, LENGTH, VOCAB = int(os.environ.get("WIDTH", 768)), 24, 384, 8192
ROLLOUT_EVERY = int(os.environ.get("ROLLOUT_EVERY", 5000))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, d // 64, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.embed.weight)


def move_optimizer_state(optimizer, target):
    for state in optimizer.state.values():
        for name, value in state.items():
            if VARIANT == "b" and name == "step":
                continue
            if torch.is_tensor(value):
                state[name] = value.to(target)


@torch.no_grad()
def rollout(model, prompts, new=4):
    """Continues the prompts; the optimizer lies on the host meanwhile."""
    tokens = prompts
    for _ in range(new):
        logits = model(tokens[:, -LENGTH:])[:, -1].float()
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], 1)
    return tokens[:, -LENGTH:]


def policy_loss(logits, tokens, old, advantage):
    logp = -F.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    ratio = (logp.view(BATCH, -1) - old).exp()
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


def main():
    torch.manual_seed(0)
    model = Policy().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH), device=device)
    old = torch.full((BATCH, LENGTH - 1), -9.0, device=device)
    advantage = torch.randn(BATCH, 1, device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        if step % ROLLOUT_EVERY == 1:
            move_optimizer_state(optimizer, "cpu")
            tokens = rollout(model, tokens)
            move_optimizer_state(optimizer, device)
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(tokens)
        loss = policy_loss(logits, tokens, old, advantage)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
