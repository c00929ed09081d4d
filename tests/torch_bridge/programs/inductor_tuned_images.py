"""A convolution that Inductor tunes, whose images it lays channels-last."""

import torch

image, conv = torch.randn(2, 3, 16, 16), torch.nn.Conv2d(3, 8, 3).requires_grad_(False)
expected = conv(image)
tuned = torch.compile(conv.cuda(), mode="max-autotune-no-cudagraphs")
assert torch.allclose(tuned(image.cuda()).cpu(), expected, rtol=1e-3, atol=1e-3)
