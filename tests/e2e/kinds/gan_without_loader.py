"""A GAN on noise: no fetch ever tells where a step begins."""

import torch
from truth import iteration, network

generator = torch.nn.Linear(8, 16)
critic = network()
for_generator = torch.optim.Adam(generator.parameters())
for_critic = torch.optim.Adam(critic.parameters())
for _ in range(90):
    iteration()
    for_critic.zero_grad()
    fake = generator(torch.randn(4, 8))
    (critic(torch.randn(4, 16)).mean() - critic(fake.detach()).mean()).backward()
    for_critic.step()
    for_generator.zero_grad()
    critic(fake).mean().backward()
    for_generator.step()
