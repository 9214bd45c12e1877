"""Which edges of a mesh have become one."""

import torch


class MeshUnion:
    def __init__(self, n, together=False):
        self.groups = torch.eye(n)
        self.together, self.sources, self.targets = together, [], []

    def union(self, source, target):
        if self.together:
            self.sources.append(source)
            self.targets.append(target)
        else:
            self.groups[target, :] += self.groups[source, :]

    def rebuild_features(self, features, mask):
        if self.sources:
            self.groups.index_add_(0, torch.tensor(self.targets), self.groups[self.sources])
        groups = self.groups[mask]
        return features @ (groups / groups.sum(1, keepdim=True)).T
