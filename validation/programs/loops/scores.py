"""Scores of attention scaled as timm scaled them until March 2023: the product, not a factor of it.

Networks took ``(q @ k.transpose(-2, -1)) * self.scale``, which reads and writes a matrix of scores.
Since fused attention came (timm 0.9), what is not fused multiplies the queries.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from types import FunctionType, MethodType
from typing import Any

from torch import nn

_OF_QUERIES = re.compile(r"^ *q = q \* self\.scale\n", re.M)
_PRODUCT = re.compile(r"= (q @ k\.transpose\(-2, -1\)|q\.transpose\(-2, -1\) @ k)")


def scale_scores(model: nn.Module) -> None:
    """Let a model's modules scale the scores of attention that is not fused."""
    with_scale = [each for each in model.modules() if hasattr(each, "scale")]
    made = {kind: _with_scaled_scores(kind) for kind in map(type, with_scale)}
    for each in with_scale:
        forward = made[type(each)]
        if forward is not None:
            # Of this module alone: the class is that of other programs, too.
            each.forward = MethodType(forward, each)


def _with_scaled_scores(kind: type[nn.Module]) -> FunctionType | None:
    text = textwrap.dedent(inspect.getsource(kind.forward))
    if not _OF_QUERIES.search(text) or not _PRODUCT.search(text):
        return None
    text = _PRODUCT.sub(r"= (\1) * self.scale", _OF_QUERIES.sub("", text))
    made: dict[str, Any] = {}
    exec(text, vars(inspect.getmodule(kind)), made)
    forward: FunctionType = made["forward"]
    return forward
