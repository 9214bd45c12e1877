"""Forecast several observation streams at once; a smoothed copy of the weights serves as teacher."""

import copy
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1400"))
STREAMS = int(os.environ.get("STREAMS", "48"))
PRESENT = int(os.environ.get("PRESENT", "16"))
BATCH = int(os.environ.get("BATCH", "64"))
WIDTH = int(os.environ.get("WIDTH", "256"))
LAYERS = int(os.environ.get("LAYERS", "8"))
CHANNELS = 24

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class StreamEmbed(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(n_in), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(n_in, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc3 = nn.Linear(WIDTH, n_out)

    def forward(self, x):
        h = F.gelu(self.fc1(self.norm_in(x)))
        return self.fc3(self.norm_out(h + self.fc2(h)))


class MonsoonModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeds = nn.ModuleList([StreamEmbed(CHANNELS, WIDTH) for _ in range(STREAMS)])
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.global_blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.heads = nn.ModuleList([StreamEmbed(WIDTH, CHANNELS) for _ in range(STREAMS)])

    def forward(self, x, present):
        tokens = torch.stack([self.embeds[i](x[:, i]) for i in present], dim=1)
        tokens = self.global_blocks(tokens)
        return torch.stack([self.heads[i](tokens[:, k]) for k, i in enumerate(present)], dim=1)


class TeacherModel:
    def __init__(self, model, halflife_steps=1000.0, rampup_ratio=0.09):
        self.original_model = model
        self.halflife_steps, self.rampup_ratio = halflife_steps, rampup_ratio
        self.ema_model = copy.deepcopy(model)
        self.src_params = dict(model.named_parameters())
        self.reset()

    @torch.no_grad()
    def reset(self):
        self.ema_model.load_state_dict(self.original_model.state_dict())
        for p in self.ema_model.parameters():
            p.requires_grad = False
        self.ema_model.eval()
        self.pairs_ema, self.pairs_src = [], []
        for name, p_ema in self.ema_model.named_parameters():
            self.pairs_ema.append(p_ema)
            self.pairs_src.append(self.src_params[name].data)

    def current_beta(self, cur_step):
        halflife = min(self.halflife_steps, cur_step / self.rampup_ratio)
        return 0.5 ** (1.0 / max(halflife, 1e-6))

    @torch.no_grad()
    def update_by_name(self, cur_step):
        beta = self.current_beta(cur_step)
        for name, p_ema in self.ema_model.named_parameters():
            p_src = self.src_params.get(name, None)
            p_src = self.src_params.get("module." + name, None) if p_src is None else p_src
            if "identity" in name.lower() or "q_cells" in name.lower():
                continue
            if p_src is None:
                raise KeyError(f"{name}: all parameters of the teacher must be in the base model.")
            p_ema.lerp_(p_src, 1.0 - beta)

    @torch.no_grad()
    def update_pairs(self, cur_step):
        torch._foreach_lerp_(self.pairs_ema, self.pairs_src, 1.0 - self.current_beta(cur_step))


def main():
    torch.manual_seed(0)
    model = MonsoonModel().to(device)
    teacher = TeacherModel(model)
    teacher_update = teacher.update_by_name if VARIANT == "a" else teacher.update_pairs
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    field = torch.randn(64, BATCH, STREAMS, CHANNELS, device=device)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        now, nxt = field[step % 63], field[step % 63 + 1]
        present = [(7 * step + k) % STREAMS for k in range(PRESENT)]
        loss = F.mse_loss(model(now, present), torch.stack([nxt[:, i] for i in present], dim=1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        teacher_update(step + 1)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    with torch.no_grad():
        teacher_loss = F.mse_loss(teacher.ema_model(field[0], range(STREAMS)), field[1])
    print(f"teacher {teacher_loss.item():.5f}")
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
