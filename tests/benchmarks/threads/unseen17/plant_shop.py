"""What the customers of a garden shop buy next: a model of their baskets against plants they did not buy."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 520))
BATCH = int(os.environ.get("BATCH", 1024))
WIDTH = int(os.environ.get("WIDTH", 256))
OTHERS = int(os.environ.get("OTHERS", 48))
PLANTS, FAMILIES, SELLERS, PAST, CUSTOMERS = 40000, 300, 2000, 40, 16384
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Plant(nn.Module):
    """A plant from its number, family, seller and price."""

    def __init__(self, width):
        super().__init__()
        self.number = nn.Embedding(PLANTS, width // 4)
        self.family = nn.Embedding(FAMILIES, width // 8)
        self.seller = nn.Embedding(SELLERS, width // 8)
        self.mix = nn.Sequential(
            nn.Linear(width // 2 + 1, width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width)
        )
        self.register_buffer("families", torch.randint(0, FAMILIES, (PLANTS,)))
        self.register_buffer("sellers", torch.randint(0, SELLERS, (PLANTS,)))
        self.register_buffer("prices", torch.rand(PLANTS, 1))

    def forward(self, plants):
        known = [self.number(plants), self.family(self.families[plants]), self.seller(self.sellers[plants])]
        return self.mix(torch.cat([*known, self.prices[plants]], -1))


class Customer(nn.Module):
    """A customer from the plants that he bought before."""

    def __init__(self, width):
        super().__init__()
        self.place = nn.Embedding(PAST, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, past):
        return self.layers(past + self.place.weight).mean(1)


class Shop(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.plant, self.customer = Plant(width), Customer(width)

    def forward(self, customer, plants):
        return (customer * self.plant(plants)).sum(-1)


def hardest(shop, customer, others):
    """Score of that plant of the others which is liked best."""
    if VARIANT == "b":
        return shop(customer, others).amax(0)
    best = shop(customer, others[0])
    for plants in others[1:]:
        best = torch.maximum(best, shop(customer, plants))
    return best


def sales():
    """Each customer keeps to a few families of neighbouring numbers."""
    taste = torch.randint(0, PLANTS, (CUSTOMERS, 3))
    which = torch.randint(0, 3, (CUSTOMERS, PAST + 1))
    bought = (taste.gather(1, which) + torch.randint(0, 50, (CUSTOMERS, PAST + 1))) % PLANTS
    return bought[:, :-1].to(device), bought[:, -1].to(device)


def main():
    torch.manual_seed(31)
    shop = Shop(WIDTH).to(device)
    optimizer = torch.optim.Adam(shop.parameters(), lr=3e-4, fused=device.type == "cuda")
    past, following = sales()
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = torch.randint(0, CUSTOMERS, (BATCH,), device=device)
        others = torch.randint(0, PLANTS, (OTHERS, BATCH), device=device)
        customer = shop.customer(shop.plant(past[rows]))
        liked = shop(customer, following[rows])
        disliked = hardest(shop, customer, others)
        loss = (1 - liked + disliked).clamp(min=0).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
