"""Hugging Face Trainer on a tiny random model, two micro-batches per step."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from truth import iteration

config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=16)
data = [{"input_ids": torch.randint(50, (8,)), "labels": torch.randint(50, (8,))} for _ in range(400)]


class Truth(transformers.TrainerCallback):
    """Notes where the trainer itself says that a step begins."""

    def on_step_begin(self, *_args, **_options):
        iteration()


with tempfile.TemporaryDirectory() as folder:
    transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=80,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=data,
        callbacks=[Truth()],
    ).train()
