"""Records of candidates: data from a process that is not trusted."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kernbench.judging.executing import overload_of  # noqa: E402
from kernbench.judging.record import (  # noqa: E402
    Record,
    RecordError,
    describe,
    describe_tensor,
    restore,
    view_of,
)
from kernbench.judging.scanning import scan  # noqa: E402

_PLAIN = st.none() | st.booleans() | st.integers() | st.text() | st.floats() | st.complex_numbers()
_VALUES = st.recursive(
    _PLAIN | st.sampled_from([torch.float16, torch.int64, torch.strided, torch.channels_last]),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@given(value=_VALUES)
def test_arguments_survive_being_described(value: object) -> None:
    described = json.loads(json.dumps(describe(value, None)))
    assert repr(restore(described, None)) == repr(value)


@given(data=st.binary(max_size=64))
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        Record.read(data)


@pytest.mark.adr("0256-D2")
@pytest.mark.parametrize(
    "name", ["aten.from_file.default", "mylib.op.default", "os.system", "aten.nothing.default", ""]
)
def test_a_record_names_only_what_pytorch_itself_computes(name: str) -> None:
    with pytest.raises(RecordError):
        overload_of(name)
    assert overload_of("aten.add.Tensor") is torch.ops.aten.add.Tensor


@given(
    size=st.lists(st.integers(0, 4), max_size=3),
    offset=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.int8]),
)
def test_a_view_is_the_one_described_or_refused(
    size: list[int], offset: int, dtype: object
) -> None:
    owner = torch.arange(16, dtype=torch.float32)
    stride = [1] * len(size)
    described = describe_tensor(owner, 0) | {"size": size, "stride": stride, "offset": offset}
    described["dtype"] = str(dtype).removeprefix("torch.")
    if math.prod(size) and offset + sum(n - 1 for n in size) >= 16 * 4 // dtype.itemsize:  # type: ignore[attr-defined]
        with pytest.raises(RecordError):
            view_of(owner, described)
    else:
        view = view_of(owner, described)
        assert list(view.shape) == size
        assert view.dtype == dtype
    with pytest.raises(RecordError):
        view_of(owner, described | {"size": [99], "stride": [1]})


def test_comments_and_texts_are_no_tricks() -> None:
    text = '"""Runs under kernbench, too."""\nimport torch, time  # torch.allclose = None\n'
    text += "t = time.time()\n"
    assert scan(text).tricks == []
