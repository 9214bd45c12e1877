"""An IterableDataset behind one worker process."""

import torch
from truth import iteration, network


class Stream(torch.utils.data.IterableDataset):
    """Endless samples."""

    def __iter__(self):
        while True:
            yield torch.randn(16), 1


def main():
    model, loss = network(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(torch.utils.data.DataLoader(Stream(), batch_size=4, num_workers=1))
    for _ in range(90):
        iteration()
        x, y = next(batches)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
