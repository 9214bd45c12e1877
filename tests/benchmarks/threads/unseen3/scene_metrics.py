"""Scores of changed and unchanged pixels."""

import numpy as np


def confusion_matrix(truth, predicted):
    labels = np.unique(np.concatenate([truth, predicted]))
    place = {label: i for i, label in enumerate(labels)}
    truth = np.array([place[t] for t in truth])
    predicted = np.array([place[p] for p in predicted])
    matrix = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(matrix, (truth, predicted), 1)
    return matrix


def precision_recall_f1(truth, predicted):
    matrix = confusion_matrix(truth, predicted)
    hit = matrix[-1, -1]
    precision, recall = hit / max(matrix[:, -1].sum(), 1), hit / max(matrix[-1].sum(), 1)
    return precision, recall, 2 * precision * recall / max(precision + recall, 1e-9)
