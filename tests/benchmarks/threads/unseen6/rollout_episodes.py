"""Rollouts taken apart at the ends of their episodes."""

import torch


def episodes_of(dones, device):
    """Where the episodes of each rollout lie, as indices: told by the host, which has the dones."""
    length, spans = len(dones), []
    for column in range(dones.shape[1]):
        ends = (dones[:, column].nonzero().flatten() + 1).tolist()
        starts = [0, *(end for end in ends if end < length)]
        stops = [*starts[1:], length]
        spans += [(column, start, stop) for start, stop in zip(starts, stops, strict=True)]
    longest = max(stop - start for _, start, stop in spans)
    rows = torch.zeros(longest, len(spans), dtype=torch.long)
    back = torch.zeros(length, dones.shape[1], dtype=torch.long)
    for i, (column, start, stop) in enumerate(spans):
        rows[: stop - start, i] = torch.arange(start, stop) * dones.shape[1] + column
        back[start:stop, column] = torch.arange(stop - start) * len(spans) + i
    return {
        "lengths": torch.tensor([stop - start for _, start, stop in spans]),
        "rows": rows.to(device),
        "back": back.flatten().to(device),
        "column": torch.tensor([column for column, _, _ in spans], device=device),
        "fresh": torch.tensor([start > 0 for _, start, _ in spans], device=device),
    }
