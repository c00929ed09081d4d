"""A call that was met before is known: same log, same numbers as when it is looked at anew."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402


def test_calls_that_are_known_are_logged_as_those_that_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernbench.torch_bridge.dispatch import observe

    seen = []
    for name in ("known", "anew"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "anew":
            monkeypatch.setattr(observe, "look_at", lambda *call: None)
        run = simulated("equal_calls.py", folder)
        log = run.op_log
        seen.append((log.to_arrow(), log.host_spans, torch.load(folder / "found.pt")))
    (known, known_spans, known_values), (anew, anew_spans, anew_values) = seen
    assert known.equals(anew)
    assert known_spans == anew_spans
    assert all(map(torch.equal, known_values, anew_values))
    assert len(known_values) == len(anew_values)
