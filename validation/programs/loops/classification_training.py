"""Training of a classifier of pictures as NVIDIA's DeepLearningExamples times it, by batches.

arguments: network, batch of a device, amp or float32, memory format (nchw, nhwc), batches whose
gradients the optimizer takes together.

A batch is what their loop times: the next pictures, mixed in pairs; forward, loss and backward,
with DDP's all-reduces where there are several ranks; every few batches the optimizer; a wait, and
the loss that is read. What is said is a mean over the batches that the optimizer takes together.

Source: NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/image_classification:
training.py (Trainer, train), mixup.py, optimizers.py (of PyTorch 1.9: a loop over tensors).
"""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from validation.programs.loops.classification import CLASSES, NETWORKS, SMOOTHING, batches
from validation.programs.loops.timing import say

SHARE = 0.5
"""How much of the first picture of a pair there is; theirs is drawn, and costs the same."""
LOSS_SCALE = 128.0


class MixedLoss(nn.Module):
    """The negative log likelihood of labels that are mixed, and smoothed."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss."""
        logs = torch.nn.functional.log_softmax(x.float(), dim=-1)
        exact = (-logs * target.float()).sum(-1)
        smooth = -logs.mean(dim=-1)
        return ((1 - SMOOTHING) * exact + SMOOTHING * smooth).mean()


def mixed(given: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pictures and shares of classes, each mixed with another of its batch."""
    for pictures, labels in given:
        shares = torch.zeros(labels.size(0), CLASSES, device="cuda")
        shares = shares.scatter(1, labels.unsqueeze(1), 1.0)
        with torch.no_grad():
            order = torch.randperm(pictures.size(0)).cuda()
            pairs = SHARE * pictures + (1 - SHARE) * pictures[order, :]
            pair_shares = SHARE * shares + (1 - SHARE) * shares[order, :]
        yield pairs, pair_shares


def optimizer_of(network: str, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a network's recipe; weights of norms do not decay."""
    norms = [each for name, each in model.named_parameters() if "bn" in name]
    rest = [each for name, each in model.named_parameters() if "bn" not in name]
    groups: Any = [{"params": norms, "weight_decay": 0}, {"params": rest, "weight_decay": 1e-5}]
    if network.startswith("efficientnet"):
        return torch.optim.RMSprop(
            groups, lr=0.08, alpha=0.9, momentum=0.9, eps=0.01, foreach=False
        )
    return torch.optim.SGD(groups, lr=0.256, momentum=0.875, foreach=False)


def main() -> None:
    """Time batches."""
    network, batch, dtype, form, together = sys.argv[1:]
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.backends.cudnn.benchmark = True
    made, size = NETWORKS[network]
    layout = torch.channels_last if form == "nhwc" else torch.contiguous_format
    with torch.device("meta"):
        model = made()
    model = model.to_empty(device="cuda").to(memory_format=layout).train()
    optimizer = optimizer_of(network, model)
    if ranks > 1:
        dist.init_process_group("nccl")
        model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    loss_of = MixedLoss().train()
    scaler = torch.amp.GradScaler("cuda", init_scale=LOSS_SCALE, enabled=dtype == "amp")
    given = mixed(batches(int(batch), size, layout))

    def train(updates: bool) -> float:
        began = time.perf_counter()
        pictures, shares = next(given)
        with torch.autocast("cuda", torch.float16, enabled=dtype == "amp"):
            loss = loss_of(model(pictures), shares)
            loss /= int(together)
        scaler.scale(loss).backward()
        if updates:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
        torch.cuda.synchronize()
        read = loss.detach()
        if ranks > 1:
            read = read.clone()
            dist.all_reduce(read)
            read /= ranks
        read.item()
        scaler.get_scale()
        return time.perf_counter() - began

    # The first two allocate gradients and state.
    _, _, last, plain = (train(updates) for updates in (True, True, True, False))
    say(plain + (last - plain) / int(together))


if __name__ == "__main__":
    main()
