"""What only a run on a GPU has: device work, kernels, and the questions put to its replay."""
