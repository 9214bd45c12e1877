"""A small causal language model rewarded for riddles: rollouts, then a policy gradient."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
GROUPS = int(os.environ.get("GROUPS_N", 8))
ROLLOUTS = int(os.environ.get("ROLLOUTS", 8))
VOCAB = int(os.environ.get("VOCAB", 8192))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 4))
NEW = int(os.environ.get("NEW", 24))
HEADS, PROMPT, TEMPERATURE = 8, 16, 0.8
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, past=None):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.norm2(x)), (k, v)


class RiddleModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(PROMPT + NEW, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids, past=None, start=0):
        places = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.places(places)
        cache = []
        for i, block in enumerate(self.blocks):
            x, kept = block(x, None if past is None else past[i])
            cache.append(kept)
        return self.head(self.norm(x)), cache


@torch.no_grad()
def sample_answers(model, prompts):
    ids = prompts
    logits, cache = model(ids)
    for i in range(NEW):
        probas = torch.softmax(logits[:, -1] / TEMPERATURE, dim=-1)
        if VARIANT == "a":
            following = torch.multinomial(probas.cpu(), num_samples=1).to(ids.device)
        else:
            following = torch.multinomial(probas, num_samples=1)
        ids = torch.cat([ids, following], dim=1)
        if i + 1 < NEW:
            logits, cache = model(following, cache, ids.shape[1] - 1)
    return ids


def reward_answers(answers):
    return (answers % 7 == 3).float().mean(1) + (answers[:, 0] % 2 == 0).float()


def policy_loss(model, ids, advantages):
    logits, _ = model(ids[:, :-1])
    logits = logits[:, PROMPT - 1 :]
    chosen = ids[:, PROMPT:]
    scores = -F.cross_entropy(logits.flatten(0, 1), chosen.flatten(), reduction="none")
    scores = scores.view_as(chosen)
    return -(advantages[:, None] * scores).mean(), -scores.detach().mean()


def main():
    torch.manual_seed(3)
    model = RiddleModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    riddles = torch.randint(0, VOCAB, (64, PROMPT), device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        first = step * GROUPS % 64
        prompts = riddles[first : first + GROUPS].repeat_interleave(ROLLOUTS, 0)
        ids = sample_answers(model, prompts)
        rewards = reward_answers(ids[:, PROMPT:]).view(GROUPS, ROLLOUTS)
        spread = rewards.std(1, keepdim=True) + 1e-4
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / spread).flatten()
        loss, entropy = policy_loss(model, ids, advantages)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {entropy.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
