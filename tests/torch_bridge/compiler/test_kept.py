"""What the compiler keeps on disk holds for the same machine, data mode and kernbench."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torch_bridge.compiler.test_compiler import run_compiled

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.adr("0126-D5")
def test_another_machine_compiles_anew(tmp_path: Path) -> None:
    def printed(*options: str, machine: str = "h100-sxm") -> str:
        done = run_compiled(tmp_path, "inductor_kept.py", *options, machine=machine, args=["3"])
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[0]

    assert printed() == "made"
    assert printed() == "kept"
    assert printed(machine="h200") == "made"
