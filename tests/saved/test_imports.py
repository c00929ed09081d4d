"""Runs that nobody saves load nothing that reads or writes them."""

from __future__ import annotations

import subprocess
import sys


def test_the_runtime_does_not_import_pyarrow() -> None:
    code = "import sys, kernbench.runtime_api; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
