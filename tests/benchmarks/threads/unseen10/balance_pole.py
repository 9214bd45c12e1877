"""Balances a pole on a cart: an actor and a critic that learn from eight carts."""

import multiprocessing
import os
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2600))
CARTS, ROLLOUT, GAMMA = 8, 20, 0.99


class Cart:
    """The classic cart with a pole on it."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.state, self.age = np.zeros(4), 0

    def reset(self):
        self.state, self.age = self.rng.uniform(-0.05, 0.05, 4), 0
        return self.state.astype(np.float32)

    def step(self, action):
        x, speed, angle, turn = self.state
        force, cos, sin = (10.0 if action else -10.0), np.cos(angle), np.sin(angle)
        pull = (force + 0.05 * turn * turn * sin) / 1.1
        twist = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        self.state = self.state + 0.02 * np.array([speed, pull - 0.05 * twist * cos / 1.1, turn, twist])
        self.age += 1
        over = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        done = over or self.age >= 500
        seen = self.reset() if done else self.state.astype(np.float32)
        return seen, 1.0 - over, done


def serve(pipe, seed):
    cart = Cart(seed)
    while True:
        order, action = pipe.recv()
        if order == "close":
            return
        pipe.send(cart.reset() if order == "reset" else cart.step(action))


class ProcessCarts:
    """Each cart in a process of its own."""

    def __init__(self, number):
        self.pipes, self.processes = [], []
        for seed in range(number):
            near, far = multiprocessing.Pipe()
            process = multiprocessing.Process(target=serve, args=(far, seed), daemon=True)
            process.start()
            self.pipes.append(near)
            self.processes.append(process)

    def reset(self):
        for pipe in self.pipes:
            pipe.send(("reset", None))
        return np.stack([pipe.recv() for pipe in self.pipes])

    def step(self, actions):
        for pipe, action in zip(self.pipes, actions, strict=True):
            pipe.send(("step", int(action)))
        seen, rewards, done = zip(*[pipe.recv() for pipe in self.pipes], strict=True)
        return np.stack(seen), np.array(rewards, np.float32), np.array(done, np.float32)

    def close(self):
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(("close", None))
            process.join()


class ListedCarts:
    def __init__(self, number):
        self.carts = [Cart(seed) for seed in range(number)]

    def reset(self):
        return np.stack([cart.reset() for cart in self.carts])

    def step(self, actions):
        answers = [cart.step(int(action)) for cart, action in zip(self.carts, actions, strict=True)]
        seen, rewards, done = zip(*answers, strict=True)
        return np.stack(seen), np.array(rewards, np.float32), np.array(done, np.float32)

    def close(self):
        self.carts.clear()


def mlp(width, outputs):
    layers = [nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)]
    return nn.Sequential(*layers)


class ActorCritic(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.actor, self.critic = mlp(width, 2), mlp(width, 1)

    def forward(self, seen):
        return Categorical(logits=self.actor(seen), validate_args=False), self.critic(seen)[..., 0]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(4)
    carts = (ProcessCarts if VARIANT == "a" else ListedCarts)(CARTS)
    model = ActorCritic()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=7e-4)
    seen = torch.from_numpy(carts.reset())
    warm = min(10, STEPS // 2)
    for update in range(STEPS):
        if update == warm:
            start = time.perf_counter()
        views, chosen, rewards, ends = [], [], [], []
        for _ in range(ROLLOUT):
            with torch.no_grad():
                action = Categorical(logits=model.actor(seen), validate_args=False).sample()
            views.append(seen)
            chosen.append(action)
            following, reward, done = carts.step(action.numpy())
            seen = torch.from_numpy(following)
            rewards.append(torch.from_numpy(reward))
            ends.append(torch.from_numpy(done))
        policy, value = model(torch.stack(views))
        with torch.no_grad():
            total, returns = model.critic(seen)[:, 0], []
            for reward, done in zip(reversed(rewards), reversed(ends), strict=True):
                total = reward + GAMMA * (1 - done) * total
                returns.append(total)
        gain = torch.stack(returns[::-1]) - value
        score = -(policy.log_prob(torch.stack(chosen)) * gain.detach()).mean()
        loss = score + 0.5 * gain.square().mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    elapsed = time.perf_counter() - start
    carts.close()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
