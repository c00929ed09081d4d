"""Scores of attention scaled as timm scaled them until March 2023: the product, not a factor of it.

Networks took ``(q @ k.transpose(-2, -1)) * self.scale``, which reads and writes a matrix of scores.
Since fused attention came (timm 0.9), what is not fused multiplies the queries.
"""

from __future__ import annotations

import inspect
import re
import textwrap

from torch import nn

_OF_QUERIES = re.compile(r"^ *q = q \* self\.scale\n", re.M)
_PRODUCT = re.compile(r"= (q @ k\.transpose\(-2, -1\)|q\.transpose\(-2, -1\) @ k)")


def scale_scores(model: nn.Module) -> None:
    """Let a model's modules scale the scores of attention that is not fused."""
    for kind in {type(each) for each in model.modules() if hasattr(each, "scale")}:
        text = textwrap.dedent(inspect.getsource(kind.forward))
        if not _OF_QUERIES.search(text) or not _PRODUCT.search(text):
            continue
        text = _PRODUCT.sub(r"= (\1) * self.scale", _OF_QUERIES.sub("", text))
        made: dict[str, object] = {}
        exec(text, vars(inspect.getmodule(kind)), made)
        kind.forward = made["forward"]  # type: ignore[assignment,method-assign]
