"""Looks at Triton's profiler before, in and after a run."""

import sys

import triton.profiler  # noqa: F401

import kernbench

library = sys.modules["triton._C.libproton"]
before = library.proton
with kernbench.RuntimeContext(machine="ahbm", ranks=1):
    assert library.proton is not before
    assert sys.modules["triton.profiler.profile"].libproton is not before
assert library.proton is before
assert sys.modules["triton.profiler.profile"].libproton is before
