"""Lightning: two epochs, validation in the middle and at the end of each, a checkpoint after each."""

from clock import begin, clock, end, lap, no_more_laps

with clock("interpreter and imports"):
    import logging
    import time
    import warnings

    import lightning
    import torch
    import torch._dynamo  # optimizers import it
    from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))

    def training_step(self, batch, _):
        time.sleep(0.008)
        return (self.net(batch[0]) - batch[0]).square().mean()

    def validation_step(self, batch, _):
        time.sleep(0.008)
        self.log("loss", (self.net(batch[0]) - batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Clocks(lightning.Callback):
    first = True

    def on_train_batch_start(self, *_):
        if self.first:
            end("set-up")
            lap(first=True)
            self.first = False

    def on_train_batch_end(self, *_):
        lap()

    def on_validation_start(self, *_):
        begin()

    def on_validation_end(self, *_):
        end("validation")

    def on_train_epoch_end(self, trainer, module):
        with clock("checkpoints"):
            trainer.save_checkpoint("model.ckpt")
            torch.save(torch.zeros(8_000_000), "more.pt")

    def on_train_end(self, *_):
        no_more_laps()


torch.set_num_threads(1)
begin()
data = DataLoader(TensorDataset(torch.randn(8 * 200, 32)), batch_size=8)
held_out = DataLoader(TensorDataset(torch.randn(8 * 40, 32)), batch_size=8)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, val_check_interval=0.5, num_sanity_val_steps=0, callbacks=[Clocks()],
)  # fmt: skip
trainer.fit(Model(), data, held_out)
