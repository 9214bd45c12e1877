"""Learn embeddings of the nodes of a shop graph whose edges have several types (view, cart, buy ...)."""

import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6500))

NODES = 6000
EDGE_TYPES = 14
NEIGHBOURS = 10
EMBEDDING = 128
EDGE_DIM = 10
ATTENTION_DIM = 20
BATCH = 64
NEGATIVES = 5


class ShopGraph:
    """Random multiplex graph with communities; holds walks' pairs and sampled neighbours."""

    def __init__(self, nodes, edge_types, neighbours, seed=0):
        rng = np.random.default_rng(seed)
        self.community = rng.integers(0, 40, nodes)
        order = np.argsort(self.community, kind="stable")
        start = np.searchsorted(self.community[order], np.arange(40))
        size = np.bincount(self.community, minlength=40)

        def friends(of, count):
            own = self.community[of]
            place = start[own][:, None] + rng.integers(0, 1 << 30, (len(of), count)) % size[own][:, None]
            return order[place]

        everyone = np.arange(nodes)
        self.neighbours = np.stack([friends(everyone, neighbours) for _ in range(edge_types)], axis=1)
        left = rng.integers(0, nodes, 120_000)
        right = friends(left, 1)[:, 0]
        kind = rng.integers(0, edge_types, len(left))
        self.train_pairs = np.stack([left, right, kind], axis=1)
        held = rng.integers(0, nodes, 400)
        self.valid_true = np.stack([held, friends(held, 1)[:, 0]], axis=1)
        self.valid_false = np.stack([held, rng.integers(0, nodes, 400)], axis=1)


def get_batches(pairs, neighbours, batch_size, rng):
    """Yield batches of pairs for ever, shuffled anew in each pass."""
    while True:
        order = rng.permutation(len(pairs))
        for begin in range(0, len(order) - batch_size + 1, batch_size):
            chosen = pairs[order[begin : begin + batch_size]]
            left = torch.from_numpy(chosen[:, 0])
            right = torch.from_numpy(chosen[:, 1])
            kind = torch.from_numpy(chosen[:, 2])
            yield left, right, kind, torch.from_numpy(neighbours[chosen[:, 0]])


class MultiplexModel(nn.Module):
    """A base embedding per node, plus one per edge type, aggregated over neighbours with attention."""

    def __init__(self, nodes, embedding, edge_dim, edge_types, dim_a):
        super().__init__()
        self.edge_types = edge_types
        self.node_embeddings = nn.Parameter(torch.empty(nodes, embedding).uniform_(-1.0, 1.0))
        self.node_type_embeddings = nn.Parameter(torch.empty(nodes, edge_types, edge_dim).uniform_(-1.0, 1.0))
        scale = 1.0 / math.sqrt(embedding)
        self.trans_weights = nn.Parameter(torch.randn(edge_types, edge_dim, embedding) * scale)
        self.trans_weights_s1 = nn.Parameter(torch.randn(edge_types, edge_dim, dim_a) * scale)
        self.trans_weights_s2 = nn.Parameter(torch.randn(edge_types, dim_a, 1) * scale)

    def forward(self, inputs, kinds, neighbours):
        node_embed = self.node_embeddings[inputs]
        embed_neighbours = self.node_type_embeddings[neighbours]
        if VARIANT == "a":
            own_type = torch.cat(
                [embed_neighbours[:, i, :, i, :].unsqueeze(1) for i in range(self.edge_types)],
                dim=1,
            )
        else:
            own_type = torch.diagonal(embed_neighbours, dim1=1, dim2=3).permute(0, 3, 1, 2)
        type_embed = torch.sum(own_type, dim=2)

        weight = self.trans_weights[kinds]
        weight_s1 = self.trans_weights_s1[kinds]
        weight_s2 = self.trans_weights_s2[kinds]
        scores = torch.matmul(torch.tanh(torch.matmul(type_embed, weight_s1)), weight_s2).squeeze(2)
        attention = F.softmax(scores, dim=1).unsqueeze(1)
        type_embed = torch.matmul(attention, type_embed)
        node_embed = node_embed + torch.matmul(type_embed, weight).squeeze(1)
        return F.normalize(node_embed, dim=1)


class NegativeSamplingLoss(nn.Module):
    """Skip-gram loss with noise nodes drawn by rank."""

    def __init__(self, nodes, sampled, embedding):
        super().__init__()
        self.sampled = sampled
        self.weights = nn.Parameter(torch.randn(nodes, embedding) / math.sqrt(embedding))
        ranks = torch.arange(nodes, dtype=torch.float32)
        odds = (torch.log(ranks + 2) - torch.log(ranks + 1)) / math.log(nodes + 1)
        self.register_buffer("sample_weights", F.normalize(odds, dim=0))

    def forward(self, embeddings, labels):
        count = embeddings.shape[0]
        target = F.logsigmoid(torch.sum(embeddings * self.weights[labels], dim=1))
        negatives = torch.multinomial(self.sample_weights, self.sampled * count, replacement=True)
        noise = torch.neg(self.weights[negatives.view(count, self.sampled)])
        rest = F.logsigmoid(torch.bmm(noise, embeddings.unsqueeze(2))).sum(1).squeeze(1)
        return -(target + rest).sum() / count


@torch.no_grad()
def link_auc(model, graph, kind=0):
    """Share of held-out links that score higher than a random pair of the same node."""
    table = torch.from_numpy(graph.neighbours)

    def embed(nodes):
        nodes = torch.from_numpy(nodes)
        return model(nodes, torch.full_like(nodes, kind), table[nodes])

    true = (embed(graph.valid_true[:, 0]) * embed(graph.valid_true[:, 1])).sum(1)
    false = (embed(graph.valid_false[:, 0]) * embed(graph.valid_false[:, 1])).sum(1)
    return (true > false).float().mean().item()


def main():
    torch.manual_seed(0)
    graph = ShopGraph(NODES, EDGE_TYPES, NEIGHBOURS)
    model = MultiplexModel(NODES, EMBEDDING, EDGE_DIM, EDGE_TYPES, ATTENTION_DIM)
    criterion = NegativeSamplingLoss(NODES, NEGATIVES, EMBEDDING)
    optimizer = torch.optim.Adam(
        [{"params": model.parameters()}, {"params": criterion.parameters()}], lr=1e-3
    )
    batches = get_batches(graph.train_pairs, graph.neighbours, BATCH, np.random.default_rng(1))

    warm = min(10, STEPS // 2)
    average, best = 0.0, 0.0
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        left, right, kind, neighbours = next(batches)
        optimizer.zero_grad()
        embeddings = model(left, kind, neighbours)
        loss = criterion(embeddings, right)
        loss.backward()
        optimizer.step()
        average += loss.item()
        if step % 500 == 499:
            best = max(best, link_auc(model, graph))
            print(f"step {step + 1} average loss {average / (step + 1):.4f} best auc {best:.3f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
