# A timer is found by its module and name, as pytest-benchmark finds timeit.default_timer.
# run: kernbench torchrun {file}
# expect: perf_counter

import importlib
import timeit

timer = timeit.default_timer
print(timer.__module__, timer.__name__)
print(getattr(importlib.import_module(timer.__module__), timer.__name__))
