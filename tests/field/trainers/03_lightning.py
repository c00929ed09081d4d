# A module of Lightning, trained on two ranks in bfloat16.
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file}
# run: kernbench torchrun --no-data --machine h100-sxm:2 --nproc-per-node 2 {file}
# needs: lightning
# expect: ^DONE 0 of 2, 4 steps
# expect: ^DONE 1 of 2, 4 steps

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 16), torch.randint(0, 4, (256,)))
trainer = lightning.Trainer(
    accelerator="gpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, precision="bf16-mixed",
)  # fmt: skip
model = Classifier()
trainer.fit(model, DataLoader(data, batch_size=32))
assert all(parameter.device.type == "cpu" for parameter in model.parameters())
print(f"DONE {trainer.global_rank} of {trainer.world_size}, {trainer.global_step} steps")
