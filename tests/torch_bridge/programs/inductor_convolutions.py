"""Compiled convolutions compute as the host does, in the layouts that cuDNN gives results."""

import copy
import itertools
from typing import Any

import torch
from torch import nn

LAST = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}
KEPT = torch.contiguous_format
CASES: list[Any] = [
    ({}, 2, image, weight)
    for image, weight in itertools.product((KEPT, torch.channels_last), repeat=2)
]
CASES += [
    ({"groups": 2, "dilation": 2}, 2, LAST[2], LAST[2]),
    ({"groups": 8}, 2, LAST[2], LAST[2]),
    ({"groups": 8}, 2, KEPT, KEPT),
    ({"transposed": True, "groups": 2}, 2, LAST[2], LAST[2]),
    ({"transposed": True}, 2, KEPT, KEPT),
    ({"groups": 2}, 1, KEPT, KEPT),
    ({}, 3, LAST[3], LAST[3]),
]


def trained(function, model, image):
    """Return a result and its gradients."""
    image = image.detach().clone().requires_grad_()
    result = function(image)
    result.square().sum().backward()
    return [result.detach(), image.grad, *(parameter.grad for parameter in model.parameters())]


torch.manual_seed(0)
for options, dims, of_image, of_weight in CASES:
    torch._dynamo.reset()
    options = dict(options)
    kind = f"Conv{'Transpose' if options.pop('transposed', False) else ''}{dims}d"
    reference = getattr(nn, kind)(8, 16, 3, padding=1, **options).to(memory_format=of_weight)
    host = torch.randn(2, 8, *[6] * dims).to(memory_format=of_image)
    model = copy.deepcopy(reference).cuda()
    compiled = torch.compile(lambda x, model=model: torch.relu(model(x) * 2) + 1)
    expected = trained(lambda x, model=reference: torch.relu(model(x) * 2) + 1, reference, host)
    answer = trained(compiled, model, host.cuda())
    case = f"{kind} {options} {of_image} {of_weight}"
    for one, other in zip(answer, expected, strict=True):
        assert torch.allclose(one.cpu(), other, rtol=1e-4, atol=1e-4), case
    last = LAST[dims] if LAST[dims] in (of_image, of_weight) else KEPT
    assert answer[0].is_contiguous(memory_format=last), (case, answer[0].stride())
