"""Tensors and factories against numpy."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import dtypes
from kernbench.errors import IndexRangeError, OutOfMemoryError, UnknownNameError, UsageError
from kernbench.memory import sip_of
from kernbench.policy import DPPolicy
from kernbench.runtime_api import RuntimeContext
from tests.tiers import examples


@pytest.fixture
def torch():
    with RuntimeContext(ranks=2) as context:
        yield context


A = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda t: t.zeros(2, 3), np.zeros((2, 3), np.float32)),
        (lambda t: t.zeros((2, 3), dtype="f16"), np.zeros((2, 3), np.float16)),
        (lambda t: t.ones([2], dtype=t.int32), np.ones(2, np.int32)),
        pytest.param(
            lambda t: t.empty(2),
            np.zeros(2, np.float32),
            marks=pytest.mark.unchecked("empty is zeros without check only"),
        ),
        (lambda t: t.full((2,), 1.5), np.full(2, 1.5, np.float32)),
        (lambda t: t.full((2,), 7), np.full(2, 7, np.int64)),
        (lambda t: t.full((), True), np.array(True)),
        (lambda t: t.arange(5), np.arange(5)),
        (lambda t: t.arange(1, 2, 0.25), np.arange(1, 2, 0.25, dtype=np.float32)),
        (lambda t: t.arange(5, 0, -2, dtype=t.float16), np.array([5, 3, 1], np.float16)),
        (lambda t: t.tensor([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]])),
        (lambda t: t.tensor([1.5]), np.array([1.5], np.float32)),
        (lambda t: t.tensor(3.0), np.array(3.0, np.float32)),
        (lambda t: t.tensor(True), np.array(True)),
        (lambda t: t.from_numpy(A), A),
        (lambda t: t.from_numpy(A.T), A.T),
        (lambda t: t.from_numpy(A, dtype="bf16").to("f32"), A),
        (lambda t: t.ones_like(t.zeros(2, dtype=t.int8)), np.ones(2, np.int8)),
        (lambda t: t.full_like(t.zeros(2), 3), np.full(2, 3, np.float32)),
        (lambda t: t.cat([t.ones(2, 1), t.zeros(2, 2)], dim=1), [[1.0, 0, 0]] * 2),
        (lambda t: t.zeros(0, 3), np.zeros((0, 3), np.float32)),
    ],
)
def test_factories_make_what_numpy_makes(torch, make, expected) -> None:
    got = make(torch)
    expected = np.asarray(expected, dtype=got.numpy().dtype if isinstance(expected, list) else None)
    assert got.numpy().dtype == expected.dtype
    assert np.array_equal(got.numpy(), expected)
    assert got.shape == expected.shape


@pytest.mark.adr("0012-D2")
def test_zeros_are_zeros_also_where_other_bytes_were(torch) -> None:
    first = torch.full((100,), 3.0)
    address = first.data_ptr()
    first.numpy()
    del first
    second = torch.zeros(100)
    assert second.data_ptr() == address
    assert not second.numpy().any()


VIEWS = [
    lambda t: t[1],
    lambda t: t[:, 1:, ::2],
    lambda t: t[..., 0],
    lambda t: t[None, 1, -1],
    lambda t: t.reshape(6, 4),
    lambda t: t.reshape(-1),
    lambda t: t.view(3, 8) if hasattr(t, "context") else t.reshape(3, 8),
    lambda t: t.T,
    lambda t: t[0].T,
    lambda t: t.transpose(0, 2) if hasattr(t, "context") else t.swapaxes(0, 2),
    lambda t: t.T.reshape(-1),
]


@pytest.mark.adr("0012-D3")
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_reads_and_writes_the_memory_of_its_tensor(torch, view) -> None:
    array, tensor = A.copy(), torch.from_numpy(A)
    seen = view(tensor)
    assert np.array_equal(seen.numpy(), view(array))
    if np.shares_memory(view(array), array):
        assert seen.storage is tensor.storage
        seen.fill_(-1)
        view(array)[...] = -1
        assert np.array_equal(tensor.numpy(), array)


def test_shape_methods_are_torchs(torch) -> None:
    x = torch.zeros(2, 3, 4, dtype="f16", name="x")
    assert x.size() == (2, 3, 4)
    assert (x.size(-1), x.dim(), x.ndim, x.numel(), x.nbytes) == (4, 3, 3, 24, 48)
    assert (x.stride(), x.stride(1), x.element_size(), len(x)) == ((12, 4, 1), 4, 2, 2)
    assert x.unsqueeze(1).shape == (2, 1, 3, 4)
    assert x.unsqueeze(1).squeeze(1).shape == x.squeeze().shape == (2, 3, 4)
    assert x.expand(5, -1, -1, -1).stride() == (0, 12, 4, 1)
    assert [part.shape for part in x.split(2, dim=2)] == [(2, 3, 2)] * 2
    assert [part.shape for part in x.chunk(2, dim=1)] == [(2, 2, 4), (2, 1, 4)]
    assert x.flatten(1).shape == (2, 12)
    assert x.narrow(2, 1, 2).storage_offset() == 1
    assert [row.shape for row in x] == [(3, 4)] * 2
    assert x.mT.shape == (2, 4, 3)
    assert x.is_contiguous()
    assert not x.mT.is_contiguous()
    assert x.mT.contiguous().stride() == (12, 3, 1)
    assert x.label == "x (2, 3, 4) float16"
    assert x.dtype is torch.float16 is torch.half is dtypes.float16
    assert x.is_floating_point()


@pytest.mark.parametrize(
    "write",
    [
        lambda t, torch: t.fill_(7),
        lambda t, torch: t.zero_(),
        lambda t, torch: t.copy_(np.arange(6.0).reshape(2, 3)),
        lambda t, torch: t.copy_(torch.ones(3)),
        lambda t, torch: t.T.copy_(torch.arange(6).reshape(3, 2)),
        lambda t, torch: t.__setitem__((slice(None), 1), 5),
        lambda t, torch: t.__setitem__(0, torch.ones(3)),
        lambda t, torch: t.copy_(torch.arange(3, dtype=torch.float32, device="ahbm:1")),
        lambda t, torch: t.copy_(2.5),
    ],
)
def test_writes_do_what_numpy_does(torch, write) -> None:
    x = torch.full((2, 3), -1.0)
    before = x.clone()
    write(x, torch)
    assert before.tolist() == [[-1.0] * 3] * 2
    expected = np.full((2, 3), -1.0, np.float32)

    class Like:
        """The same writes on a numpy array."""

        T = property(lambda self: Like(self.a.T))

        def __init__(self, a=expected) -> None:
            self.a = a

        def fill_(self, v) -> None:
            self.a[...] = v

        def zero_(self) -> None:
            self.a[...] = 0

        def copy_(self, v) -> None:
            self.a[...] = v.numpy() if hasattr(v, "numpy") else v

        def __setitem__(self, i, v) -> None:
            self.a[i] = v.numpy() if hasattr(v, "numpy") else v

    write(Like(), torch)
    assert np.array_equal(x.numpy(), expected)


@pytest.mark.adr("0002-D3")
def test_a_write_happens_in_order_and_takes_its_values_at_once(torch) -> None:
    source = np.ones(4, np.float32)
    x = torch.zeros(4)
    x.copy_(source)
    source[:] = 9
    y = x.clone()
    x.fill_(3)
    assert (y.tolist(), x.tolist()) == ([1.0] * 4, [3.0] * 4)


def test_too_large_numbers_become_infinity(torch) -> None:
    assert torch.full((1,), 1e9, dtype="f16").item() == float("inf")
    x = torch.zeros(1, dtype="f16")
    assert x.fill_(1e9).item() == float("inf")
    assert x.copy_(np.array([-1e9])).item() == float("-inf")


@pytest.mark.parametrize("kind", ["rand", "randn", "randint"])
def test_random_numbers_depend_on_seed_rank_and_call_only(kind: str) -> None:
    def draw(torch, rank: int):
        make = {
            "rand": lambda: torch.rand(50),
            "randn": lambda: torch.randn(50, dtype="f16"),
            "randint": lambda: torch.randint(0, 1000, (50,)),
        }[kind]
        if rank:
            torch.run.simulation.sleep(5)
        return make().tolist(), make().tolist()

    def run(seed: int, order):
        got = {}
        with RuntimeContext(ranks=2, seed=seed) as torch:

            def worker(rank: int) -> None:
                torch.run.simulation.sleep(order[rank])
                got[rank] = draw(torch, rank)

            torch.multiprocessing.spawn(worker, nprocs=2)
        return got

    first = run(1, (0, 9))
    assert first == run(1, (9, 0))
    assert first != run(2, (0, 9))
    distinct = [first[0][0], first[0][1], first[1][0], first[1][1]]
    assert all(a != b for i, a in enumerate(distinct) for b in distinct[:i])


def test_manual_seed_starts_again(torch) -> None:
    torch.manual_seed(5)
    first = torch.rand(4).tolist()
    torch.manual_seed(5)
    assert torch.rand(4).tolist() == first
    assert all(0 <= item < 1 for item in first)


def test_a_tensor_says_where_it_lies(torch) -> None:
    policy = DPPolicy(num_cubes=1)
    x = torch.zeros(2, device="ahbm:1", dp=policy)
    assert str(x.device) == "ahbm:1"
    assert (x.device.type, x.device.index, x.sip_id) == ("ahbm", 1, 1)
    assert sip_of(x.data_ptr()) == 1
    assert x[1:].dp is policy
    assert torch.zeros_like(x).device == x.device
    assert x[1:].data_ptr() == x.data_ptr() + 4


def test_to_moves_and_converts(torch) -> None:
    x = torch.tensor([1.5, -2.0])
    assert x.to(torch.float32) is x
    assert x.to("ahbm:0") is x
    y = x.to("ahbm:1", torch.float16)
    assert (y.sip_id, y.dtype, y.tolist()) == (1, torch.float16, [1.5, -2.0])
    assert x.half().float().tolist() == x.bfloat16().tolist() == [1.5, -2.0]
    assert x.to(dtype="i32").tolist() == [1, -2]


def test_arithmetic_is_that_of_ops(torch) -> None:
    a, b = np.array([[1, 2], [3, 4]], np.float32), np.array([10, 20], np.float32)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    for got, expected in (
        (x + y, a + b),
        (x - y, a - b),
        (2 - x, 2 - a),
        (x * y, a * b),
        (1 / x, 1 / a),
        (x / 2, a / 2),
        (-x, -a),
        (x @ x, a @ a),
    ):
        assert np.allclose(got.numpy(), expected)
    x += 1
    x *= y
    assert np.allclose(x.numpy(), (a + 1) * b)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: t.zeros(-1), UsageError, r"must not be negative, but got shape \(-1,\)"),
        (lambda t: t.zeros(1.5), UsageError, "a shape must be integers"),
        (lambda t: t.zeros(2, dtype="f17"), UnknownNameError, "unknown dtype 'f17'"),
        (lambda t: t.zeros(2, device="ahbm:2"), UsageError, "SIP 2 does not exist"),
        (lambda t: t.zeros(2, dp="row"), UsageError, "dp must be a DPPolicy, but got 'row'"),
        (lambda t: t.from_numpy([1]), UsageError, "takes a numpy array, but got list"),
        (lambda t: t.tensor(["a"]), UsageError, "tensors hold real numbers"),
        (lambda t: t.tensor(1j), UsageError, "tensors hold real numbers"),
        (lambda t: t.arange(0, 1, 0), UsageError, "step must not be 0"),
        (lambda t: t.randint(3, 3, (1,)), UsageError, "high must be above low"),
        (lambda t: t.cat([]), UsageError, "at least one tensor"),
        (lambda t: t.cat([t.zeros(2, 2), t.zeros(3, 3)]), UsageError, "do not match"),
        (lambda t: t.zeros(2).view(3), UsageError, "holds 3 elements, but the tensor has 2"),
        (lambda t: t.zeros(2, 2).T.view(4), UsageError, r"without a copy; use reshape"),
        (lambda t: t.zeros(2).item(), UsageError, "needs exactly one element"),
        (lambda t: t.zeros(2)[2], IndexRangeError, "index 2 is out of range for dim 0 of size 2"),
        (lambda t: t.zeros(2).permute(0, 0), UsageError, "permute"),
        (lambda t: t.zeros(2).transpose(0, 1), UsageError, "dim 1 does not exist"),
        (lambda t: t.zeros(2).copy_(np.zeros(3)), UsageError, "cannot be expanded to"),
        (lambda t: t.zeros(2).copy_(t.zeros(3)), UsageError, "cannot be expanded to"),
        (lambda t: t.zeros(1).expand(4).fill_(1), UsageError, "write to a clone"),
        (lambda t: t.zeros(2).fill_([1, 2]), UsageError, "fill_ takes a number"),
        (lambda t: t.zeros(2).__setitem__([0], 1), UsageError, "integers, slices"),
        (lambda t: t.zeros(2).to("f17"), UsageError, "neither an element type nor a device"),
        (lambda t: t.zeros(2).narrow(0, 1, 2), UsageError, "entries 1 to 3 of dim 0"),
        (lambda t: t.zeros(2).split(0), UsageError, "at least 1, but got 0"),
        (lambda t: len(t.zeros(())), TypeError, "0-d"),
        (lambda t: list(t.zeros(())), TypeError, "0-d"),
        (lambda t: [1, 2][t.zeros(())], TypeError, "only integer tensors can be an index"),
    ],
)
def test_bad_input_is_refused(torch, call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(torch)


def test_integer_tensors_are_indices(torch) -> None:
    index = torch.arange(3)[1]
    assert [10, 20, 30][index] == 20
    assert torch.tensor([5, 6, 7])[index].item() == 6
    assert torch.tensor([5, 6, 7])[torch.tensor([2, 0])].tolist() == [7, 5]
    assert torch.tensor([5, 6, 7])[torch.tensor([True, False, True])].tolist() == [5, 7]


@pytest.mark.adr("0012-D4")
def test_exhausted_hbm_names_the_largest_tensors() -> None:
    with RuntimeContext(data=False) as torch:
        capacity = torch.machine.sip.hbm_bytes
        weight = torch.empty(capacity // 2, dtype="i8", name="weight")
        with pytest.raises(OutOfMemoryError) as caught:
            torch.empty(capacity, dtype="i8", name="cache")
        text = str(caught.value)
        assert f"cache ({capacity},) int8 needs {capacity:,} bytes" in text
        assert text.splitlines()[1].endswith(f"weight ({capacity // 2},) int8")
        del weight
        assert torch.empty(capacity, dtype="i8").nbytes == capacity


@examples(20)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=10))
def test_memory_is_free_again_when_the_last_view_is_gone(sizes: list[int]) -> None:
    with RuntimeContext(data=False) as torch:
        tensors = [torch.empty(size, 2) for size in sizes]
        views = [tensor.T[1:] for tensor in tensors]
        held = torch.ahbm.memory_allocated()
        del tensors
        assert torch.ahbm.memory_allocated() == held >= sum(8 * size for size in sizes)
        del views
        assert torch.ahbm.memory_allocated() == 0
        assert torch.ahbm.max_memory_allocated() == held


COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@pytest.mark.parametrize("compare", COMPARISONS, ids=lambda item: item.__name__)
def test_a_comparison_gives_a_boolean_per_element(compare: Any) -> None:
    left, right = np.array([1.0, 2.0, np.nan], np.float32), np.array([2.0, 2.0, 2.0], np.float32)
    with RuntimeContext(ranks=1) as torch:
        a, b = torch.from_numpy(left), torch.from_numpy(right)
        assert compare(a, b).tolist() == compare(left, right).tolist()
        assert compare(a, 2.0).tolist() == compare(left, np.float32(2)).tolist()
        assert compare(a, b).dtype is torch.bool
        assert {a: "kept"}[a] == "kept"
        same: object = a == "text"
        assert same is False
