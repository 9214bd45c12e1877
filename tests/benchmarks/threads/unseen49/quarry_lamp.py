"""Train a sparse autoencoder on the residual stream of a small, frozen language model, layer by layer."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4500))


@dataclass
class LossConfig:
    """Weights of the parts of the loss; None leaves a part out."""

    sparsity: float = 0.02
    in_to_orig: float = 1.0
    logits_kl: float | None = None


@dataclass
class Config:
    """All of a run's settings."""

    vocab: int = 4096
    d_model: int = 128
    n_heads: int = 4
    n_layers: int = 6
    context: int = 64
    batch_size: int = 12
    sae_position: str = "blocks.2.hook_resid_pre"
    dict_ratio: int = 6
    lr: float = 5e-4
    warmup: int = 50
    eval_every: int = 250
    loss: LossConfig = None


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.ln1 = nn.LayerNorm(d_model)
        self.ln2 = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)

    def forward(self, resid: torch.Tensor) -> torch.Tensor:
        n, t, d = resid.shape
        q, k, v = self.qkv(self.ln1(resid)).view(n, t, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        resid = resid + self.out(mixed.transpose(1, 2).reshape(n, t, d))
        return resid + self.down(F.gelu(self.up(self.ln2(resid))))


class HookedTransformer(nn.Module):
    """The language model; it hands out the residual stream at named places."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.d_model)
        self.pos_embed = nn.Parameter(torch.randn(cfg.context, cfg.d_model) * 0.02)
        self.blocks = nn.ModuleList(Block(cfg.d_model, cfg.n_heads) for _ in range(cfg.n_layers))
        self.ln_final = nn.LayerNorm(cfg.d_model)
        self.unembed = nn.Linear(cfg.d_model, cfg.vocab, bias=False)

    def forward(self, tokens, names=(), replace=None, stop_at_layer=None):
        """Returns the scores of the next tokens and what was seen at `names`; `replace` swaps it."""
        seen = {}
        resid = self.embed(tokens) + self.pos_embed[: tokens.shape[1]]
        for number, block in enumerate(self.blocks):
            name = f"blocks.{number}.hook_resid_pre"
            if name in names:
                seen[name] = resid
            if replace is not None and name in replace:
                resid = replace[name](resid)
            if stop_at_layer is not None and number >= stop_at_layer:
                return None, seen
            resid = block(resid)
        return self.unembed(self.ln_final(resid)), seen


class SAE(nn.Module):
    """A sparse autoencoder whose dictionary has rows of length one."""

    def __init__(self, d_in: int, d_dict: int):
        super().__init__()
        self.encoder = nn.Linear(d_in, d_dict)
        self.decoder = nn.Linear(d_dict, d_in)
        nn.init.orthogonal_(self.decoder.weight)
        self.encoder.weight.data.copy_(self.decoder.weight.data.T)

    def forward(self, x: torch.Tensor):
        code = F.relu(self.encoder(x))
        weight = F.normalize(self.decoder.weight, dim=0)
        return F.linear(code, weight, self.decoder.bias), code


class SAETransformer(nn.Module):
    """The frozen model together with the autoencoder of one position."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.position = cfg.sae_position
        self.layer = int(cfg.sae_position.split(".")[1])
        self.tlens_model = HookedTransformer(cfg).eval().requires_grad_(False)
        self.sae = SAE(cfg.d_model, cfg.dict_ratio * cfg.d_model)

    @torch.no_grad()
    def forward_raw(self, tokens: torch.Tensor, run_entire_model: bool):
        stop = None if run_entire_model else self.layer
        return self.tlens_model(tokens, names=(self.position,), stop_at_layer=stop)

    def spliced(self, tokens: torch.Tensor) -> torch.Tensor:
        swap = {self.position: lambda resid: self.sae(resid)[0]}
        return self.tlens_model(tokens, replace=swap)[0]


class TokenStream:
    """Packed sequences of a made-up language in which some words follow others."""

    def __init__(self, cfg: Config, seed: int):
        self.rng = np.random.default_rng(seed)
        self.cfg = cfg
        weights = 1.0 / np.arange(1, cfg.vocab + 1)
        self.cdf = np.cumsum(weights / weights.sum())

    def next_batch(self) -> torch.Tensor:
        shape = (self.cfg.batch_size, self.cfg.context)
        words = np.searchsorted(self.cdf, self.rng.random(shape)).clip(max=self.cfg.vocab - 1)
        words[:, 1::2] = (words[:, ::2] * 7 + 3) % self.cfg.vocab
        return torch.from_numpy(words)


def calc_loss(cfg: LossConfig, orig_acts, recon, code, orig_logits=None, new_logits=None):
    """The parts of the loss that the settings ask for."""
    parts = {"in_to_orig": cfg.in_to_orig * F.mse_loss(recon, orig_acts)}
    parts["sparsity"] = cfg.sparsity * code.abs().sum(-1).mean() / orig_acts.shape[-1]
    if cfg.logits_kl is not None:
        target = F.log_softmax(orig_logits, -1)
        parts["logits_kl"] = cfg.logits_kl * F.kl_div(F.log_softmax(new_logits, -1), target, log_target=True)
    return sum(parts.values()), parts


@torch.no_grad()
def evaluate(model: SAETransformer, stream: TokenStream) -> dict:
    """Cross entropy with and without the autoencoder in place, and its L0."""
    tokens = stream.next_batch()
    logits, acts = model.forward_raw(tokens, run_entire_model=True)
    swapped = model.spliced(tokens)
    code = model.sae(acts[model.position])[1]
    flat = tokens[:, 1:].flatten()
    ce = F.cross_entropy(logits[:, :-1].flatten(0, 1), flat)
    ce_sae = F.cross_entropy(swapped[:, :-1].flatten(0, 1), flat)
    return {"ce": ce.item(), "ce_sae": ce_sae.item(), "l0": (code > 0).float().sum(-1).mean().item()}


def lr_factor(step: int, cfg: Config) -> float:
    if step < cfg.warmup:
        return (step + 1) / cfg.warmup
    return 0.55 + 0.45 * math.cos(math.pi * min(1.0, step / 20000))


def main() -> None:
    torch.manual_seed(0)
    cfg = Config(loss=LossConfig())
    model = SAETransformer(cfg)
    stream, held_out = TokenStream(cfg, seed=1), TokenStream(cfg, seed=2)
    optimizer = torch.optim.Adam(model.sae.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: lr_factor(s, cfg))
    run_entire_model = VARIANT == "a" or cfg.loss.logits_kl is not None
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        tokens = stream.next_batch()
        orig_logits, orig_acts = model.forward_raw(tokens, run_entire_model=run_entire_model)
        acts = orig_acts[model.position]
        recon, code = model.sae(acts)
        loss, parts = calc_loss(cfg.loss, acts, recon, code, orig_logits)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.sae.parameters(), 10.0)
        optimizer.step()
        scheduler.step()
        if (step + 1) % cfg.eval_every == 0:
            found = evaluate(model, held_out)
            print(f"step {step + 1} " + " ".join(f"{k} {v:.3f}" for k, v in found.items()))
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
