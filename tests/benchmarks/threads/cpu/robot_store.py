"""Episodes of a robot, kept as rows of columns; cameras are compressed."""

import io

import numpy as np
import torch
from PIL import Image

FLOATS = {"observation.state": 7, "action": 7, "timestamp": 1}
CAMERAS = ("observation.images.top",)


def make_rows(count, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    frames = [_encode(rng) for _ in range(16)]
    for i in range(count):
        row = {key: rng.standard_normal(size).astype("float32").tolist() for key, size in FLOATS.items()}
        row |= {key: frames[int(rng.integers(16))] for key in CAMERAS}
        row["index"] = i
        rows.append(row)
    return rows


def _encode(rng):
    small = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize((80, 60)).save(buffer, format="JPEG")
    return buffer.getvalue()


def to_torch(row):
    out = {}
    for key, value in row.items():
        if isinstance(value, bytes):
            frame = np.asarray(Image.open(io.BytesIO(value)).convert("RGB"))
            out[key] = torch.from_numpy(frame.copy()).permute(2, 0, 1).float() / 255
        else:
            out[key] = torch.tensor(value)
    return out


class Column:
    def __init__(self, table, key):
        self.table, self.key = table, key

    def __getitem__(self, i):
        return self.table[i][self.key]


class Table:
    def __init__(self, rows, transform=None):
        self.rows, self.transform = rows, transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        if isinstance(key, str):
            return Column(self, key)
        row = self.rows[key]
        return self.transform(row) if self.transform else row

    def with_transform(self, transform):
        return Table(self.rows, transform)
