"""An engine that owns backward and step, as DeepSpeed's does: flat master weights, its own accumulation."""

import torch
from truth import iteration, loader, network

ACCUMULATION = 2


class FlatOptimizer:
    """Steps one flat copy of all parameters and writes it back (ZeRO); no torch optimizer itself."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.flat = torch.nn.utils.parameters_to_vector(self.parameters).detach().clone()
        self.flat.requires_grad_()
        self.optimizer = torch.optim.AdamW([self.flat], lr=1e-3)
        self.param_groups = self.optimizer.param_groups

    def step(self):
        self.flat.grad = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        torch.nn.utils.clip_grad_norm_([self.flat], 1.0)
        self.optimizer.step()
        torch.nn.utils.vector_to_parameters(self.flat.detach(), self.parameters)
        for parameter in self.parameters:
            parameter.grad = None


class Engine(torch.nn.Module):
    """Calls the model, and counts micro-steps."""

    def __init__(self, model):
        super().__init__()
        self.module = model
        self.optimizer = FlatOptimizer(model.parameters())
        self.micro_steps = 0

    def forward(self, *inputs):
        return self.module(*inputs)

    def backward(self, loss):
        (loss / ACCUMULATION).backward()

    def step(self):
        self.micro_steps += 1
        if self.micro_steps % ACCUMULATION == 0:
            self.optimizer.step()


engine = Engine(network())
for number, (inputs, labels) in enumerate(loader(count=180)):
    if number % ACCUMULATION == 0:
        iteration()
    loss = torch.nn.functional.cross_entropy(engine(inputs), labels)
    engine.backward(loss)
    engine.step()
