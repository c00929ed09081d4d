"""Imports the plug-in where Triton requires a method that it has not."""

import abc
import importlib
import sys

import triton.backends as b
from triton.backends.compiler import BaseBackend
from triton.backends.driver import DriverBase

for base, name in ((BaseBackend, "compiler"), (DriverBase, "driver")):
    base.brand_new = abc.abstractmethod(lambda self: None)
    base.__abstractmethods__ |= {"brand_new"}
    module = importlib.reload(sys.modules[f"kernbench.triton_backend.{name}"])
    concrete_subclasses = b._find_concrete_subclasses(module, base)
    assert concrete_subclasses.__module__ == module.__name__
    print(concrete_subclasses.__name__)
