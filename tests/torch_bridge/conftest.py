"""The programs here are run by tests; they are none."""

import sys

import pytest

collect_ignore = ["programs"]


@pytest.fixture(autouse=True)
def backends_have_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program set flags of backends, which PyTorch's own tests forbid for good."""
    torch = sys.modules.get("torch")
    if torch is not None:
        flags = torch.backends.flags_frozen.__globals__
        monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)
