"""Labels frames of speech with syllables, and keeps an eye on the memory of the job."""

import os
import threading
import time

import psutil
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
FEATURES, SYLLABLES, FRAMES, BATCH = 40, 600, 60, 16


class JobWatch(threading.Thread):
    """Notes how much memory the job has needed at most, for the report to the cluster."""

    def __init__(self, interval=0.05):
        super().__init__(name="job watch", daemon=True)
        self.interval, self.peak = interval, {}

    def usage(self, process):
        if VARIANT == "b":
            return {"rss": process.memory_info().rss}
        maps = process.memory_maps()
        return {
            "rss": sum(entry.rss for entry in maps),
            "pss": sum(entry.pss for entry in maps),
            "shared": sum(entry.shared_clean + entry.shared_dirty for entry in maps),
        }

    def run(self):
        process = psutil.Process()
        while True:
            for name, size in self.usage(process).items():
                self.peak[name] = max(self.peak.get(name, 0), size)
            time.sleep(self.interval)


class Tagger(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.rnn = nn.LSTM(FEATURES, width, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * width, SYLLABLES)

    def forward(self, frames):
        states, _ = self.rnn(frames)
        return self.out(states)


def batches():
    generator = torch.Generator().manual_seed(1)
    speech = torch.randn(2000, FRAMES, FEATURES, generator=generator)
    labels = torch.randint(0, SYLLABLES, (2000, FRAMES), generator=generator)
    while True:
        chosen = torch.randperm(len(speech), generator=generator)
        for part in chosen.split(BATCH):
            yield speech[part], labels[part]


def main():
    torch.manual_seed(0)
    watch = JobWatch()
    watch.start()
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (speech, labels) in enumerate(batches()):
        if step == 5:
            start = time.perf_counter()
        if step == STEPS:
            break
        scores = model(speech)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    print(f"loss {loss.item():.4f}, memory {watch.peak['rss'] / 2**20:.0f} MiB")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
