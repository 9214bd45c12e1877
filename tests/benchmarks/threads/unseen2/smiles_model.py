"""Predicts the reactants of a product: an encoder and a decoder over SMILES."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
TOKENS, WIDTH, HEADS, DEPTH, BATCH, LENGTH = 300, 768, 12, 5, 32, 192
PRECISION = "high" if VARIANT == "b" else "highest"


class Retro(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.body = nn.Transformer(
            WIDTH, HEADS, DEPTH, DEPTH, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, product, reactants):
        mask = nn.Transformer.generate_square_subsequent_mask(reactants.shape[1], reactants.device)
        hidden = self.body(
            self.embed(product) + self.place,
            self.embed(reactants) + self.place[: reactants.shape[1]],
            tgt_mask=mask,
            tgt_is_causal=True,
        )
        return self.head(hidden)


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision(PRECISION)
    device = torch.device("cuda")
    model = Retro().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    smiles = torch.randint(0, TOKENS, (64, BATCH, LENGTH), device=device)
    for step in range(STEPS):
        if step == 15:
            torch.cuda.synchronize()
            start = time.perf_counter()
        product, reactants = smiles[step % 64], smiles[(step + 1) % 64]
        scores = model(product, reactants[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), reactants[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 15):.2f} ms per step")


if __name__ == "__main__":
    main()
