"""Sentences as graphs of words: message passing over a batch of graphs, then a reading of each graph."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2200))

WORDS = 400
ANSWERS = 10
BATCH = 160
SENTENCES = 1_600
REPORT_EVERY = 200


class WordGraph:
    """Words as nodes, relations as edges, features by name."""

    def __init__(self):
        self.node_count = 0
        self.edges = []
        self.node_features = {}

    def add_nodes(self, count):
        self.node_count += count

    def add_edges(self, sources, targets):
        self.edges.extend(zip(sources, targets))


class GraphBatch(WordGraph):
    """Several graphs side by side, and to which of them each node belongs."""

    def __init__(self):
        super().__init__()
        self.graph_of_node = []
        self.nodes_of_graph = []
        self.edges_of_graph = []


def to_batch(graphs):
    """Set graphs side by side in one; the nodes' numbers go on."""
    batch = GraphBatch()
    for number, graph in enumerate(graphs):
        shift = batch.node_count
        batch.add_nodes(graph.node_count)
        batch.edges.extend((source + shift, target + shift) for source, target in graph.edges)
        batch.graph_of_node.extend([number] * graph.node_count)
        batch.nodes_of_graph.append(graph.node_count)
        batch.edges_of_graph.append(len(graph.edges))
    batch.node_features["word"] = torch.cat([graph.node_features["word"] for graph in graphs])
    return batch


def from_batch(batch):
    """Take the batch apart again, with the features that it has now."""
    graphs = []
    first_node, first_edge = 0, 0
    for number in range(len(batch.nodes_of_graph)):
        graph = WordGraph()
        graph.add_nodes(batch.nodes_of_graph[number])
        end_node = first_node + graph.node_count
        if VARIANT == "a":
            sources, targets = [], []
            for source, target in batch.edges:
                if first_node <= source < end_node and first_node <= target < end_node:
                    sources.append(source - first_node)
                    targets.append(target - first_node)
        else:
            edges = batch.edges[first_edge : first_edge + batch.edges_of_graph[number]]
            sources = [source - first_node for source, _ in edges]
            targets = [target - first_node for _, target in edges]
        graph.add_edges(sources, targets)
        for name, values in batch.node_features.items():
            graph.node_features[name] = values[first_node:end_node]
        first_node, first_edge = end_node, first_edge + batch.edges_of_graph[number]
        graphs.append(graph)
    return graphs


class MessageLayer(nn.Module):
    """Means over the neighbours, gated into the node."""

    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(width, width)
        self.cell = nn.GRUCell(width, width)

    def forward(self, nodes, edges):
        """In: nodes (nodes, width), edges (2, edges)."""
        sources, targets = edges
        summed = torch.zeros_like(nodes).index_add(0, targets, self.message(nodes).index_select(0, sources))
        degrees = torch.zeros(len(nodes)).index_add(0, targets, torch.ones(len(targets)))
        return self.cell(summed / degrees.clamp(min=1)[:, None], nodes)


class GraphToAnswer(nn.Module):
    """Encoder of the batch, attention within each graph, answer."""

    def __init__(self, width=32, depth=1):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(MessageLayer(width) for _ in range(depth))
        self.attention = nn.Linear(width + 1, 1)
        self.answer = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, ANSWERS))

    def encode(self, batch):
        """Set the nodes' states as a feature of the batch."""
        edges = torch.tensor(batch.edges).T
        nodes = self.words(batch.node_features["word"])
        for layer in self.layers:
            nodes = layer(nodes, edges)
        batch.node_features["state"] = nodes

    def forward(self, graphs):
        batch = to_batch(graphs)
        self.encode(batch)
        parts = from_batch(batch)
        states = nn.utils.rnn.pad_sequence([part.node_features["state"] for part in parts], batch_first=True)
        incoming = torch.zeros(states.shape[:2])
        for number, part in enumerate(parts):
            targets = torch.tensor([target for _, target in part.edges])
            incoming[number] = torch.bincount(targets, minlength=states.shape[1]).float()
        counts = torch.tensor([part.node_count for part in parts])
        beyond = torch.arange(states.shape[1])[None] >= counts[:, None]
        weights = self.attention(torch.cat([states, incoming[..., None]], -1)).squeeze(-1)
        weights = weights.masked_fill(beyond, float("-inf")).softmax(-1)
        return self.answer((weights[..., None] * states).sum(1))


def make_sentences():
    """Made-up sentences: a chain of words, some links across, and an answer that the words decide."""
    values = torch.randn(WORDS, ANSWERS)
    sentences = []
    for _ in range(SENTENCES):
        count = int(torch.randint(16, 33, (1,)))
        graph = WordGraph()
        graph.add_nodes(count)
        graph.node_features["word"] = torch.randint(0, WORDS, (count,))
        graph.add_edges(range(count - 1), range(1, count))
        graph.add_edges(range(1, count), range(count - 1))
        across = torch.randint(0, count, (2, count))
        graph.add_edges(*across.tolist())
        sentences.append((graph, int(values[graph.node_features["word"]].sum(0).max(0).indices)))
    return sentences


class Curriculum:
    """Hands out batches; goes through the sentences in an order drawn anew each time."""

    def __init__(self, sentences):
        self.sentences, self.order = sentences, []

    def next(self):
        if len(self.order) < BATCH:
            self.order = torch.randperm(len(self.sentences)).tolist()
        chosen, self.order = self.order[:BATCH], self.order[BATCH:]
        graphs, answers = zip(*(self.sentences[index] for index in chosen))
        return graphs, torch.tensor(answers)


@torch.no_grad()
def evaluate(model, sentences):
    """Share of right answers."""
    model.eval()
    graphs, answers = zip(*sentences)
    right = (model(graphs).max(-1).indices == torch.tensor(answers)).float().mean().item()
    model.train()
    return right


def main():
    torch.manual_seed(0)
    sentences = make_sentences()
    curriculum, aside = Curriculum(sentences[BATCH:]), sentences[:BATCH]
    model = GraphToAnswer()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 500, gamma=0.7)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        graphs, answers = curriculum.next()
        loss = nn.functional.cross_entropy(model(graphs), answers, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % REPORT_EVERY == REPORT_EVERY - 1:
            print(f"step {step + 1}: loss {loss.item():.4f}, right aside {evaluate(model, aside):.3f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
