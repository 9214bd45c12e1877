"""The Trainer of transformers: evaluation and a checkpoint every 60 steps."""

from clock import begin, clock, end, lap, no_more_laps

with clock("interpreter and imports"):
    import time

    import torch
    import torch._dynamo  # optimizers import it
    from transformers import Trainer, TrainerCallback, TrainingArguments

from torch.utils.data import Dataset


class Rows(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        x = torch.full((32,), i / self.count)
        return {"x": x, "labels": x}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 32))
        self.large = torch.nn.Embedding(40_000, 64)

    def forward(self, x, labels=None):
        time.sleep(0.008)
        out = self.net(x) + 0 * self.large.weight[0, 0]
        return {"loss": (out - labels).square().mean(), "logits": out}


class Clocks(TrainerCallback):
    first = True

    def on_step_begin(self, *_, **__):
        if self.first:
            end("set-up")
            lap(first=True)
            self.first = False

    def on_step_end(self, *_, **__):
        lap()

    def on_train_end(self, *_, **__):
        no_more_laps()


class Clocked(Trainer):
    def evaluate(self, *args, **kwargs):
        with clock("validation"):
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        with clock("checkpoints"):
            return super()._save_checkpoint(*args, **kwargs)


torch.set_num_threads(1)
begin()
arguments = TrainingArguments(
    output_dir="out", max_steps=300, per_device_train_batch_size=8, per_device_eval_batch_size=8, use_cpu=True,
    eval_strategy="steps", eval_steps=60, save_strategy="steps", save_steps=60, logging_steps=50,
    report_to="none", disable_tqdm=True,
)  # fmt: skip
trainer = Clocked(Model(), arguments, train_dataset=Rows(4000), eval_dataset=Rows(240), callbacks=[Clocks()])
trainer.train()
