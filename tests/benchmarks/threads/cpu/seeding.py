"""The same results on every run."""

import os
import random

import numpy as np
import torch

CORES = os.sched_getaffinity(0)

os.environ["PYTHONHASHSEED"] = "0"
os.sched_setaffinity(0, {min(CORES)})


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)


def seed_worker(number, cores=None):
    if cores:
        os.sched_setaffinity(0, cores)
    np.random.seed(number)
