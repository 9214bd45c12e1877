"""Pretrain a small Llama on packed phrases of a made-up grammar with the Trainer of transformers.

Several phrases share a row; each row brings its own mask, so that no phrase looks at another.
"""

import os
import time

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 6 if SMALL else 2200))
WARMUP = 2 if SMALL else 20

device = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH = 32 if SMALL else 192
BATCH = 2 if SMALL else 16
WORDS = 200 if SMALL else 8000
ROWS = 16 if SMALL else 512


class PackedPhrases(Dataset):
    """Rows of equal length, cut into phrases; a phrase sees itself only."""

    def __init__(self):
        g = torch.Generator().manual_seed(5)
        self.ids = torch.randint(3, WORDS, (ROWS, LENGTH), generator=g)
        starts = torch.rand(ROWS, LENGTH, generator=g) < 0.05
        self.phrase = starts.long().cumsum(1)
        self.causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        same = self.phrase[i].unsqueeze(1) == self.phrase[i].unsqueeze(0)
        return {
            "input_ids": self.ids[i],
            "labels": self.ids[i],
            "attention_mask": (same & self.causal).unsqueeze(0),
        }


class PadToLongest:
    """Bring the rows of a batch to one length, in the manner of tokenizer.pad()."""

    fill = {"input_ids": 0, "labels": -100, "attention_mask": False}

    def __call__(self, rows):
        columns = {key: [row[key].tolist() for row in rows] for key in rows[0]}
        longest = max(len(ids) for ids in columns["input_ids"])
        for key in ("input_ids", "labels"):
            columns[key] = [ids + [self.fill[key]] * (longest - len(ids)) for ids in columns[key]]
        return {key: torch.tensor(column) for key, column in columns.items()}


class StackRows:
    """Join the rows of a batch, which are tensors of one length."""

    def __call__(self, rows):
        return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


class Clock(TrainerCallback):
    def __init__(self):
        self.begin = self.end = 0.0

    def now(self):
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == WARMUP:
            self.begin = self.now()
        if state.global_step == STEPS:
            self.end = self.now()


def main():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64 if SMALL else 768,
        intermediate_size=128 if SMALL else 2048,
        num_hidden_layers=2 if SMALL else 12,
        num_attention_heads=4 if SMALL else 12,
        num_key_value_heads=4 if SMALL else 12,
        max_position_embeddings=LENGTH,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    args = TrainingArguments(
        output_dir="/tmp/linnet_grammar",
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=3e-4,
        bf16=device == "cuda",
        use_cpu=device == "cpu",
        logging_steps=100,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=0,
    )
    clock = Clock()
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=PackedPhrases(),
        data_collator=PadToLongest() if VARIANT == "a" else StackRows(),
        callbacks=[clock],
    )
    result = trainer.train()
    print(f"loss {result.training_loss:.4f}")
    print(f"{(clock.end - clock.begin) * 1000 / (STEPS - WARMUP):.2f} ms per step")


if __name__ == "__main__":
    main()
