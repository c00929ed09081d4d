"""Exchanges of experts' rows: kernels of serving stacks, each with its own model."""

from validation.predictors.libraries.exchanges.answers import OPS, exchanged
from validation.predictors.libraries.exchanges.asked import ExpertExchange

__all__ = ["OPS", "ExpertExchange", "exchanged"]
