"""Trains a transformer with encoder and decoder to forecast the load of power transformers."""

import math
import os
import time
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4000))
SMALL = os.environ.get("SMALL") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"

ARGS = SimpleNamespace(
    seq_len=24 if SMALL else 96,
    label_len=12 if SMALL else 48,
    pred_len=12 if SMALL else 96,
    columns=7,
    d_model=32 if SMALL else 512,
    heads=2 if SMALL else 8,
    e_layers=1 if SMALL else 3,
    d_layers=1 if SMALL else 2,
    d_ff=64 if SMALL else 2048,
    dropout=0.0,
    batch_size=4 if SMALL else 32,
    learning_rate=1e-4,
    windows={"train": 12 if SMALL else 2048, "val": 8 if SMALL else 320, "test": 6 if SMALL else 1000},
)


def make_series():
    """Hourly loads and oil temperature: daily and weekly rhythms, a long wander and some noise."""
    generator = np.random.default_rng(4)
    length = sum(ARGS.windows.values()) + 3 * (ARGS.seq_len + ARGS.pred_len)
    hours = np.arange(length)
    series = np.empty((length, ARGS.columns), dtype=np.float32)
    for column in range(ARGS.columns):
        daily = np.sin(2 * np.pi * hours / 24 + column)
        weekly = 0.5 * np.sin(2 * np.pi * hours / 168 + 2 * column)
        wander = 0.02 * generator.standard_normal(length).cumsum()
        series[:, column] = daily + weekly + wander + 0.2 * generator.standard_normal(length)
    series = (series - series.mean(axis=0)) / series.std(axis=0)
    marks = np.stack([hours % 24 / 23 - 0.5, hours // 24 % 7 / 6 - 0.5, hours // 24 % 31 / 30 - 0.5], axis=1)
    return series.astype(np.float32), marks.astype(np.float32)


class LoadDataset(Dataset):
    """Windows of one part of the series, with the marks of their hours."""

    def __init__(self, series, marks, flag):
        begin = 0
        for part, windows in ARGS.windows.items():
            length = windows + ARGS.seq_len + ARGS.pred_len
            if part == flag:
                break
            begin += length
        self.data = series[begin : begin + length]
        self.marks = marks[begin : begin + length]
        self.windows = windows

    def __len__(self):
        return self.windows

    def __getitem__(self, index):
        s_end = index + ARGS.seq_len
        r_begin = s_end - ARGS.label_len
        r_end = s_end + ARGS.pred_len
        seen, asked = slice(index, s_end), slice(r_begin, r_end)
        return self.data[seen], self.data[asked], self.marks[seen], self.marks[asked]


def data_provider(series, marks, flag):
    """The loader of one part, as the experiments use it."""
    if flag == "test":
        batch_size = 1 if VARIANT == "a" else ARGS.batch_size
    else:
        batch_size = ARGS.batch_size
    dataset, generator = LoadDataset(series, marks, flag), torch.Generator().manual_seed(2)
    return DataLoader(dataset, batch_size, shuffle=flag == "train", drop_last=True, generator=generator)


class DataEmbedding(nn.Module):
    """Values by a convolution over three hours, hours by a projection, places by sines."""

    def __init__(self):
        super().__init__()
        self.value = nn.Conv1d(ARGS.columns, ARGS.d_model, 3, padding=1, padding_mode="circular", bias=False)
        self.hour = nn.Linear(3, ARGS.d_model, bias=False)
        places = torch.arange(512).float().unsqueeze(1)
        rates = torch.exp(torch.arange(0, ARGS.d_model, 2).float() * (-math.log(10000.0) / ARGS.d_model))
        table = torch.zeros(512, ARGS.d_model)
        table[:, 0::2], table[:, 1::2] = torch.sin(places * rates), torch.cos(places * rates)
        self.register_buffer("table", table)

    def forward(self, x, marks):
        values = self.value(x.transpose(1, 2)).transpose(1, 2)
        return values + self.hour(marks) + self.table[: x.shape[1]]


class Attention(nn.Module):
    """Attention with heads; the keys may come from another sequence."""

    def __init__(self, causal=False):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(ARGS.d_model, ARGS.d_model) for _ in range(4))
        self.causal = causal

    def forward(self, x, memory):
        heads = lambda t: t.unflatten(-1, (ARGS.heads, -1)).transpose(1, 2)
        q, k, v = heads(self.query(x)), heads(self.key(memory)), heads(self.value(memory))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A layer of the encoder, or of the decoder if it looks at a memory, too."""

    def __init__(self, decoder):
        super().__init__()
        self.own = Attention(causal=decoder)
        self.cross = Attention() if decoder else None
        self.norms = nn.ModuleList(nn.LayerNorm(ARGS.d_model) for _ in range(3 if decoder else 2))
        self.up, self.down = nn.Linear(ARGS.d_model, ARGS.d_ff), nn.Linear(ARGS.d_ff, ARGS.d_model)

    def forward(self, x, memory=None):
        x = self.norms[0](x + self.own(x, x))
        if self.cross is not None:
            x = self.norms[1](x + self.cross(x, memory))
        return self.norms[-1](x + self.down(F.gelu(self.up(x))))


class Forecaster(nn.Module):
    """The series so far goes through the encoder, its end and blanks through the decoder."""

    def __init__(self):
        super().__init__()
        self.enter, self.ask = DataEmbedding(), DataEmbedding()
        self.encoder = nn.ModuleList(Layer(decoder=False) for _ in range(ARGS.e_layers))
        self.decoder = nn.ModuleList(Layer(decoder=True) for _ in range(ARGS.d_layers))
        self.project = nn.Linear(ARGS.d_model, ARGS.columns)

    def forward(self, x, x_marks, asked, asked_marks):
        memory = self.enter(x, x_marks)
        for layer in self.encoder:
            memory = layer(memory)
        out = self.ask(asked, asked_marks)
        for layer in self.decoder:
            out = layer(out, memory)
        return self.project(out)[:, -ARGS.pred_len :]


class Experiment:
    """Epochs over the training part; after each of them the losses of the other parts are printed."""

    def __init__(self):
        series, marks = make_series()
        self.loaders = {flag: data_provider(series, marks, flag) for flag in ("train", "val", "test")}
        self.model = Forecaster().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=ARGS.learning_rate)
        self.criterion = nn.MSELoss()
        self.epoch = 0

    def forecast(self, batch):
        batch_x, batch_y, x_marks, y_marks = (part.float().to(device) for part in batch)
        blanks = torch.zeros_like(batch_y[:, -ARGS.pred_len :])
        asked = torch.cat([batch_y[:, : ARGS.label_len], blanks], dim=1)
        return self.model(batch_x, x_marks, asked, y_marks), batch_y[:, -ARGS.pred_len :]

    @torch.no_grad()
    def vali(self, loader):
        self.model.eval()
        total_loss = []
        for batch in loader:
            outputs, truth = self.forecast(batch)
            total_loss.append(self.criterion(outputs.detach().cpu(), truth.detach().cpu()))
        self.model.train()
        return np.average(total_loss)

    def batches(self):
        while True:
            yield from self.loaders["train"]
            self.epoch += 1
            vali_loss = self.vali(self.loaders["val"])
            test_loss = self.vali(self.loaders["test"])
            print(f"epoch {self.epoch}: vali loss {vali_loss:.4f}, test loss {test_loss:.4f}")
            for group in self.optimizer.param_groups:
                group["lr"] = ARGS.learning_rate * 0.9 ** min(self.epoch, 20)

    def train(self):
        source = self.batches()
        warm = min(10, STEPS // 2)
        start = time.perf_counter()
        for step in range(STEPS):
            if step == warm:
                if device == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
            outputs, truth = self.forecast(next(source))
            loss = self.criterion(outputs, truth)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            last = loss.detach()
        if device == "cuda":
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - start
        print(f"loss {last.item():.5f}")
        print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    torch.manual_seed(0)
    Experiment().train()
