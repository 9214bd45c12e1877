"""Autoencoder of wide linear layers on data that are in memory; no loader, plain tensors.

Healthy: compute-bound (matrix products).
"""

import time

import torch

TRUTH = "compute-bound"

torch.manual_seed(0)
dev = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
wide, batch = (8192, 4096) if dev.type == "cuda" else (768, 256)
data = torch.rand(10 * batch, wide, device=dev)
encoder = torch.nn.Sequential(torch.nn.Linear(wide, wide), torch.nn.ReLU(), torch.nn.Linear(wide, 64))
decoder = torch.nn.Sequential(torch.nn.Linear(64, wide), torch.nn.ReLU(), torch.nn.Linear(wide, wide))
net = torch.nn.Sequential(encoder, decoder).to(dev)
opt = torch.optim.SGD(net.parameters(), lr=0.1)

stamps = []
for it in range(100):
    stamps.append(time.time())
    x = data[(it % 10) * batch : (it % 10 + 1) * batch]
    opt.zero_grad()
    loss = (net(x) - x).pow(2).mean()
    loss.backward()
    opt.step()
print("final loss", float(loss))
print(f"step_ms={(time.time() - stamps[20]) * 1000 / 80:.3f}")
