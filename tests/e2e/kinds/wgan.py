"""Five critic updates, each on a fresh batch, for one generator update: a step is a critic batch."""

import torch
from truth import iteration, loader, network

generator = torch.nn.Linear(8, 16)
critic = network()
for_generator = torch.optim.Adam(generator.parameters())
for_critic = torch.optim.Adam(critic.parameters())
for i, (x, _y) in enumerate(loader()):
    iteration()
    for_critic.zero_grad()
    fake = generator(torch.randn(4, 8))
    (critic(x).mean() - critic(fake.detach()).mean()).backward()
    for_critic.step()
    if i % 5 == 4:
        for_generator.zero_grad()
        critic(generator(torch.randn(4, 8))).mean().backward()
        for_generator.step()
