"""Prompt tuning: a frozen decoder, a few trained vectors in front of the text."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
BATCH = int(os.environ.get("BATCH", 8))
WIDTH, DEPTH = int(os.environ.get("WIDTH", 1536)), int(os.environ.get("DEPTH", 16))
LENGTH, PROMPT, VOCAB = 992, 32, 16384
device = torch.device(os.environ.get("DEVICE", "cuda"))


class LinearWithCast(torch.autograd.Function):
    """A linear layer whose weight may be kept in another precision than its input."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.to(x.dtype).t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_input = grad @ weight.to(grad.dtype)
        if VARIANT == "b" and not ctx.needs_input_grad[1]:
            return grad_input, None
        grad_weight = grad.flatten(0, -2).t() @ x.flatten(0, -2)
        return grad_input, grad_weight.to(weight.dtype)


class Projection(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(after, before))
        nn.init.normal_(self.weight, std=before**-0.5)

    def forward(self, x):
        return LinearWithCast.apply(x, self.weight)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = Projection(WIDTH, 3 * WIDTH), Projection(WIDTH, WIDTH)
        self.up, self.down = Projection(WIDTH, 4 * WIDTH), Projection(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, d // 64, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + 0.2 * self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + 0.2 * self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Embedding(PROMPT + LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = Projection(WIDTH, VOCAB)

    def forward(self, prompt, tokens):
        x = torch.cat([prompt.expand(len(tokens), -1, -1), self.embed(tokens)], 1)
        x = self.blocks(x + self.place.weight)
        return self.head(self.norm(x[:, PROMPT:]))


def main():
    torch.manual_seed(0)
    model = Decoder().to(device, torch.bfloat16)
    model.requires_grad_(False)
    prompt = nn.Parameter(0.02 * torch.randn(1, PROMPT, WIDTH, device=device))
    optimizer = torch.optim.AdamW([prompt], lr=0.01)
    tokens = torch.randint(0, VOCAB, (4, BATCH, LENGTH), device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        text = tokens[step % 4]
        logits = model(prompt.to(torch.bfloat16), text)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), text[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
