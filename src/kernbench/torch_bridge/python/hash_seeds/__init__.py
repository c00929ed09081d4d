"""Sets of strings in an order of each rank, as processes with hash seeds of their own have them.

``sets`` are the types that a rank's own modules use, ``loading`` is how these modules get them.
"""

from kernbench.torch_bridge.python.hash_seeds.loading import NAMES, SeededLoader, compiled
from kernbench.torch_bridge.python.hash_seeds.sets import install, plain_where_compiled, seed_of
