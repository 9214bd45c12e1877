"""The field of each paper of an archive, told from its words and from the papers that it is linked to."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 280))
PAPERS = int(os.environ.get("PAPERS", 120000))
LINKS = int(os.environ.get("LINKS", 1200000))
WIDTH = int(os.environ.get("WIDTH", 128))
DEPTH = int(os.environ.get("DEPTH", 8))
WORDS, FIELDS = 128, 40
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def adjacency(links, papers):
    """Links in both directions and to oneself, each weighed by the links of its two ends."""
    self_links = torch.arange(papers, device=links.device).expand(2, -1)
    ends = torch.cat([links, links.flip(0), self_links], 1)
    weight = torch.ones(ends.shape[1], device=ends.device)
    degree = torch.zeros(papers, device=ends.device).index_add_(0, ends[0], weight)
    scale = degree.rsqrt()
    weight = scale[ends[0]] * weight * scale[ends[1]]
    return torch.sparse_coo_tensor(ends, weight, (papers, papers)).coalesce().to_sparse_csr()


class Propagate(torch.autograd.Function):
    """Links have no direction, so that the way back is the way there."""

    @staticmethod
    def forward(ctx, matrix, x):
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    def backward(ctx, slope):
        return None, ctx.matrix @ slope


class GraphLayer(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.linear, self.norm = nn.Linear(before, after), nn.LayerNorm(after)
        self.known = None

    def forward(self, x, links):
        if self.known is None or VARIANT == "a":
            self.known = adjacency(links, len(x))
        return F.gelu(self.norm(Propagate.apply(self.known, self.linear(x))))


class PaperNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WORDS, WIDTH)
        self.layers = nn.ModuleList([GraphLayer(WIDTH, WIDTH) for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, FIELDS)

    def forward(self, words, links):
        x = self.first(words)
        for layer in self.layers:
            x = x + layer(x, links)
        return self.head(x)


def archive():
    fields = torch.randint(0, FIELDS, (PAPERS,))
    words = torch.randn(FIELDS, WORDS)[fields] + 2 * torch.randn(PAPERS, WORDS)
    order = fields.argsort()
    left = torch.randint(0, PAPERS, (LINKS,))
    right = (left + torch.randint(1, 200, (LINKS,))) % PAPERS
    return words.to(device), fields.to(device), torch.stack([order[left], order[right]]).to(device)


def main():
    torch.manual_seed(31)
    words, fields, links = archive()
    model = PaperNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    known = torch.rand(PAPERS, device=device) < 0.5
    share = known / known.sum()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        scores = model(words, links)
        loss = (F.cross_entropy(scores, fields, reduction="none") * share).sum()
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
