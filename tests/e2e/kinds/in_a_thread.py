"""Training runs in a thread, and another thread fetches batches ahead."""

import queue
import threading

import torch
from truth import iteration, loader, network

ready = queue.Queue(maxsize=4)


def fetch():
    for batch in loader(750):
        ready.put(batch)


def train():
    model, loss = network(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(700):
        iteration()
        x, y = ready.get()
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


threading.Thread(target=fetch, daemon=True).start()
trainer = threading.Thread(target=train)
trainer.start()
trainer.join()
