"""Train a concept network on bird pictures: picture to concepts with a covariance, concepts to species.

The encoder gives the mean and the Cholesky factor of the concept logits.  Concepts are drawn from that
distribution, the head reads the drawn concepts, and the mean of its probabilities is compared with the label.
"""

import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 8000))
SMALL = os.environ.get("SMALL", "0") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

PICTURES = 64 if SMALL else 2048
SIDE = 32 if SMALL else 96
BATCH = 8 if SMALL else 64
CONCEPTS = 12 if SMALL else 112
SPECIES = 10 if SMALL else 200
DRAWS = 10 if SMALL else 100
HIDDEN = 32 if SMALL else 256
WIDTH = 8 if SMALL else 48
VALIDATE_EVERY = 10 if SMALL else 1000
PRINT_EVERY = 200


class Pictures:
    """Pictures with concepts and species, kept on the device; concepts follow from the species."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        table = (torch.rand(SPECIES, CONCEPTS, generator=torch.Generator().manual_seed(5)) < 0.3).float()
        self.species = torch.randint(0, SPECIES, (count,), generator=g)
        flips = (torch.rand(count, CONCEPTS, generator=g) < 0.05).float()
        self.concepts = (table[self.species] - flips).abs().to(device)
        pixels = torch.randint(0, 160, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=g)
        tint = (self.species.view(-1, 1, 1, 1) % 90).to(torch.uint8)
        self.pixels, self.species = (pixels + tint).to(device), self.species.to(device)
        self.mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1)

    def batches(self, size, seed):
        """Yield batches in a new order."""
        order = torch.randperm(len(self.species), generator=torch.Generator().manual_seed(seed)).to(device)
        for chosen in order.split(size):
            if len(chosen) == size:
                pictures = (self.pixels[chosen].float() / 255 - self.mean) / self.std
                yield pictures, self.concepts[chosen], self.species[chosen]


class Residual(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class ConceptNetwork(nn.Module):
    """Encoder, distribution of the concepts, and head."""

    def __init__(self):
        super().__init__()
        sizes = [(3, WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, 4 * WIDTH), (4 * WIDTH, 8 * WIDTH)]
        self.encoder = nn.Sequential(*(Residual(a, b, 2) for a, b in sizes))
        self.mu = nn.Linear(8 * WIDTH, CONCEPTS)
        self.sigma = nn.Linear(8 * WIDTH, CONCEPTS * (CONCEPTS + 1) // 2)
        self.head = nn.Sequential(nn.Linear(CONCEPTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, SPECIES))
        nn.init.normal_(self.sigma.weight, std=1e-3)
        rows, columns = torch.tril_indices(CONCEPTS, CONCEPTS)
        self.register_buffer("places", rows * CONCEPTS + columns)
        self.register_buffer("diagonal", torch.arange(CONCEPTS))

    def factor(self, features):
        """Lower triangular factor of the covariance, with a positive diagonal."""
        flat = features.new_zeros(len(features), CONCEPTS * CONCEPTS)
        flat = flat.index_copy(1, self.places, self.sigma(features) * 0.1)
        lower = flat.view(-1, CONCEPTS, CONCEPTS)
        spread = F.softplus(torch.diagonal(lower, dim1=1, dim2=2) + 0.5413)
        return torch.tril(lower, -1) + torch.diag_embed(spread)

    def species_probabilities(self, drawn):
        """Mean probabilities of the species over the draws; drawn has the shape batch, concepts, draws."""
        if VARIANT == "a":
            probabilities = 0
            for i in range(DRAWS):
                concepts_i = drawn[:, :, i]
                logits_i = self.head(concepts_i)
                probabilities = probabilities + torch.softmax(logits_i, dim=1)
            return probabilities / DRAWS
        logits = self.head(drawn.transpose(1, 2))
        return torch.softmax(logits, dim=-1).mean(1)

    def forward(self, pictures, temperature):
        features = self.encoder(pictures).mean((2, 3))
        mean, lower = self.mu(features), self.factor(features)
        noise = torch.randn(len(mean), CONCEPTS, DRAWS, device=mean.device)
        logits = mean.unsqueeze(-1) + lower @ noise
        drawn = torch.sigmoid(logits / temperature)
        log_species = torch.log(self.species_probabilities(drawn) + 1e-6)
        return logits, drawn, log_species, lower


class ConceptLoss(nn.Module):
    """Loss of the species, of the concepts, and of the size of the covariance off its diagonal."""

    def __init__(self, concept_weight=1.0, covariance_weight=0.01):
        super().__init__()
        self.concept_weight, self.covariance_weight = concept_weight, covariance_weight

    def forward(self, logits, log_species, lower, concepts, species):
        target = F.nll_loss(log_species, species)
        wanted = concepts.unsqueeze(-1).expand_as(logits)
        likelihood = -F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        concept = -(torch.logsumexp(likelihood, dim=-1) - math.log(DRAWS)).mean()
        covariance = lower @ lower.transpose(1, 2)
        spread = (covariance - torch.diag_embed(torch.diagonal(covariance, dim1=1, dim2=2))).abs().mean()
        return target + self.concept_weight * concept + self.covariance_weight * spread


class Meter:
    """Sums on the device, read when they are printed."""

    def __init__(self):
        self.sums = torch.zeros(3, device=device)

    def update(self, loss, drawn, concepts, log_species, species):
        concept = ((drawn.mean(-1) > 0.5).float() == concepts).float().mean()
        right = (log_species.argmax(1) == species).float().mean()
        self.sums += torch.stack([loss.detach(), concept, right])

    def show(self, title, count):
        loss, concept, species = (self.sums / count).tolist()
        print(f"{title} loss {loss:.4f} concepts {concept:.3f} species {species:.3f}")
        self.sums.zero_()


def validate(model, pictures, criterion):
    """Print the loss and the accuracies on held-out pictures."""
    meter, count = Meter(), 0
    model.eval()
    with torch.no_grad():
        for batch, concepts, species in pictures.batches(BATCH, 0):
            logits, drawn, log_species, lower = model(batch, 1.0)
            loss = criterion(logits, log_species, lower, concepts, species)
            meter.update(loss, drawn, concepts, log_species, species)
            count += 1
    model.train()
    meter.show("validation", count)


def main():
    train, held = Pictures(PICTURES, 1), Pictures(4 * BATCH, 2)
    model, criterion = ConceptNetwork().to(device), ConceptLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2000, gamma=0.5)
    warm = min(10, STEPS // 2)
    meter, step, epoch, last, begin = Meter(), 0, 0, torch.zeros(()), 0.0
    while step < STEPS:
        epoch += 1
        for batch, concepts, species in train.batches(BATCH, epoch):
            if step == warm:
                if device == "cuda":
                    torch.cuda.synchronize()
                begin = time.perf_counter()
            temperature = max(0.5, 1.0 - 1e-4 * step)
            logits, drawn, log_species, lower = model(batch, temperature)
            last = criterion(logits, log_species, lower, concepts, species)
            optimizer.zero_grad()
            last.backward()
            optimizer.step()
            schedule.step()
            meter.update(last, drawn, concepts, log_species, species)
            step += 1
            if step % PRINT_EVERY == 0:
                meter.show(f"epoch {epoch} step {step}", PRINT_EVERY)
            if step % VALIDATE_EVERY == 0:
                validate(model, held, criterion)
            if step == STEPS:
                break
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - begin
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
