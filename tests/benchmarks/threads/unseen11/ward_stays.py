"""Tells which patients of a ward will need intensive care, from the vital signs the nurses noted."""

import os
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
PATIENTS, BATCH = 6_000, 48
SIGNS = ["pulse", "pressure", "oxygen", "temperature"]


def make_notes():
    """One row for each note; the signs of those who get worse drift."""
    rng = np.random.default_rng(29)
    worse = rng.random(PATIENTS) < 0.3
    notes = rng.integers(4, 24, PATIENTS)
    patient = np.repeat(np.arange(PATIENTS), notes)
    hour = np.concatenate([np.sort(rng.uniform(0, 72, n)) for n in notes])
    drift = (worse[patient] * hour / 72)[:, None] * np.array([1.2, -1.0, -1.4, 0.5])
    signs = rng.normal(size=(len(patient), len(SIGNS))) + drift
    frame = pd.DataFrame(signs, columns=SIGNS)
    frame.insert(0, "hour", hour)
    frame.insert(0, "patient", patient)
    frame = frame.sample(frac=1, random_state=29).sort_values("hour", ignore_index=True)
    return frame, worse.astype(np.float32)


class Stays(Dataset):
    def __init__(self, notes, worse):
        self.notes, self.worse = notes, worse
        if VARIANT != "a":
            self.stays = {patient: stay for patient, stay in notes.groupby("patient")}

    def __len__(self):
        return len(self.worse)

    def stay(self, patient):
        if VARIANT == "a":
            return self.notes[self.notes["patient"] == patient]
        return self.stays[patient]

    def __getitem__(self, patient):
        values = self.stay(patient)[["hour", *SIGNS]].to_numpy(np.float32)
        values[:, 0] /= 72
        return torch.from_numpy(values), self.worse[patient]


def collate(samples):
    lengths = torch.tensor([len(values) for values, _ in samples])
    worse = torch.tensor(np.array([worse for _, worse in samples]))
    return pad_sequence([values for values, _ in samples], batch_first=True), lengths, worse


class WardModel(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.into = nn.Linear(1 + len(SIGNS), width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, values, lengths):
        states, _ = self.memory(F.relu(self.into(values)))
        last = states[torch.arange(len(lengths)), lengths - 1]
        return self.head(last)[:, 0]


def main():
    torch.manual_seed(29)
    loader = DataLoader(
        Stays(*make_notes()), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=collate
    )
    model = WardModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for values, lengths, worse in loader:
            if step == warm:
                start = time.perf_counter()
            loss = F.binary_cross_entropy_with_logits(model(values, lengths), worse)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
