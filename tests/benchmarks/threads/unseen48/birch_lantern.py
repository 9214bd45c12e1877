"""Relation extraction: a graph network over pruned dependency trees, on synthetic sentences."""

import os
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

VOCABULARY, TAGS, ENTITIES, RELATIONS = 20000, 47, 15, 42
BATCH, SENTENCES = (4, 40) if SMALL else (40, 2400)
WORD, TAG, HIDDEN, LAYERS = 300, 30, 200, 2
PRUNE, FAR = 1, 1e12


class Node:
    """One token of a dependency tree."""

    def __init__(self, index):
        self.index = index
        self.children = []


def head_to_tree(head, tokens, length, prune, subj_pos, obj_pos):
    """The part of a sentence's tree that lies close to the path between subject and object."""
    tokens = tokens[:length].tolist()
    head = head[:length].tolist()
    assert len(tokens) == len(head)
    subject = [i for i in range(length) if subj_pos[i] == 0]
    object_ = [i for i in range(length) if obj_pos[i] == 0]
    common = None
    reached = []
    for group in (subject, object_):
        ancestors = set(group)
        for token in group:
            chain = [token]
            above = head[token]
            while above > 0:
                chain.append(above - 1)
                ancestors.add(above - 1)
                above = head[above - 1]
            common = set(chain) if common is None else common & set(chain)
        reached.append(ancestors)
    below = {k: 0 for k in common}
    for k in common:
        if head[k] > 0 and head[k] - 1 in common:
            below[head[k] - 1] += 1
    top = next(k for k in common if below[k] == 0)
    path = (reached[0] | reached[1]) - common
    path.add(top)
    distance = [0 if i in path else -1 for i in range(length)]
    for i in range(length):
        if distance[i] < 0:
            stack = [i]
            while stack[-1] >= 0 and stack[-1] not in path:
                stack.append(head[stack[-1]] - 1)
            if stack[-1] in path:
                for steps, j in enumerate(reversed(stack)):
                    distance[j] = steps
            else:
                for j in stack:
                    if j >= 0 and distance[j] < 0:
                        distance[j] = 10000
    nodes = [Node(i) if distance[i] <= prune else None for i in range(length)]
    for i, node in enumerate(nodes):
        if node is not None and head[i] > 0 and i != top:
            nodes[head[i] - 1].children.append(node)
    return nodes[top]


def tree_to_adjacency(size, tree):
    """Adjacency matrix of a tree, both ways."""
    matrix = np.zeros((size, size), dtype=np.float32)
    queue = [tree]
    while queue:
        node = queue.pop(0)
        for child in node.children:
            matrix[node.index, child.index] = 1
        queue += node.children
    return matrix + matrix.T


class Sentences:
    """Sentences sorted by length and cut into batches."""

    def __init__(self, count, batch, seed):
        draw = random.Random(seed)
        data = [self.sentence(draw) for _ in range(count)]
        data.sort(key=lambda item: -len(item["words"]))
        self.batches = [data[i : i + batch] for i in range(0, count - batch + 1, batch)]
        draw.shuffle(self.batches)

    @staticmethod
    def sentence(draw):
        length = draw.randint(12, 45)
        order = list(range(length))
        draw.shuffle(order)
        head = [0] * length
        for place in range(1, length):
            head[order[place]] = order[draw.randint(max(0, place - 4), place - 1)] + 1
        first = draw.randint(0, length // 2 - 3)
        second = draw.randint(length // 2, length - 3)
        relation = draw.randint(0, RELATIONS - 1)
        words = [draw.randint(2, VOCABULARY - 1) for _ in range(length)]
        words[first] = 2 + relation
        return {
            "words": words,
            "tags": [draw.randint(1, TAGS - 1) for _ in range(length)],
            "entities": [draw.randint(1, ENTITIES - 1) for _ in range(length)],
            "head": head,
            "subj_pos": [0 if first <= i <= first + 1 else i - first for i in range(length)],
            "obj_pos": [0 if second <= i <= second + 1 else i - second for i in range(length)],
            "relation": relation,
        }

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        batch = self.batches[index]
        longest = max(len(item["words"]) for item in batch)
        fields = []
        for name in ("words", "tags", "entities", "head", "subj_pos", "obj_pos"):
            padding = 10000 if name.endswith("pos") else 0
            table = np.full((len(batch), longest), padding, dtype=np.int64)
            for row, item in enumerate(batch):
                table[row, : len(item[name])] = item[name]
            fields.append(torch.from_numpy(table).to(device))
        lengths = [len(item["words"]) for item in batch]
        return fields, lengths, torch.tensor([item["relation"] for item in batch], device=device)


class TreeNetwork(nn.Module):
    """Word vectors, a bidirectional LSTM, graph convolutions over the trees, a classifier."""

    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, WORD, padding_idx=0)
        self.tag = nn.Embedding(TAGS, TAG)
        self.entity = nn.Embedding(ENTITIES, TAG)
        self.drop = nn.Dropout(0.5)
        self.rnn = nn.LSTM(WORD + 2 * TAG, HIDDEN, 1, batch_first=True, bidirectional=True)
        self.graph = nn.ModuleList(nn.Linear(2 * HIDDEN if i == 0 else HIDDEN, HIDDEN) for i in range(LAYERS))
        self.out = nn.Sequential(
            nn.Linear(3 * HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()
        )
        self.classifier = nn.Linear(HIDDEN, RELATIONS)

    def adjacency(self, head, words, lengths, subj_pos, obj_pos):
        if VARIANT != "a":
            head, words = head.cpu().numpy(), words.cpu().numpy()
            subj_pos, obj_pos = subj_pos.cpu().numpy(), obj_pos.cpu().numpy()
        trees = [
            head_to_tree(head[i], words[i], lengths[i], PRUNE, subj_pos[i], obj_pos[i])
            for i in range(len(lengths))
        ]
        matrices = np.stack([tree_to_adjacency(max(lengths), tree) for tree in trees])
        return torch.from_numpy(matrices).to(device)

    def forward(self, fields, lengths):
        words, tags, entities, head, subj_pos, obj_pos = fields
        adjacency = self.adjacency(head, words, lengths, subj_pos, obj_pos)
        x = self.drop(torch.cat([self.word(words), self.tag(tags), self.entity(entities)], dim=2))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        x = self.drop(nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])
        degree = adjacency.sum(2, keepdim=True) + 1
        outside = (adjacency.sum(2) + adjacency.sum(1)).eq(0).unsqueeze(2)
        for layer in self.graph:
            x = F.relu((layer(adjacency.bmm(x)) + layer(x)) / degree)
        masks = (outside, subj_pos.ne(0).unsqueeze(2), obj_pos.ne(0).unsqueeze(2))
        pooled = [x.masked_fill(mask, -FAR).max(1)[0] for mask in masks]
        return self.classifier(self.out(torch.cat(pooled, dim=1))), pooled[0]


def evaluate(model, data):
    """Accuracy on a few batches."""
    model.eval()
    with torch.no_grad():
        batches = [data[i] for i in range(len(data))]
        right = [model(x, n)[0].argmax(1).eq(y).float().mean() for x, n, y in batches]
    model.train()
    return torch.stack(right).mean().item()


def main():
    torch.manual_seed(0)
    train, held_out = Sentences(SENTENCES, BATCH, 1), Sentences(2 * BATCH, BATCH, 2)
    model = TreeNetwork().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        fields, lengths, relation = train[step % len(train)]
        logits, pooled = model(fields, lengths)
        last = F.cross_entropy(logits, relation) + 1e-4 * pooled.pow(2).sum(1).mean()
        optimizer.zero_grad()
        last.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 1000 == 999:
            print(f"step {step + 1}: accuracy {evaluate(model, held_out):.3f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
