"""Recommend the next item of a shopping session with a gated graph network over the session."""

from __future__ import annotations

import math
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5000))


class SessionDataset:
    """Sessions of items, each with the item that came next; zeros fill the rest."""

    def __init__(self, count: int, n_items: int, max_length: int, seed: int):
        rng = np.random.default_rng(seed)
        self.item_seq = np.zeros((count, max_length), dtype=np.int64)
        self.item_length = np.minimum(rng.geometric(0.08, size=count) + 1, max_length)
        self.target = np.zeros(count, dtype=np.int64)
        for row in range(count):
            length = self.item_length[row]
            centre = rng.integers(1, n_items)
            walk = (centre + rng.integers(-12, 13, size=length + 1)) % (n_items - 1) + 1
            again = rng.random(length + 1) < 0.2
            walk[again] = walk[rng.integers(0, length + 1, size=int(again.sum()))]
            self.item_seq[row, :length] = walk[:length]
            self.target[row] = walk[length]

    def __len__(self) -> int:
        return len(self.target)


class SessionLoader:
    """Hands out batches of sessions as dictionaries of tensors."""

    def __init__(self, dataset: SessionDataset, batch_size: int, shuffle: bool, seed: int = 0):
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        order = self.rng.permutation(len(self.dataset)) if self.shuffle else np.arange(len(self.dataset))
        for begin in range(0, len(order) - self.batch_size + 1, self.batch_size):
            rows = order[begin : begin + self.batch_size]
            yield {
                "item_id_list": torch.from_numpy(self.dataset.item_seq[rows]),
                "item_length": torch.from_numpy(self.dataset.item_length[rows]),
                "item_id": torch.from_numpy(self.dataset.target[rows]),
            }


class GNN(nn.Module):
    """Gated updates of the nodes from those before and after them."""

    def __init__(self, size: int, step: int = 1):
        super().__init__()
        self.size, self.step = size, step
        self.w_ih = nn.Parameter(torch.empty(3 * size, 2 * size))
        self.w_hh = nn.Parameter(torch.empty(3 * size, size))
        self.b_ih = nn.Parameter(torch.zeros(3 * size))
        self.b_hh = nn.Parameter(torch.zeros(3 * size))
        self.edge_in = nn.Linear(size, size)
        self.edge_out = nn.Linear(size, size)

    def cell(self, A: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        n = A.shape[1]
        before = torch.matmul(A[:, :, :n], self.edge_in(hidden))
        after = torch.matmul(A[:, :, n:], self.edge_out(hidden))
        gi = F.linear(torch.cat([before, after], 2), self.w_ih, self.b_ih)
        gh = F.linear(hidden, self.w_hh, self.b_hh)
        i_r, i_z, i_n = gi.chunk(3, 2)
        h_r, h_z, h_n = gh.chunk(3, 2)
        reset, update = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
        new = torch.tanh(i_n + reset * h_n)
        return (1 - update) * hidden + update * new

    def forward(self, A: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        for _ in range(self.step):
            hidden = self.cell(A, hidden)
        return hidden


class SRGNN(nn.Module):
    """Session graphs: their nodes are items, their edges go from one item to the next."""

    def __init__(self, n_items: int, size: int = 64, step: int = 1):
        super().__init__()
        self.item_embedding = nn.Embedding(n_items, size, padding_idx=0)
        self.gnn = GNN(size, step)
        self.linear_one = nn.Linear(size, size)
        self.linear_two = nn.Linear(size, size)
        self.linear_three = nn.Linear(size, 1, bias=False)
        self.linear_transform = nn.Linear(2 * size, size)
        bound = 1.0 / math.sqrt(size)
        for weight in self.parameters():
            weight.data.uniform_(-bound, bound)

    def _get_slice(self, item_seq: torch.Tensor):
        """The nodes of each session, its two matrices side by side, and each item's node."""
        items, A, alias_inputs = [], [], []
        max_n_node = item_seq.size(1)
        for u_input in item_seq.numpy():
            node = np.unique(u_input)
            items.append(node.tolist() + (max_n_node - len(node)) * [0])
            u_A = np.zeros((max_n_node, max_n_node))
            for i in range(len(u_input) - 1):
                if u_input[i + 1] == 0:
                    break
                u = np.where(node == u_input[i])[0][0]
                v = np.where(node == u_input[i + 1])[0][0]
                u_A[u][v] = 1
            u_sum_in = np.sum(u_A, 0)
            u_sum_in[u_sum_in == 0] = 1
            u_A_in = np.divide(u_A, u_sum_in)
            u_sum_out = np.sum(u_A, 1)
            u_sum_out[u_sum_out == 0] = 1
            u_A_out = np.divide(u_A.transpose(), u_sum_out)
            A.append(np.concatenate([u_A_in, u_A_out]).transpose())
            alias_inputs.append([np.where(node == i)[0][0] for i in u_input])
        alias_inputs = torch.LongTensor(alias_inputs)
        A = torch.FloatTensor(A) if VARIANT == "a" else torch.FloatTensor(np.array(A))
        items = torch.LongTensor(items)
        return alias_inputs, A, items, item_seq.gt(0)

    def forward(self, item_seq: torch.Tensor, item_seq_len: torch.Tensor) -> torch.Tensor:
        alias_inputs, A, items, mask = self._get_slice(item_seq)
        hidden = self.gnn(A, self.item_embedding(items))
        index = alias_inputs.unsqueeze(-1).expand(-1, -1, hidden.size(-1))
        seq_hidden = torch.gather(hidden, 1, index)
        last = seq_hidden[torch.arange(item_seq.size(0)), item_seq_len - 1]
        alpha = self.linear_three(torch.sigmoid(self.linear_one(last)[:, None] + self.linear_two(seq_hidden)))
        pooled = torch.sum(alpha * seq_hidden * mask.unsqueeze(-1).float(), 1)
        return self.linear_transform(torch.cat([pooled, last], 1))

    def full_scores(self, batch: dict) -> torch.Tensor:
        return self(batch["item_id_list"], batch["item_length"]) @ self.item_embedding.weight.T

    def calculate_loss(self, batch: dict) -> torch.Tensor:
        return F.cross_entropy(self.full_scores(batch), batch["item_id"])


@torch.no_grad()
def evaluate(model: SRGNN, loader: SessionLoader, k: int = 20) -> dict:
    """Recall and mean reciprocal rank among the best k items."""
    model.eval()
    hits, ranks, count = 0.0, 0.0, 0
    for batch in loader:
        best = model.full_scores(batch).topk(k, 1).indices
        found = best == batch["item_id"][:, None]
        hits += found.any(1).sum().item()
        ranks += (found / torch.arange(1, k + 1)).sum().item()
        count += len(best)
    model.train()
    return {f"recall@{k}": hits / count, f"mrr@{k}": ranks / count}


def main() -> None:
    torch.manual_seed(0)
    n_items, max_length = 12000, 30
    train = SessionLoader(SessionDataset(6400, n_items, max_length, seed=1), 64, shuffle=True)
    valid = SessionLoader(SessionDataset(256, n_items, max_length, seed=2), 64, shuffle=False)
    model = SRGNN(n_items)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    warm, step, epoch = min(10, STEPS // 2), 0, 0
    while step < STEPS:
        for batch in train:
            if step == warm:
                start = time.perf_counter()
            loss = model.calculate_loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
        epoch += 1
        if epoch <= 12:
            scheduler.step()
        if epoch % 2 == 0:
            print(f"epoch {epoch} " + " ".join(f"{k} {v:.4f}" for k, v in evaluate(model, valid).items()))
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
