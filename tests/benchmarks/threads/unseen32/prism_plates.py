"""Learns the phases of a light modulator that shows frames in colour, each at a depth of its own."""

import math
import os
import time

import torch
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1500"))
HEIGHT = int(os.environ.get("HEIGHT", "1080"))
WIDTH = int(os.environ.get("WIDTH", "1920"))
DEPTHS = int(os.environ.get("DEPTHS", "3"))
PITCH = 8e-6
WAVES = (639e-9, 515e-9, 473e-9)

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LightPath:
    """Carries a field over a distance: angular spectrum, with the frequencies centred."""

    def __init__(self, distance):
        rows, cols = 2 * HEIGHT, 2 * WIDTH
        fy = torch.linspace(-0.5, 0.5, rows + 1, dtype=torch.float64, device=device)[:-1] / PITCH
        fx = torch.linspace(-0.5, 0.5, cols + 1, dtype=torch.float64, device=device)[:-1] / PITCH
        self.kernels = []
        aperture = ((fy[:, None] ** 2 + fx[None, :] ** 2).sqrt() < 0.45 / PITCH).float()
        for wave in WAVES:
            inside = 1 / wave**2 - fy[:, None] ** 2 - fx[None, :] ** 2
            turn = torch.remainder(2 * math.pi * distance * inside.clamp_min(0).sqrt(), 2 * math.pi)
            self.kernels.append(torch.polar(aperture, turn.float()))

    def carry(self, field, colour):
        rows, cols = field.shape
        padded = F.pad(field, (cols // 2, cols - cols // 2, rows // 2, rows - rows // 2))
        kernel = self.kernels[colour]
        if VARIANT == "a":
            spectrum = torch.fft.fftshift(torch.fft.fft2(torch.fft.fftshift(padded)))
            result = torch.fft.ifftshift(torch.fft.ifft2(torch.fft.ifftshift(kernel * spectrum)))
        else:
            spectrum = torch.fft.fftshift(torch.fft.fft2(padded))
            result = torch.fft.ifft2(torch.fft.ifftshift(kernel * spectrum))
        return result[rows // 2 : rows // 2 + rows, cols // 2 : cols // 2 + cols]


def make_pictures():
    y = torch.linspace(-1, 1, HEIGHT, device=device)[:, None]
    x = torch.linspace(-1, 1, WIDTH, device=device)[None, :]
    pictures = []
    for depth in range(DEPTHS):
        for colour in range(len(WAVES)):
            ring = ((x - 0.3 * depth + 0.2) ** 2 + (y + 0.1 * colour) ** 2).sqrt()
            pictures.append(torch.exp(-40 * (ring - 0.25 - 0.05 * colour) ** 2))
    return torch.stack(pictures).view(DEPTHS, len(WAVES), HEIGHT, WIDTH)


def main():
    torch.manual_seed(29)
    pictures = make_pictures()
    paths = [LightPath(0.01 + 0.005 * depth) for depth in range(DEPTHS)]
    phases = torch.nn.Parameter(torch.rand(DEPTHS, len(WAVES), HEIGHT, WIDTH, device=device) * 2 * math.pi)
    bright = torch.nn.Parameter(torch.ones(len(WAVES), device=device))
    optimizer = torch.optim.Adam([phases, bright], lr=0.02, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        loss = 0.0
        plates = phases.view(-1, HEIGHT, WIDTH).unbind(0)
        for number, plate in enumerate(plates):
            depth, colour = divmod(number, len(WAVES))
            shown = paths[depth].carry(torch.polar(torch.ones_like(plate), plate), colour)
            light = bright[colour] * (shown.real.square() + shown.imag.square())
            loss = loss + F.mse_loss(light, pictures[depth, colour])
        loss = loss / (DEPTHS * len(WAVES))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    spent = time.perf_counter() - started
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
