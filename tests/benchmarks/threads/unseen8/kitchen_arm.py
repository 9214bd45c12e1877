"""Tunes a small language model as the reader of orders for an arm in a kitchen."""

import os
import time

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 180))
WORDS, WIDTH, LENGTH, BATCH, JOINTS, HORIZON = 24000, 128, 48, 8, 7, 16


def reader():
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=256,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    model.model.embed_tokens.requires_grad_(False)
    model.lm_head.requires_grad_(False)
    return model


class Backbone(nn.Module):
    """What the language model makes of an order."""

    def __init__(self):
        super().__init__()
        self.model = reader()
        self.options = {"logits_to_keep": 1} if VARIANT == "b" else {}

    def forward(self, words, mask):
        outputs = self.model(input_ids=words, attention_mask=mask, output_hidden_states=True, **self.options)
        return outputs.hidden_states[-1]


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.state = nn.Linear(JOINTS, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.steps = nn.Parameter(0.02 * torch.randn(HORIZON, WIDTH))
        self.act = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, JOINTS))

    def forward(self, words, mask, joints):
        order = self.backbone(words, mask)
        query = self.steps + self.state(joints)[:, None]
        found, _ = self.attend(query, order, order, key_padding_mask=~mask, need_weights=False)
        return self.act(query + found)


def main():
    torch.manual_seed(0)
    policy = Policy()
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        words = torch.randint(0, WORDS, (BATCH, LENGTH))
        lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1))
        mask = torch.arange(LENGTH) < lengths
        joints, shown = torch.randn(BATCH, JOINTS), torch.randn(BATCH, HORIZON, JOINTS)
        loss = nn.functional.mse_loss(policy(words, mask, joints), shown)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
