"""Lightning: forward and backward run in a closure inside the optimizer's step."""

import lightning
import torch
from truth import iteration, loader, network


class Module(lightning.LightningModule):
    """A classifier."""

    def __init__(self):
        super().__init__()
        self.model = network()

    def training_step(self, batch, _index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.model(x), y)

    def on_train_batch_start(self, _batch, _index):
        iteration()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), loader())
