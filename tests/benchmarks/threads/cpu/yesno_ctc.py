"""A yes/no recogniser: an LSTM with CTC on thirty utterances."""

import os
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
EPOCHS = int(os.environ.get("EPOCHS", 15))


class Utterances(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        lengths = torch.randint(400, 600, (count,), generator=g).tolist()
        self.features = [torch.randn(n, 40, generator=g) for n in lengths]
        self.labels = [torch.randint(1, 4, (8,), generator=g) for _ in lengths]

    def __len__(self):
        return len(self.features)

    def __getitem__(self, i):
        return self.features[i], self.labels[i]


def collate(batch):
    features, labels = zip(*batch, strict=True)
    lengths = torch.tensor([len(f) for f in features])
    return pad_sequence(features, batch_first=True), lengths, torch.stack(labels)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(40, 96, num_layers=2, batch_first=True)
        self.out = nn.Linear(96, 4)

    def forward(self, x):
        return self.out(self.lstm(x)[0]).log_softmax(-1)


def loss_of(model, batch):
    x, lengths, labels = batch
    scores = model(x).transpose(0, 1)
    return nn.functional.ctc_loss(scores, labels, lengths, torch.full((len(labels),), 8))


class DataModule:
    def __init__(self, keep):
        self.options = {"batch_size": 10, "num_workers": 2, "collate_fn": collate, "persistent_workers": keep}

    def train_loader(self):
        return DataLoader(Utterances(30, 0), shuffle=True, **self.options)

    def valid_loader(self):
        return DataLoader(Utterances(10, 1), **self.options)


def main():
    torch.manual_seed(0)
    data = DataModule(keep=VARIANT == "b")
    train_dl = data.train_loader()
    valid_dl = data.valid_loader()
    model = Recogniser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    start, steps = None, 0
    for epoch in range(EPOCHS):
        if epoch == 1:
            start, steps = time.perf_counter(), 0
        model.train()
        for batch in train_dl:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            steps += 1
        model.eval()
        with torch.no_grad():
            valid = sum(loss_of(model, batch).item() for batch in valid_dl)
    seconds = time.perf_counter() - start
    print(f"train {loss.item():.3f} valid {valid:.3f}")
    print(f"{1000 * seconds / steps:.2f} ms per step")


if __name__ == "__main__":
    main()
