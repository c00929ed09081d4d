"""Run the kernels of published libraries on a simulated device and compare.

    kernbench torchrun --check tests/libraries/program.py [NAME ...]

with ``liger-kernel`` and ``flash-linear-attention`` installed; ``make test-libraries`` does both.
Names choose the cases that contain one of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.libraries import liger, linear_attention
from tests.libraries.comparing import run_cases

passed = count = 0
for library, cases in (("liger", liger.CASES), ("fla", linear_attention.CASES)):
    chosen = {
        name: case
        for name, case in cases.items()
        if not sys.argv[1:] or any(item in name for item in sys.argv[1:])
    }
    result = run_cases(library, chosen)
    passed, count = passed + result[0], count + result[1]
print(f"{passed} of {count} operations agree with their definitions")
sys.exit(min(count - passed, 100))
