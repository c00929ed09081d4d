"""Where an interrupt would do harm is found without waiting for what is asked."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from types import FrameType

import pytest

from kernbench.interrupts import frame_of
from tests.programs import PROGRAMS
from tests.tiers import of_campaigns


def test_a_frame_is_that_of_the_thread() -> None:
    frame = frame_of(threading.get_ident())
    assert frame is not None
    assert frame.f_code.co_name == "frame_of"
    assert frame.f_back is sys._getframe()
    assert frame_of(None) is None


@pytest.mark.parametrize("is_enabled", [True, False])
def test_nothing_is_collected_while_frames_are_asked_for(
    is_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def current_frames() -> dict[int, FrameType]:
        seen.append(gc.isenabled())
        return {}

    monkeypatch.setattr(sys, "_current_frames", current_frames)
    try:
        if not is_enabled:
            gc.disable()
        assert frame_of(1) is None
        assert gc.isenabled() is is_enabled
    finally:
        gc.enable()
    assert seen == [False]


@pytest.mark.parametrize("seconds", [1, of_campaigns(4)])
def test_asking_for_frames_ends_whatever_dies_meanwhile(seconds: int) -> None:
    """Without what keeps collections away, this hangs now and then, as it did on two busy cores."""
    subprocess.run(
        [sys.executable, str(PROGRAMS / "asked_frames.py"), str(seconds)], timeout=60, check=True
    )
