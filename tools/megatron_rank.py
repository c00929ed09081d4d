"""One rank of ``megatron_tests.py``: runs tests of a module and notes those that have passed.

arguments: checkout, folder for the notes, module, names of tests.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any


def run(module: Any, name: str) -> None:
    """Run a test as pytest would: parameters, setup and teardown; no fixtures."""
    path, _, index = name.rstrip("]").partition("[")
    owner, _, test = path.rpartition("::")
    instance = getattr(module, owner)() if owner else module
    function = getattr(instance, test)
    values: tuple[Any, ...] = ()
    for mark in getattr(function, "pytestmark", ()):
        if mark.name == "parametrize":
            value = mark.args[1][int(index)]
            values = value if isinstance(value, tuple) else (value,)
    assert len(inspect.signature(function).parameters) == len(values), f"{name} wants fixtures"
    if owner and hasattr(instance, "setup_method"):
        _call(instance.setup_method, function)
    function(*values)
    if owner and hasattr(instance, "teardown_method"):
        _call(instance.teardown_method, function)


def _call(hook: Any, function: Any) -> None:
    hook(*[function] * len(inspect.signature(hook).parameters))


sys.path.insert(0, sys.argv[1])
result = importlib.import_module(sys.argv[3])
with Path(sys.argv[2], f"rank{os.environ['RANK']}").open("w") as notes:
    for item in sys.argv[4:]:
        run(result, item)
        notes.write(item + "\n")
        notes.flush()
