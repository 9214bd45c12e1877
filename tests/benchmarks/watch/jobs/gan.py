"""Two optimizers in each step, pictures every 80 steps without gradients, saved by hand."""

from clock import clock, lap, no_more_laps

with clock("interpreter and imports"):
    import time

    import torch
    import torch._dynamo  # optimizers import it
    from torch.utils.data import DataLoader, TensorDataset

with clock("set-up"):
    torch.set_num_threads(1)
    G = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    D = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.LeakyReLU(0.2), torch.nn.Linear(256, 1))
    g_opt = torch.optim.Adam(G.parameters(), 1e-4)
    d_opt = torch.optim.Adam(D.parameters(), 1e-4)
    loader = DataLoader(TensorDataset(torch.randn(8 * 200, 64)), batch_size=8, shuffle=True)
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    fixed = torch.randn(64, 16)

lap(first=True)
step = 0
for epoch in range(3):
    for (real,) in loader:
        fake = G(torch.randn(8, 16))
        d_loss = bce(D(real), torch.ones(8, 1)) + bce(D(fake.detach()), torch.zeros(8, 1))
        d_opt.zero_grad()
        d_loss.backward()
        d_opt.step()
        g_loss = bce(D(fake), torch.ones(8, 1))
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        time.sleep(0.008)
        step += 1
        if step % 80 == 0:
            with clock("validation"), torch.no_grad():
                for _ in range(20):
                    G(fixed).numpy().tobytes()
                    time.sleep(0.01)
        lap()
    with clock("checkpoints"):
        torch.save([G.state_dict(), D.state_dict(), torch.zeros(8_000_000)], "gan.pt")
no_more_laps()
