"""Validation of a classifier of pictures as NVIDIA's DeepLearningExamples times it, by batches.

arguments: network, batch, amp or float32, memory format (nchw, nhwc).

A step is what their loop times: the forward, the loss with smoothed labels, the accuracy of the
first and the first five classes, three reads, and a wait. Meanwhile the next batch is copied and
normalised on a stream of its own. Networks have the modules of theirs, which decide what a host
does; weights are as they are allocated.

Source: NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/image_classification:
training.py (validate), dataloaders.py (PrefetchedWrapper), models/resnet.py and efficientnet.py.
"""

import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from validation.programs.loops.timing import say

CLASSES = 1000
SMOOTHING = 0.1


def conv(
    size: int, given: int, made: int, stride: int = 1, groups: int = 1, act: Any = None
) -> nn.Sequential:
    """Return a convolution with its norm, and an activation if one is given."""
    layers = [
        nn.Conv2d(given, made, size, stride, (size - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(made),
    ]
    return nn.Sequential(*layers, *([] if act is None else [act]))


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; with ``squeezed``, channels are weighted."""

    def __init__(
        self, given: int, width: int, made: int, stride: int, groups: int, squeezed: bool
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, made, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(made)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or given != made:
            self.downsample = conv(1, given, made, stride)
        self.squeeze = Squeeze(made, 16, nn.ReLU(inplace=True)) if squeezed else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's result."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        residual = x if self.downsample is None else self.downsample(x)
        if self.squeeze is None:
            out += residual
        else:
            out = torch.addcmul(residual, out, self.squeeze(out), value=1)
        made: Tensor = self.relu(out)
        return made


class Squeeze(nn.Module):
    """Weights of channels from their means, by two linear layers."""

    def __init__(self, channels: int, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, width)
        self.expand = nn.Linear(width, channels)
        self.activation = activation
        self.sigmoid = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Return a weight for each channel."""
        out = self.activation(self.squeeze(torch.mean(x, [2, 3])))
        made: Tensor = self.sigmoid(self.expand(out))
        return made.unsqueeze(2).unsqueeze(3)


class MBConv(nn.Module):
    """A depthwise convolution between two of size 1, with weighted channels."""

    def __init__(
        self, given: int, made: int, size: int, stride: int, expansion: int, wide: bool
    ) -> None:
        super().__init__()
        hidden = given * expansion
        self.expand = None if hidden == given else conv(1, given, hidden, act=_silu())
        self.depsep = conv(size, hidden, hidden, stride, hidden, act=_silu())
        self.se = Squeeze(hidden, max(1, (hidden if wide else given) // 4), _silu())
        self.proj = conv(1, hidden, made)
        self.has_residual = stride == 1 and given == made

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's result."""
        out = self.depsep(x if self.expand is None else self.expand(x))
        out = self.proj(self.se(out) * out)
        return torch.add(x, out) if self.has_residual else out


def _silu() -> nn.Module:
    return nn.SiLU(inplace=True)


class ResNet(nn.Module):
    """ResNet v1.5 and ResNeXt."""

    def __init__(
        self, depths: tuple[int, ...], groups: int = 1, width: int = 64, squeezed: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        given, stages = 64, []
        for stage, depth in enumerate(depths):
            made, blocks = 256 << stage, []
            for block in range(depth):
                stride = 2 if stage and not block else 1
                blocks.append(Bottleneck(given, width << stage, made, stride, groups, squeezed))
                given = made
            stages.append(nn.Sequential(*blocks))
        self.layers = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(given, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the classes."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layers(x))
        made: Tensor = self.fc(x.view(x.size(0), -1))
        return made


# Of B0: size, stride, repeats, expansion, channels.
STAGES = (
    (3, 1, 1, 1, 16),
    (3, 2, 2, 6, 24),
    (5, 2, 2, 6, 40),
    (3, 2, 3, 6, 80),
    (5, 1, 3, 6, 112),
    (5, 2, 4, 6, 192),
    (3, 1, 1, 6, 320),
)


class EfficientNet(nn.Module):
    """EfficientNet, by how many times as wide and as deep as B0; ``wide`` squeezes less."""

    def __init__(self, width: float = 1.0, depth: float = 1.0, wide: bool = False) -> None:
        super().__init__()
        given = _rounded(32 * width)
        self.stem = conv(3, 3, given, 2, act=_silu())
        stages = []
        for size, first, repeats, expansion, channels in STAGES:
            made, blocks = _rounded(channels * width), []
            for block in range(math.ceil(repeats * depth)):
                stride = 1 if block else first
                blocks.append(MBConv(given, made, size, stride, expansion, wide))
                given = made
            stages.append(nn.Sequential(*blocks))
        self.layers = nn.Sequential(*stages)
        last = _rounded(1280 * width)
        self.features = conv(1, given, last, act=_silu())
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the classes."""
        made: Tensor = self.classifier(self.features(self.layers(self.stem(x))))
        return made


def _rounded(channels: float) -> int:
    found = max(8, int(channels + 4) // 8 * 8)
    return found + 8 if found < 0.9 * channels else found


# Networks, and the size of their pictures.
NETWORKS: dict[str, Any] = {
    "resnet50": (lambda: ResNet((3, 4, 6, 3)), 224),
    "resnext101-32x4d": (lambda: ResNet((3, 4, 23, 3), 32, 128), 224),
    "se-resnext101-32x4d": (lambda: ResNet((3, 4, 23, 3), 32, 128, True), 224),
    "efficientnet-b0": (EfficientNet, 224),
    "efficientnet-b4": (lambda: EfficientNet(1.4, 1.8), 380),
    "efficientnet-widese-b0": (lambda: EfficientNet(wide=True), 224),
    "efficientnet-widese-b4": (lambda: EfficientNet(1.4, 1.8, wide=True), 380),
}


class SmoothedLoss(nn.Module):
    """The negative log likelihood with smoothed labels."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss."""
        logs = torch.nn.functional.log_softmax(x, dim=-1)
        exact = -logs.gather(dim=-1, index=target.unsqueeze(1))
        smooth = -logs.mean(dim=-1)
        return ((1 - SMOOTHING) * exact.squeeze(1) + SMOOTHING * smooth).mean()


def accuracies(output: Tensor, target: Tensor) -> list[Tensor]:
    """Return the share of targets that are the first class, and among the first five."""
    _, found = output.topk(5, 1, True, True)
    found = found.t()
    right = found.eq(target.view(1, -1).expand_as(found))
    return [right[:k].float().sum().mul_(100.0 / target.size(0)) for k in (1, 5)]


def batches(batch: int, size: int, layout: torch.memory_format) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pictures and labels; the next ones are copied and normalised meanwhile."""
    mean, deviation = (torch.ones(1, 3, 1, 1, device="cuda") for _ in range(2))
    pictures = torch.zeros(batch, 3, size, size, dtype=torch.uint8).pin_memory()
    pictures = pictures.contiguous(memory_format=layout)
    labels = torch.zeros(batch, dtype=torch.int64).pin_memory()
    stream = torch.cuda.Stream()
    ready = None
    while True:
        with torch.cuda.stream(stream):
            after = pictures.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            after = after[0].float().sub_(mean).div_(deviation), after[1]
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(stream)
        ready = after


def main() -> None:
    """Time batches."""
    network, batch, dtype, form = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.backends.cudnn.benchmark = True
    made, size = NETWORKS[network]
    layout = torch.channels_last if form == "nhwc" else torch.contiguous_format
    with torch.device("meta"):
        model = made()
    model = model.to_empty(device="cuda").to(memory_format=layout).eval()
    loss_of = SmoothedLoss().eval()
    given = iter(batches(batch, size, layout))
    for _ in range(3):
        pictures, labels = next(given)
        began = time.perf_counter()
        with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=dtype == "amp"):
            output = model(pictures)
            loss = loss_of(output, labels)
        with torch.no_grad():
            found = accuracies(output, labels)
        for each in (*found, loss):
            each.item()
        torch.cuda.synchronize()
        last = time.perf_counter() - began
    say(last)


if __name__ == "__main__":
    main()
