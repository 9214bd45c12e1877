"""Teachers that tell one turn of a story after another."""

import random


def make_episodes(number, words):
    """Stories of four to seven turns: some words, then the words of the answer."""
    return [
        [
            (
                [random.randrange(1, words) for _ in range(random.randint(8, 20))],
                [random.randrange(1, words) for _ in range(6)],
            )
            for _ in range(random.randint(4, 7))
        ]
        for _ in range(number)
    ]


class StoryTeacher:
    def __init__(self, episodes, offset=0, frozen=False):
        self.episodes = episodes
        self.episode, self.entry, self.told = offset % len(episodes), 0, 0
        self.total = sum(len(episode) for episode in episodes) if frozen else None

    def num_examples(self):
        if self.total is not None:
            return self.total
        return sum(len(episode) for episode in self.episodes)

    def next_example(self):
        if self.entry == len(self.episodes[self.episode]):
            self.episode, self.entry = (self.episode + 1) % len(self.episodes), 0
        text, labels = self.episodes[self.episode][self.entry]
        self.entry += 1
        self.told += 1
        return text, labels, self.told >= self.num_examples()

    def act(self):
        text, labels, epoch_done = self.next_example()
        if epoch_done:
            self.told = 0
        return {"text": text, "labels": labels, "epoch_done": epoch_done}
