"""Says which driver Triton chooses without any for a GPU, on whatever machine."""

from triton.backends import backends
from triton.runtime import driver

for name in set(backends) - {"kernbench"}:
    del backends[name]
assert driver._active is None, driver._active
try:
    print("chose", driver.active)
except RuntimeError as error:
    print(error)
