"""Two workers that start anew in each epoch, and import what they need."""

from clock import clock, lap, no_more_laps

with clock("interpreter and imports"):
    import time

    import torch
    import torch._dynamo  # optimizers import it
    from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, i):
        return torch.full((64,), float(i)), i % 4


def start(worker):
    time.sleep(0.4)  # a client that connects


if __name__ == "__main__":
    with clock("set-up"):
        torch.set_num_threads(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        loader = DataLoader(Images(), batch_size=8, num_workers=2, worker_init_fn=start)
    lap(first=True)
    for epoch in range(6):
        with clock("epoch starts"):
            batches = iter(loader)
            x, y = next(batches)
        while True:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            time.sleep(0.015)
            optimizer.step()
            lap()
            batch = next(batches, None)
            if batch is None:
                break
            x, y = batch
    no_more_laps()
