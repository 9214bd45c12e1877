"""HF Trainer, random tiny BERT; the collator tokenises with regular expressions in Python.

Planted: input-bound. --fixed: tokenised once, before training.
"""

import re
import sys
import tempfile
import time

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

TRUTH = "input-bound"

words = ["alpha", "beta", "gamma", "delta", "don't", "e-mail", "42", "3.14", "(sic)", "Über"]
texts = [" ".join(words[(i * 7 + j * j) % len(words)] for j in range(600)) for i in range(256)]
token = re.compile(r"[A-Za-zÀ-ÿ]+(?:['-][a-z]+)*|\d+(?:\.\d+)?|[^\w\s]")


def encode(text):
    ids = []
    for match in token.finditer(text):
        piece = match.group().lower()
        ids.extend(1 + sum(ord(c) for c in piece[k : k + 3]) % 199 for k in range(0, len(piece), 3))
    return ids[:32]


cache = {text: encode(text) for text in texts} if "--fixed" in sys.argv else None


def collate(rows):
    ids = [cache[r["text"]] if cache else encode(r["text"]) for r in rows]
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.ones(len(ids), 32, dtype=torch.long),
        "labels": torch.tensor([r["label"] for r in rows]),
    }


class Clock(TrainerCallback):
    def __init__(self):
        self.stamps = []

    def on_step_end(self, args, state, control, **kwargs):
        self.stamps.append(time.perf_counter())


def main():
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        )
    )
    clock = Clock()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            max_steps=120,
            per_device_train_batch_size=16,
            report_to=[],
            save_strategy="no",
            logging_steps=50,
            remove_unused_columns=False,
            disable_tqdm=True,
        ),  # fmt: skip
        train_dataset=[{"text": t, "label": i % 2} for i, t in enumerate(texts)],
        data_collator=collate,
        callbacks=[clock],
    )
    trainer.train()
    stamps = clock.stamps
    print(f"step_ms={(stamps[-1] - stamps[20]) * 1000 / (len(stamps) - 21):.3f}")


if __name__ == "__main__":
    main()
