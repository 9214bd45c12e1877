"""Keeps what a run reports in one JSON file."""

import json


class Tracker:
    def __init__(self, path, every=5, bins=64):
        self.path, self.every, self.bins = path, every, bins
        self.step, self.entries = 0, []

    def watch(self, model):
        for name, parameter in model.named_parameters():
            parameter.register_hook(self._recorder(name))

    def _recorder(self, name):
        def record(grad):
            if self.step % self.every == 0:
                low, high = grad.min().item(), grad.max().item()
                counts = grad.float().histc(self.bins, low, high).tolist()
                self.entries.append(
                    {"step": self.step, "name": name, "low": low, "high": high, "counts": counts}
                )

        return record

    def commit(self, **values):
        self.entries.append({"step": self.step, **values})
        if self.step % self.every == 0:
            self.path.write_text(json.dumps(self.entries))
        self.step += 1
