"""Modules and traces as bytes: the same afterwards, and nothing else may come out."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import KernelTrace, Loop, Separable
from kernbench.dtypes import DType
from kernbench.kernel_ir import decode, encode
from kernbench.kernel_ir.text import stored
from tests.kernel_ir import cases

MATMUL = cases.trace("matmul", (4, 1, 1), {3: 256, 4: 256, 5: 128, 6: 128, 7: 256, 8: 256})


def assert_same(a: Any, b: Any, seen: dict[int, int]) -> None:
    """Compare two graphs of records: equal leaves, and shared where the other is shared.

    All records live as long as the two that are compared, so their ids stay theirs.
    """
    if a is None or isinstance(a, str | int | float | DType | np.dtype):
        # repr tells -0.0 and NaN apart as well.
        assert type(a) is type(b)
        assert repr(a) == repr(b)
        return
    assert type(a) is type(b)
    if isinstance(a, tuple | list) and not a:
        return
    assert seen.setdefault(id(a), id(b)) == id(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y, seen)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key], seen)
    else:
        slots = [slot for each in type(a).__mro__ for slot in getattr(each, "__slots__", ())]
        names = [name for name in slots if name != "__weakref__"]
        assert names or hasattr(a, "__dict__"), type(a)
        for name in names or vars(a):
            assert_same(getattr(a, name), getattr(b, name), seen)


@pytest.mark.parametrize("path", cases.TEXTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_module_is_the_same_afterwards(path: Path) -> None:
    functions = cases.module(path.stem, path.parent.name).functions
    data = encode(functions, "key")
    assert data is not None
    assert_same(functions, decode(data, "key"), {})


@pytest.mark.adr("0043-D3")
def test_a_trace_is_the_same_afterwards_identities_included() -> None:
    data = encode(MATMUL, "key")
    assert data is not None
    found = decode(data, "key")
    assert isinstance(found, KernelTrace)
    assert_same(MATMUL, found, {})
    (loop,) = (each for each in found.groups[0].body if isinstance(each, Loop))
    assert any(carried.yielded is command.dst for carried in loop.carried for command in loop.body)  # type: ignore[union-attr]


@pytest.mark.adr("0043-D3")
@pytest.mark.parametrize("callee", [os.system, eval, pickle.loads, Path], ids=repr)
def test_bytes_that_name_anything_else_are_refused(callee: Any) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return callee, ("1 + 1",)

    body = pickle.dumps(Evil(), protocol=5)
    version = stored.source_digest()
    assert version is not None
    data = stored._digest(version, b"key") + stored._digest(body) + body
    assert decode(data, "key") is None


@pytest.mark.adr("0043-D4")
@given(st.data())
def test_a_damaged_file_reads_as_nothing(data: st.DataObject) -> None:
    sound = encode(Separable((4,), 1, {(0,): np.arange(4)}), "key")
    assert sound is not None
    if data.draw(st.booleans()):
        damaged = sound[: data.draw(st.integers(0, len(sound) - 1))]
    else:
        at = data.draw(st.integers(0, len(sound) - 1))
        other = data.draw(st.integers(1, 255))
        damaged = sound[:at] + bytes([sound[at] ^ other]) + sound[at + 1 :]
    assert decode(damaged, "key") is None


@pytest.mark.adr("0043-D2")
def test_bytes_of_another_key_or_version_read_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(MATMUL, "key")
    assert data is not None
    assert decode(data, "another key") is None
    monkeypatch.setattr(stored, "source_digest", lambda: b"another version")
    assert decode(data, "key") is None


@pytest.mark.adr("0043-D2")
def test_sources_that_changed_under_the_process_are_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = stored.source_digest.__wrapped__()
    assert before is not None
    assert stored.source_digest.__wrapped__() == before
    monkeypatch.setattr(stored, "_SOURCES", ("commands", "kernel_ir"))
    assert stored.source_digest.__wrapped__() not in (None, before)
    oldest = min(file.stat().st_mtime for file in Path(stored.__file__).parent.glob("*.py"))
    monkeypatch.setattr(stored, "_IMPORTED_AT", oldest - 1)
    assert stored.source_digest.__wrapped__() is None


@pytest.mark.adr("0043-D5")
def test_what_takes_more_than_a_mebibyte_is_not_worth_a_file() -> None:
    large = Separable((), 0, {(0,): np.arange(stored.MOST_BYTES // 8)})
    assert encode(large, "key") is None
    assert encode(Separable((), 0, {(0,): np.arange(stored.MOST_BYTES // 16)}), "key") is not None
