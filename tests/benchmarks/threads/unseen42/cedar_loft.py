"""Predict properties of molecules by messages along directed bonds.

A molecule is a graph of atoms and bonds; each bond stands twice in the list, once for each direction.
Messages run along the bonds for some rounds, are gathered at the atoms, and the mean over the atoms goes
through a dense network.
"""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5600))

ATOM_FEATURES = 64
BOND_FEATURES = 14
GLOBAL_FEATURES = 32
MOLECULES = 1600
BATCH = 50
EVAL_EVERY = 200


class GraphData:
    """Features of atoms and bonds, and the atoms that each directed bond leaves and reaches."""

    def __init__(self, node_features, edge_index, edge_features, global_features):
        self.node_features = node_features
        self.edge_index = edge_index
        self.edge_features = edge_features
        self.global_features = global_features
        self.num_nodes = len(node_features)
        self.num_edges = edge_index.shape[1]


def random_molecule(rng):
    """A tree of atoms with up to three rings closed."""
    atoms = int(rng.integers(16, 34))
    pairs = [(int(rng.integers(max(0, atom - 3), atom)), atom) for atom in range(1, atoms)]
    for _ in range(int(rng.integers(0, 4))):
        one, two = sorted(rng.choice(atoms, size=2, replace=False).tolist())
        if (one, two) not in pairs:
            pairs.append((one, two))
    both_ways = [way for one, two in pairs for way in ((one, two), (two, one))]
    bonds = rng.random((len(pairs), BOND_FEATURES)).astype(np.float32).repeat(2, axis=0)
    features = (rng.random((atoms, ATOM_FEATURES)) < 0.15).astype(np.float32)
    index = np.asarray(both_ways).T
    return GraphData(features, index, bonds, rng.normal(size=GLOBAL_FEATURES).astype(np.float32))


class BondMapper:
    """Brings a graph into the arrays that the encoder reads.

    `values` are the features of the atoms, the joined features of each bond and the atom that it leaves, for
    each atom the bonds that reach it, for each bond the bonds that reach the atom it leaves (but not its own
    reverse), and the features of the whole. Free places hold -1, and a row for -1 stands at the end.
    """

    def __init__(self, graph):
        self.graph = graph
        self.leaves = graph.edge_index[0]
        joined = np.hstack((graph.node_features[self.leaves], graph.edge_features))
        self.joined = np.pad(joined, ((0, 1), (0, 0)))
        self.reaching = self._bonds_that_reach()
        self.mapping = self._without_reverse(self.reaching[self.leaves])
        self.mapping = np.pad(self.mapping, ((0, 1), (0, 0)), constant_values=-1)

    def _bonds_that_reach(self):
        lists = []
        for atom in range(self.graph.num_nodes):
            lists.append(list(np.where(self.graph.edge_index[1] == atom)[0]))
        most = max(1, max(len(bonds) for bonds in lists))
        lists = [bonds + [-1] * (most - len(bonds)) for bonds in lists]
        return np.asarray(lists, dtype=int)

    def _without_reverse(self, mapping):
        reverse = np.empty(self.graph.num_edges, dtype=int)
        for bond in range(self.graph.num_edges):
            reverse[bond] = bond + 1 if bond % 2 == 0 else bond - 1
        for place, bond in enumerate(reverse):
            mapping[place][np.where(mapping[place] == bond)] = -1
        return mapping

    @property
    def values(self):
        graph = self.graph
        return graph.node_features, self.joined, self.reaching, self.mapping, graph.global_features


class Featurizer:
    """Makes graphs, as a reader of molecule files would."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def featurize(self, count):
        graphs = [random_molecule(self.rng) for _ in range(count)]
        if VARIANT != "a":
            for graph in graphs:
                graph.mapper = BondMapper(graph)
        return graphs


def shifted(rows, shift, width):
    """Rows of bond numbers, counted from `shift` on and made `width` wide; -1 stays."""
    moved = np.where(rows >= 0, rows + shift, -1)
    return np.pad(moved, ((0, 0), (0, width - rows.shape[1])), constant_values=-1)


def to_batch(graphs):
    """One graph of several molecules: the rows for -1 of each molecule become one row at the end."""
    mappers = [graph.mapper if VARIANT != "a" else BondMapper(graph) for graph in graphs]
    values = [mapper.values for mapper in mappers]
    width = max(value[2].shape[1] for value in values)
    shifts = np.cumsum([0] + [len(value[1]) - 1 for value in values])
    joined = [value[1][:-1] for value in values] + [values[0][1][-1:]]
    reaching = [shifted(value[2], shift, width) for value, shift in zip(values, shifts)]
    mapping = [shifted(value[3][:-1], shift, width) for value, shift in zip(values, shifts)]
    sizes = torch.tensor([len(value[0]) for value in values])
    return {
        "atoms": torch.from_numpy(np.concatenate([value[0] for value in values])),
        "joined": torch.from_numpy(np.concatenate(joined)),
        "reaching": torch.from_numpy(np.concatenate(reaching)),
        "mapping": torch.from_numpy(np.concatenate(mapping + [np.full((1, width), -1)])),
        "owner": torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        "sizes": sizes,
        "whole": torch.from_numpy(np.stack([value[4] for value in values])),
    }


class BondNetwork(nn.Module):
    """Messages along directed bonds, then a dense network for each molecule."""

    def __init__(self, width=128, rounds=3, tasks=2):
        super().__init__()
        self.rounds = rounds
        self.enter = nn.Linear(ATOM_FEATURES + BOND_FEATURES, width, bias=False)
        self.message = nn.Linear(width, width, bias=False)
        self.gather = nn.Linear(ATOM_FEATURES + width, width)
        inputs = width + GLOBAL_FEATURES
        self.head = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, tasks))

    def around(self, messages, rows):
        total = messages.index_select(0, rows[:, 0] % len(messages))
        for column in range(1, rows.shape[1]):
            total = total + messages.index_select(0, rows[:, column] % len(messages))
        return total

    def forward(self, batch):
        entered = self.enter(batch["joined"])
        messages = torch.relu(entered)
        for _ in range(self.rounds - 1):
            messages = torch.relu(entered + self.message(self.around(messages, batch["mapping"])))
            messages = torch.cat([messages[:-1], torch.zeros_like(messages[-1:])])
        atoms = torch.cat([batch["atoms"], self.around(messages, batch["reaching"])], dim=1)
        atoms = torch.relu(self.gather(atoms))
        sums = atoms.new_zeros(len(batch["sizes"]), atoms.shape[1]).index_add_(0, batch["owner"], atoms)
        return self.head(torch.cat([sums / batch["sizes"][:, None], batch["whole"]], dim=1))


class GraphModel:
    """Fits the network and keeps a record of the losses, as a toolkit's model class does."""

    def __init__(self, network, learning_rate=1e-3):
        self.network = network
        self.optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
        self.record = []

    def default_generator(self, graphs, targets, shuffle=True):
        while True:
            order = torch.randperm(len(graphs)).tolist() if shuffle else range(len(graphs))
            for start in range(0, len(graphs) - BATCH + 1, BATCH):
                chosen = list(order[start : start + BATCH])
                yield to_batch([graphs[place] for place in chosen]), targets[chosen]

    def fit_on_batch(self, batch, targets):
        loss = nn.functional.mse_loss(self.network(batch), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss

    @torch.no_grad()
    def evaluate(self, graphs, targets):
        error = nn.functional.mse_loss(self.network(to_batch(graphs)), targets).item()
        self.record.append(error)
        return error


def main():
    torch.manual_seed(0)
    featurizer = Featurizer(seed=1)
    graphs = featurizer.featurize(MOLECULES)
    shares = [graph.node_features[:, :20].mean() * 5 for graph in graphs]
    targets = torch.tensor([[share, graph.num_edges / 30] for share, graph in zip(shares, graphs)])
    targets = ((targets - targets.mean(0)) / targets.std(0)).float()
    model = GraphModel(BondNetwork())
    check_graphs, check_targets = graphs[:BATCH], targets[:BATCH]
    stream = model.default_generator(graphs[BATCH:], targets[BATCH:])

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        batch, wanted = next(stream)
        loss = model.fit_on_batch(batch, wanted)
        if step % EVAL_EVERY == EVAL_EVERY - 1:
            print(f"step {step + 1} error {model.evaluate(check_graphs, check_targets):.4f}")
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
