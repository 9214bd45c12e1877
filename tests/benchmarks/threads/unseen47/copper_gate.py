"""Trains an encoder and decoder to label the parts of sentences with frames, as text to text.

Sentences are cut into words once and kept as rows of the longest length that the model takes, with
attention masks and labels, as a text library's tokenizer gives them.
"""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2000))
SENTENCES = 3000
WORDS = 1200
PAD = 0
BATCH = 16
SOURCE_LENGTH = 128
TARGET_LENGTH = 64
WIDTH = 96


class Tokenizer:
    """Turns lists of words into rows of one length, with masks."""

    def __init__(self, length):
        self.length = length

    def __call__(self, texts):
        rows = torch.full((len(texts), self.length), PAD)
        for number, text in enumerate(texts):
            rows[number, : len(text)] = torch.as_tensor(text)
        return rows, (rows != PAD).long()


def make_tasks(rng):
    """Sentences with a mark before a word, and the frame of that word and its roles as the answer."""
    sources, targets = [], []
    frames = rng.integers(2, WORDS, WORDS)
    for _ in range(SENTENCES):
        words = rng.integers(2, WORDS, int(np.clip(rng.gamma(6.0, 5.0), 8, SOURCE_LENGTH - 1)))
        place = int(rng.integers(0, len(words)))
        sources.append(np.concatenate([words[:place], [1], words[place:]]))
        roles = words[max(0, place - 3) : place + int(rng.integers(4, 12))]
        targets.append(np.concatenate([[frames[words[place]]], roles, [1]]))
    return sources, targets


class FrameTasks(Dataset):
    """Sentences and answers as rows of numbers."""

    def __init__(self, sources, targets):
        self.input_ids, self.attention_mask = Tokenizer(SOURCE_LENGTH)(sources)
        self.labels, _ = Tokenizer(TARGET_LENGTH)(targets)

    def __len__(self):
        return len(self.input_ids)

    def __getitem__(self, index):
        return {
            "input_ids": self.input_ids[index],
            "attention_mask": self.attention_mask[index],
            "labels": self.labels[index],
        }


def trim_batch(input_ids, attention_mask, labels):
    """Cuts off the columns that no row of the batch uses."""
    source = int(attention_mask.sum(1).max())
    target = int((labels != PAD).sum(1).max())
    return input_ids[:, :source], attention_mask[:, :source], labels[:, :target]


class TextToText(nn.Module):
    """An encoder of the sentence and a decoder of the answer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=PAD)
        self.places = nn.Embedding(SOURCE_LENGTH, WIDTH)
        nn.init.normal_(self.words.weight, std=0.1)
        options = {"dim_feedforward": 2 * WIDTH, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 4, **options), 2, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 4, **options), 2)
        self.norm = nn.LayerNorm(WIDTH)

    def embed(self, rows):
        return self.words(rows) + self.places(torch.arange(rows.shape[1]))

    def forward(self, input_ids, attention_mask, labels):
        hidden = attention_mask == 0
        memory = self.encoder(self.embed(input_ids), src_key_padding_mask=hidden)
        shifted = torch.cat([torch.ones_like(labels[:, :1]), labels[:, :-1]], dim=1)
        length = labels.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        out = self.decoder(self.embed(shifted), memory, tgt_mask=later, memory_key_padding_mask=hidden)
        scores = self.norm(out) @ self.words.weight.T
        return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=PAD)


class TrainingWrapper:
    """The model with its steps of training and validation, and a mean of the losses."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)
        self.losses = []

    def _step(self, batch):
        input_ids, attention_mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
        if VARIANT != "a":
            input_ids, attention_mask, labels = trim_batch(input_ids, attention_mask, labels)
        return self.model(input_ids, attention_mask, labels)

    def training_step(self, batch):
        loss = self._step(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        return loss

    @torch.no_grad()
    def validate(self, batches):
        self.model.eval()
        mean = sum(self._step(batch).item() for batch in batches) / len(batches)
        self.model.train()
        return mean

    def end_of_epoch(self):
        self.schedule.step()
        self.losses.clear()


def main():
    torch.manual_seed(0)
    sources, targets = make_tasks(np.random.default_rng(0))
    training = FrameTasks(sources[64:], targets[64:])
    validation = list(DataLoader(FrameTasks(sources[:64], targets[:64]), BATCH))
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(training, BATCH, shuffle=True, drop_last=True, generator=generator)
    wrapper = TrainingWrapper(TextToText())
    warm = min(10, STEPS // 2)
    step = 0
    while step < STEPS:
        for batch in loader:
            if step == warm:
                start = time.perf_counter()
            loss = wrapper.training_step(batch)
            step += 1
            if step % 200 == 0:
                recent = sum(wrapper.losses[-50:]) / len(wrapper.losses[-50:])
                print(f"step {step} train {recent:.4f} valid {wrapper.validate(validation):.4f}")
            if step == STEPS:
                break
        wrapper.end_of_epoch()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
