"""Trains a network that picks arrivals of waves in traces brought to the same weighted loudness."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
BATCH = int(os.environ.get("BATCH", 128))
SAMPLES = int(os.environ.get("SAMPLES", 768))
WIDTH = int(os.environ.get("WIDTH", 512))
LAYERS = int(os.environ.get("LAYERS", 8))
HEADS = 8
# a shelf and a high-pass, as numerator and denominator
SECTIONS = (
    ((1.5351, -2.6917, 1.1984), (1.0, -1.6907, 0.7325)),
    ((1.0, -2.0, 1.0), (1.0, -1.9404, 0.9415)),
)


def recurse(trace, b, a):
    """One second-order section along the last dimension of (rows, samples)."""
    rows, samples = trace.shape
    padded = F.pad(trace, (2, 0))
    forced = b[0] * padded[:, 2:] + b[1] * padded[:, 1:-1] + b[2] * padded[:, :-2]
    out = torch.zeros(rows, samples + 2, device=trace.device)
    back = torch.tensor([a[2], a[1]], device=trace.device)
    for i, o in enumerate(forced.t()):
        out[:, i + 2] = torch.addmv(o, out[:, i : i + 2], back, alpha=-1)
    return out[:, 2:]


class Weighting(nn.Module):
    """The weighting of a trace before its loudness is taken."""

    def __init__(self, samples):
        super().__init__()
        pulse = torch.zeros(1, samples)
        pulse[0, 0] = 1.0
        self.register_buffer("response", self.by_sample(pulse)[0])

    def by_sample(self, trace):
        for b, a in SECTIONS:
            trace = recurse(trace, b, a)
        return trace

    def by_spectrum(self, trace):
        size = 2 * trace.shape[1]
        spectrum = torch.fft.rfft(trace, size) * torch.fft.rfft(self.response, size)
        return torch.fft.irfft(spectrum, size)[:, : trace.shape[1]]

    @torch.no_grad()
    def forward(self, trace):
        flat = trace.flatten(0, 1)
        weighted = self.by_sample(flat) if VARIANT == "a" else self.by_spectrum(flat)
        return weighted.view(trace.shape)


class Picker(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv1d(3, WIDTH, 9, stride=4, padding=4)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, trace):
        x = self.inp(trace).transpose(1, 2)
        return self.out(self.body(x)).squeeze(2).float()


def make_traces(device, count=8):
    """Noise of differing strength, with an arrival somewhere in it."""
    traces, arrivals = [], []
    t = torch.arange(SAMPLES, device=device)
    for _ in range(count):
        arrival = torch.randint(SAMPLES // 8, SAMPLES - SAMPLES // 8, (BATCH,), device=device)
        after = (t - arrival[:, None]).clamp(min=0)[:, None]
        wave = torch.sin(0.4 * after) * torch.exp(-0.02 * after)
        trace = 0.2 * torch.randn(BATCH, 3, SAMPLES, device=device) + wave
        traces.append(trace * torch.exp(torch.randn(BATCH, 1, 1, device=device)))
        arrivals.append(arrival // 4)
    return traces, arrivals


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(30)
    traces, arrivals = make_traces(device)
    weighting = Weighting(SAMPLES).to(device)
    net = Picker().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        trace = traces[step % len(traces)]
        loudness = weighting(trace).square().mean((1, 2), keepdim=True).sqrt()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = net(trace / loudness)
        loss = F.cross_entropy(scores, arrivals[step % len(arrivals)])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
