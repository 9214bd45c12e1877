"""Does every run-time patch take effect on a GPU? Runs a small script with each, prints what it says.

    python tests/benchmarks/patches_on_gpu.py [--seconds 90] [FX... ...]

What the CPU cannot show: pinning once training begins, switches read after the script's own set-up,
allocator settings through the environment, CUDA graphs beside gradients that are filled with zeros or
added up over several backward passes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from torch_bottleneck.model.verify import Wish
from torch_bottleneck.runs.target import Target
from torch_bottleneck.verify.arms import Arms

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
zeroed, passes = "zeros" in sys.argv, 2 if "passes" in sys.argv else 1
blocks = nn.Sequential(*(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(4)))
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
images = TensorDataset(torch.randn(4096, 3, 32, 32), torch.randint(10, (4096,)))
torch.set_float32_matmul_precision("highest")
for epoch in range(4):
    for i, (inputs, labels) in enumerate(DataLoader(images, batch_size=64)):
        loss = nn.functional.cross_entropy(model(inputs.to("cuda")), labels.to("cuda"))
        if i % passes == 0:
            optimizer.zero_grad(set_to_none=not zeroed)
        loss.backward()
        if i % passes == passes - 1:
            optimizer.step()
"""
PLAN = (
    ("", ()),
    ("FX412", ("zeros",)),
    ("FX412", ("passes",)),
    ("FX412", ("zeros", "passes")),
    ("FX412", ()),
    ("FX103", ()),
    ("FX301", ()),
    ("FX308", ()),
    ("FX324", ()),
    ("FX201", ()),
    ("FX210", ()),
    ("FX414", ()),
    ("FX410", ()),
)


def main() -> None:
    """Run, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("fixes", nargs="*")
    parser.add_argument("--seconds", type=float, default=90.0)
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        (here / "small.py").write_text(SCRIPT)
        for number, (fix, words) in enumerate(PLAN, 1):
            if (args.fixes and fix not in args.fixes) or time.monotonic() > end:
                continue
            target = Target(script=str(here / "small.py"), args=words, cwd=here)
            arms = Arms(target=target, folder=here, steps=20, limit_seconds=100)
            record, _ = arms.run(number, [Wish(fix=fix)] if fix else [])
            told = "; ".join(f"{a.state}: {a.evidence or a.reason}" for a in record.applied)
            step = f"{record.step_ms:.3f} ms" if record.step_ms is not None else record.reason[:300]
            start = f"{record.startup_seconds or 0:.1f} s to start, {record.seconds:.1f} s in all"
            print(
                f"{fix or 'as it is'} {' '.join(words)}: {record.status}, {step}, {start}; {told}", flush=True
            )
            if record.status == "failed":
                print((here / record.folder / "output.log").read_text()[-1500:], flush=True)
        cache = sum(len(files) for _, _, files in os.walk(here / ".inductor"))
        print(f"{cache} files in the verification's own compile cache", flush=True)


if __name__ == "__main__":
    main()
