"""The garbage collector rests for a while, and is then as it was."""

from __future__ import annotations

import gc

import pytest

from kernbench.op_log import uncollected


def test_the_collector_rests_and_is_then_as_it_was() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled()
