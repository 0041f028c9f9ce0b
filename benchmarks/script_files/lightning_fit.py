"""A convolutional classifier under Lightning's Trainer: torch.compile of the LightningModule, given to `fit`."""

import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.GELU())
            for a, b in ((3, 32), (32, 64), (64, 64))))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.blocks(x).mean((2, 3)))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


class Printer(lightning.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        print(f"step {trainer.global_step} loss {outputs['loss'].item():.6f}", flush=True)


lightning.seed_everything(0, verbose=False)
data = DataLoader(TensorDataset(torch.randn(32 * 15, 3, 64, 64), torch.randint(0, 10, (32 * 15,))), batch_size=32)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", callbacks=[Printer()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False)
trainer.fit(torch.compile(Classifier()), data)
