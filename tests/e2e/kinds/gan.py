"""Discriminator and generator, each with its optimizer, one batch for both."""

import torch
from truth import iteration, loader, network

generator = torch.nn.Linear(8, 16)
critic = network()
for_generator = torch.optim.Adam(generator.parameters())
for_critic = torch.optim.Adam(critic.parameters())
batches = iter(loader())
for _ in range(90):
    iteration()
    x, _y = next(batches)
    for_critic.zero_grad()
    fake = generator(torch.randn(4, 8))
    (critic(x).mean() - critic(fake.detach()).mean()).backward()
    for_critic.step()
    for_generator.zero_grad()
    critic(fake).mean().backward()
    for_generator.step()
