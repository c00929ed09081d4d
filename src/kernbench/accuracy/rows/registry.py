"""Who predicts the rows of each category."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from kernbench.accuracy.rows.devices import Machines, presets
from kernbench.accuracy.rows.forms import Category
from kernbench.accuracy.rows.predictor import Predictor

_ROOM = "kernbench.accuracy.predictors"


@dataclass(frozen=True, slots=True)
class Predictors:
    """Classes of predictors by category, as ``MODULE:CLASS``: a process imports those it needs."""

    by_category: Mapping[Category, str]
    settings: Mapping[Category, Mapping[str, Any]] = field(default_factory=dict)
    """What a category's class is given besides the machines."""

    def make(self, category: Category, machines: Machines | None = None) -> Predictor:
        """Return a new predictor of a category, for the given machines or the presets."""
        module, _, name = self.by_category[category].partition(":")
        maker: Callable[..., Predictor] = getattr(import_module(module), name)
        return maker(machines or presets(), **self.settings.get(category, {}))


OWN = Predictors(
    {
        Category.GEMM: f"{_ROOM}.gemm:GemmPredictor",
        Category.MEMBOUND: f"{_ROOM}.membound:MemboundPredictor",
        Category.COLLECTIVES: f"{_ROOM}.collectives:CollectivePredictor",
    }
)
"""Those of kernels that users time themselves, with nothing around them."""
