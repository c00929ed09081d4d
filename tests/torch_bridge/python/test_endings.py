"""What a program registers for its end is called in its rank, while there are devices."""

from __future__ import annotations

import atexit
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.tiers import of_campaigns  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402


@pytest.mark.adr("0114-D1")
@pytest.mark.parametrize("end", [of_campaigns("ends"), of_campaigns("exits"), "raises"])
def test_handlers_are_called_in_the_order_of_real_python(
    tmp_path: Path, end: str, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, str(PROGRAMS / "endings.py"), f"{tmp_path}/real", end]
    real = subprocess.run(command, capture_output=True, text=True, timeout=60)
    expected = (tmp_path / "real0").read_text()
    assert "finalizer 2\nfinalizer 1\n" in expected
    before = atexit._ncallbacks()
    try:
        simulated("endings.py", f"{tmp_path}/simulated", end)
    except (SystemExit, ValueError):
        assert end != "ends"
    if end == "raises":
        # A rank that ends by an error ends at once, but for its handlers.
        gone = ("first of all", "before threads", "a thread")
        expected = "".join(
            line for line in expected.splitlines(keepends=True) if line.strip() not in gone
        )
    assert (tmp_path / "simulated0").read_text() == expected
    printed = capfd.readouterr().err
    for name in ("ValueError: printed, and no more", "SystemExit: 3"):
        assert name in real.stderr
        assert name in printed
    assert "kernbench" not in printed
    assert atexit._ncallbacks() == before


@pytest.mark.adr("0114-D1")
def test_handlers_find_their_rank_its_devices_and_the_other_ranks(tmp_path: Path) -> None:
    simulated("ending_with_devices.py", f"{tmp_path}/found", nprocs=3)
    texts = [(tmp_path / f"found{rank}").read_text() for rank in range(3)]
    assert texts == [f"{4.0 * sum(range(3))} {rank} {rank}" for rank in range(3)]


@pytest.mark.adr("0114-D2")
def test_ranks_that_others_end_call_no_handlers(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup, match=r"ranks 1 .* 2 .* failed"):
        simulated("ending_others.py", f"{tmp_path}/called", nprocs=3)
    assert [path.name for path in tmp_path.glob("called*")] == ["called1"]
