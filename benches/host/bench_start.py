"""Question: how long does a short run take, all of it, from the command to its report?

The bench of the README, as its page runs it: one rank of ahbm, an elementwise kernel and a check.
CPU time of the process, the least of nine; bytecode is cached, as where kernbench is installed.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

from conftest import Goal

README = Path(__file__).parents[2] / "README.md"
COMMAND = (sys.executable, "-m", "kernbench", "run", "scale.py", "--param", "block=256")


def test_the_bench_of_the_readme(tmp_path: Path, goal: Goal) -> None:
    (text,) = re.findall(r"^```python\n(# scale\.py\n.*?)^```$", README.read_text(), re.M | re.S)
    (tmp_path / "scale.py").write_text(text)

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(COMMAND, check=True, capture_output=True, cwd=tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    goal(
        "kernbench run of the README's bench, CPU time",
        min(seconds() for _ in range(9)),
        0.45,
        " s",
    )
