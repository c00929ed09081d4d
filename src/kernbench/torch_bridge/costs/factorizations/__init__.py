"""What factorizations of matrices cost: steps that wait for one another, and their arithmetic."""

from kernbench.torch_bridge.costs.factorizations.columns import Factorization, factorization_of

__all__ = ["Factorization", "factorization_of"]
