"""Pairs and triplets of the rows of a batch."""

import numpy as np
import torch


def random_triplets(labels, per_anchor=1):
    labels = labels.numpy()
    indices = np.arange(len(labels))
    anchors, positives, negatives = [], [], []
    for i, label in enumerate(labels):
        same = np.where((labels == label) & (indices != i))[0]
        other = np.where(labels != label)[0]
        if len(same) == 0 or len(other) == 0:
            continue
        anchors += [i] * per_anchor
        positives += list(np.random.choice(same, per_anchor))
        negatives += list(np.random.choice(other, per_anchor))
    return torch.tensor(anchors), torch.tensor(positives), torch.tensor(negatives)


def random_triplets_by_group(labels, per_anchor=1):
    labels, order = labels.sort()
    _, group, counts = labels.unique_consecutive(return_inverse=True, return_counts=True)
    starts = (counts.cumsum(0) - counts)[group].repeat_interleave(per_anchor)
    sizes = counts[group].repeat_interleave(per_anchor)
    own = torch.arange(len(labels)).repeat_interleave(per_anchor)
    usable = (sizes > 1) & (sizes < len(labels))
    starts, sizes, own = starts[usable], sizes[usable], own[usable]
    positives = starts + (torch.rand(len(own)) * (sizes - 1)).long()
    negatives = (torch.rand(len(own)) * (len(labels) - sizes)).long()
    positives, negatives = positives + (positives >= own), negatives + (negatives >= starts) * sizes
    return order[own], order[positives], order[negatives]
