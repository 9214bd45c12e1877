"""A crowd of simulated walkers in NumPy, each of which hands out a dict of readings."""

import numpy as np

FIELDS = {"joints": 34, "speeds": 34, "feet": 8, "goal": 3, "reward": 1, "done": 1}


class Walker:
    """A chain of joints that is pulled towards a goal."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.pull = self.rng.standard_normal((17, 34)).astype(np.float32) * 0.2
        self.reset()

    def reset(self):
        self.age = 0
        self.joints = self.rng.standard_normal(34).astype(np.float32)
        self.speeds = np.zeros(34, np.float32)
        self.goal = self.rng.standard_normal(3).astype(np.float32)

    def step(self, action):
        self.speeds = 0.9 * self.speeds + 0.1 * (action @ self.pull - self.joints)
        self.joints = self.joints + 0.1 * self.speeds
        self.age += 1
        reward = -float(np.square(self.joints[:3] - self.goal).sum())
        done = self.age >= 200
        if done:
            self.reset()
        return {
            "joints": self.joints,
            "speeds": self.speeds,
            "feet": self.joints[-8:] * 0.5,
            "goal": self.goal,
            "reward": np.array([reward], np.float32),
            "done": np.array([done], np.float32),
        }
