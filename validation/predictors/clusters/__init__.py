"""Published training steps on many devices: composed of libraries' kernels and collectives.

What was measured cannot be run again: containers, kernels of Transformer Engine, XLA. So a step is
put together as its authors describe it: products, attention and streams of a layer by the libraries
of the machine, exchanges on its links, and the schedule of its pipeline (ADR-0190).
"""

from validation.predictors.clusters.predictor import (
    COMPOSED,
    ClusterPredictor,
    memory_of_row,
)

__all__ = ["COMPOSED", "ClusterPredictor", "memory_of_row"]
