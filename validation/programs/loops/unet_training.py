"""Training of a U-Net of MONAI as NVIDIA's DeepLearningExamples times nnU-Net, by batches.

arguments: dims (2, 3), batch of a device, amp or float32.

A batch is what their loop times: forward, the Dice loss with cross entropy, a read of the loss,
backward with DDP's all-reduces where there are several ranks, and a fused Adam. Pictures are of
BraTS, as their data loader hands them over without changes to them. Of three dims in 16 bits all is
channels-last, and a norm is one kernel (nvFuser's) that a norm over the batch stands for: it moves
as many bytes.

Source: NVIDIA/DeepLearningExamples, PyTorch/Segmentation/nnUNet: scripts/benchmark.py,
nnunet/nn_unet.py, loss.py; Project-MONAI/MONAI: networks/nets/dynunet.py, losses/dice.py.
"""

import itertools
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from validation.programs.loops.timing import say

MODALITIES = 4
CLASSES = 4
SIZES = {2: (192, 160), 3: (128, 128, 128)}
FILTERS = {2: (32, 64, 128, 256, 512, 512), 3: (32, 64, 128, 256, 320, 320)}
SLOPE = 0.01
SMALL = 1e-5


class InstanceNorm(nn.Module):
    """Norm of each channel of a picture; ``fused``: as one kernel."""

    def __init__(self, channels: int, fused: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of a batch."""
        if self.fused:
            return functional.batch_norm(x, None, None, self.weight, self.bias, True, eps=SMALL)
        return functional.instance_norm(x, None, None, self.weight, self.bias, True, eps=SMALL)


class UNetLevel(nn.Module):
    """Two convolutions of size 3, each with its norm and activation."""

    def __init__(self, dims: int, given: int, made: int, stride: int, fused: bool) -> None:
        super().__init__()
        conv = nn.Conv2d if dims == 2 else nn.Conv3d
        self.conv1 = conv(given, made, 3, stride, 1, bias=False)
        self.conv2 = conv(made, made, 3, 1, 1, bias=False)
        self.lrelu = nn.LeakyReLU(SLOPE)
        self.norm1 = InstanceNorm(made, fused)
        self.norm2 = InstanceNorm(made, fused)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's result."""
        out = self.lrelu(self.norm1(self.conv1(x)))
        made: Tensor = self.lrelu(self.norm2(self.conv2(out)))
        return made


class UNetUpwards(nn.Module):
    """A transposed convolution, whose result is joined with that of a level, and a block."""

    def __init__(self, dims: int, given: int, made: int, fused: bool) -> None:
        super().__init__()
        conv = nn.ConvTranspose2d if dims == 2 else nn.ConvTranspose3d
        self.transp_conv = conv(given, made, 2, 2)
        self.conv_block = UNetLevel(dims, 2 * made, made, 1, fused)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Return the block's result."""
        made: Tensor = self.conv_block(torch.cat((self.transp_conv(x), skip), dim=1))
        return made


class UNet(nn.Module):
    """MONAI's DynUNet, without deep supervision."""

    def __init__(self, dims: int, fused: bool) -> None:
        super().__init__()
        filters = FILTERS[dims]
        pairs = list(itertools.pairwise(filters))
        self.input_block = UNetLevel(dims, MODALITIES, filters[0], 1, fused)
        self.downsamples = nn.ModuleList(UNetLevel(dims, a, b, 2, fused) for a, b in pairs)
        self.upsamples = nn.ModuleList(UNetUpwards(dims, b, a, fused) for a, b in reversed(pairs))
        conv = nn.Conv2d if dims == 2 else nn.Conv3d
        self.output_block = conv(filters[0], CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the classes."""
        levels = [self.input_block(x)]
        for each in self.downsamples:
            levels.append(each(levels[-1]))
        out = levels.pop()
        for each in self.upsamples:
            out = each(out, levels.pop())
        made: Tensor = self.output_block(out)
        return made


class DiceAndEntropy(nn.Module):
    """Dice over a batch, but for the background, and cross entropy."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        found = torch.softmax(scores, 1)
        right = torch.zeros_like(scores, dtype=torch.float32)
        right = right.scatter_(1, labels.long(), 1.0)
        found, right = found[:, 1:], right[:, 1:]
        axes = [0, *range(2, scores.dim())]
        both = torch.sum(right * found, axes)
        all_of = torch.sum(right, axes) + torch.sum(found, axes)
        dice = torch.mean(1.0 - (2.0 * both + SMALL) / (all_of + SMALL))
        return dice + functional.cross_entropy(scores, labels.squeeze(1).long())


def main() -> None:
    """Time batches."""
    dims, batch, dtype = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.backends.cudnn.benchmark = True
    fused = dims == 3 and dtype == "amp"
    model: nn.Module = UNet(dims, fused).cuda()
    layout = torch.channels_last_3d if fused else torch.contiguous_format
    model.to(memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0008, weight_decay=0.0001, fused=True)
    if ranks > 1:
        dist.init_process_group("nccl")
        model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    loss_of = DiceAndEntropy()
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == "amp")
    pictures = torch.zeros(batch, MODALITIES, *SIZES[dims], device="cuda")
    pictures = pictures.contiguous(memory_format=layout)
    labels = torch.zeros(batch, 1, *SIZES[dims], device="cuda")
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16, enabled=dtype == "amp"):
            loss = loss_of(model(pictures), labels)
        loss.item()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    say(seconds[-1])


if __name__ == "__main__":
    main()
