"""What tensors and a bench's ``torch`` have by PyTorch's names gives what PyTorch gives."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernbench import ops
from kernbench.errors import MissingNameError, NoDataError, UsageError
from kernbench.runtime_api import RuntimeContext
from kernbench.runtime_api.tensors import tensor
from tests.ops.arrays import laid_out, layouts
from tests.tiers import examples

oracle = pytest.importorskip("torch")
few = examples(6)
NAMES = ("float16", "bfloat16", "float32", "int32", "int64", "bool", "uint8")
EXACT = ("int32", "int64", "bool", "uint8")
# Few: each tile is compiled for each dtype.
shapes = st.sampled_from([(5,), (3, 4), (2, 3, 4), (6, 1)])


def pair(torch: Any, draw: Any, dtype: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return equal tensors of the run, laid out anyhow, and of PyTorch; some elements are equal."""
    seed = draw(st.integers(0, 99))
    steps = np.random.default_rng(seed).integers(-9, 10, shape)
    wide = steps.astype(np.float32) / 4 if dtype not in EXACT else steps
    theirs = oracle.from_numpy(np.ascontiguousarray(wide)).to(getattr(oracle, dtype))
    host = wide.astype(np.float32) if dtype not in EXACT else theirs.numpy()
    ours = laid_out(torch, host, draw(layouts(shape)))
    return (ours if dtype in EXACT else ours.to(dtype)), theirs


def agree(ours: Any, theirs: Any, places: float = 2.0**-20) -> None:
    """Hold a result to PyTorch's: dtype, shape and elements; halves within one rounding."""
    if isinstance(theirs, tuple):
        for mine, its in zip(ours, theirs, strict=True):
            agree(mine, its, places)
        return
    assert str(ours.dtype) == str(theirs.dtype)
    assert tuple(ours.shape) == tuple(theirs.shape)
    tolerance = {"torch.float16": 2.0**-10, "torch.bfloat16": 2.0**-7}.get(str(ours.dtype), places)
    np.testing.assert_allclose(
        np.asarray(ours.to("float64").numpy()), theirs.double().numpy(),
        rtol=tolerance if theirs.is_floating_point() else 0, atol=tolerance / 4, equal_nan=True,
    )  # fmt: skip


def dims_of(draw: Any, shape: tuple[int, ...]) -> Any:
    return draw(st.integers(-len(shape), len(shape) - 1))


@few
@given(data=st.data(), dtype=st.sampled_from(("float16", "float32", "int64", "bool", "uint8")))
def test_reductions_along_a_dim_or_over_all(torch: Any, data: st.DataObject, dtype: str) -> None:
    shape = data.draw(shapes)
    ours, theirs = pair(torch, data.draw, dtype, shape)
    dim, keepdim = dims_of(data.draw, shape), data.draw(st.booleans())
    for name in ("sum", "max", "min", "argmax", "argmin", "all", "any", "amax", "amin"):
        if dtype == "bool" and name.startswith("arg"):
            continue  # PyTorch has none of bools
        agree(getattr(ours, name)(), getattr(theirs, name)())
        agree(getattr(ours, name)(dim), getattr(theirs, name)(dim))
        agree(
            getattr(torch, name)(ours, dim, keepdim=keepdim),
            getattr(oracle, name)(theirs, dim, keepdim=keepdim),
        )


@few
@given(data=st.data(), dtype=st.sampled_from(("float16", "bfloat16", "float32")))
def test_means_deviations_and_norms(torch: Any, data: st.DataObject, dtype: str) -> None:
    shape = data.draw(shapes)
    ours, theirs = pair(torch, data.draw, dtype, shape)
    dim = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    agree(ours.mean(), theirs.mean())
    agree(torch.mean(ours, dim, keepdim=True), oracle.mean(theirs, dim, keepdim=True))
    assume(math.prod(shape[item] for item in dim) > 1)
    correction = data.draw(st.integers(0, 1))
    agree(ours.std(dim, correction=correction), theirs.std(dim, correction=correction), 2.0**-18)
    agree(torch.var(ours, dim, keepdim=True), oracle.var(theirs, dim, keepdim=True), 2.0**-18)
    for p in ("fro", 1, 2, 3.5, math.inf, -math.inf, 0):
        norm = ours.norm(p, dim) if data.draw(st.booleans()) else torch.norm(ours, p=p, dim=dim)
        expected = oracle.linalg.vector_norm(theirs.float(), 2 if p == "fro" else p, dim)
        agree(norm, expected.to(theirs.dtype), 2.0**-18)


@few
@given(data=st.data(), dtype=st.sampled_from(("bfloat16", "float32", "int64", "bool")))
def test_functions_of_each_element(torch: Any, data: st.DataObject, dtype: str) -> None:
    shape = data.draw(shapes)
    ours, theirs = pair(torch, data.draw, dtype, shape)
    for name in ("exp", "tanh", "sigmoid", "sin", "cos"):
        agree(getattr(ours, name)(), getattr(theirs, name)(), 2.0**-18)
    if dtype == "bool":
        return
    agree(ours.abs(), theirs.abs())
    agree(abs(ours).sqrt(), abs(theirs).sqrt())
    agree(ours.relu(), theirs.relu())
    agree(ours.clamp(0, 1), theirs.clamp(0, 1))
    agree(torch.clamp(ours, max=1), oracle.clamp(theirs, max=1))


@few
@given(data=st.data(), dtype=st.sampled_from(("float32", "int32", "int64", "uint8")))
def test_powers(torch: Any, data: st.DataObject, dtype: str) -> None:
    ours, theirs = pair(torch, data.draw, dtype, data.draw(shapes))
    for exponent in (0, 1, 2, 3, 7, 0.5, 2.0, -1.0, 1.5):
        agree(ours**exponent, theirs**exponent, 2.0**-18)
    agree(2.0**ours, 2.0**theirs, 2.0**-18)
    agree(ours.abs() ** ours, theirs.abs() ** theirs, 2.0**-18)
    if dtype != "float32":
        with pytest.raises(UsageError, match=r"to the power of -2 are no integers"):
            ours**-2


@few
@given(data=st.data(), dtype=st.sampled_from((*NAMES, "float64")), length=st.integers(1, 70))
def test_sorted_elements_and_running_sums(
    torch: Any, data: st.DataObject, dtype: str, length: int
) -> None:
    shape = data.draw(st.permutations((length, 2)).map(tuple))
    if dtype == "float64":
        host = np.random.default_rng(length).standard_normal(shape) / 1e9
        ours, theirs = torch.from_numpy(host), oracle.from_numpy(host)
    else:
        ours, theirs = pair(torch, data.draw, dtype, shape)
    dim = shape.index(length) if length != 2 else 0
    descending = data.draw(st.booleans())
    expected = oracle.sort(theirs, dim=dim, descending=descending, stable=True)
    agree(ours.sort(dim, descending), expected)
    agree(torch.argsort(ours, dim, descending=descending), expected.indices)
    k = data.draw(st.integers(0, length))
    values, indices = torch.topk(ours, k, dim, largest=descending)
    agree(values, expected.values.narrow(dim, 0, k))
    agree(indices, expected.indices.narrow(dim, 0, k))
    agree(ours.cumsum(dim), theirs.cumsum(dim), 2.0**-18)


def test_rows_longer_than_a_block_are_sorted_by_merging(torch: Any) -> None:
    host = np.random.default_rng(0).integers(-50, 50, (2, 9000)).astype(np.float32)
    host[0, 17], host[1, 5], host[1, 6] = np.nan, np.inf, -0.0
    ours, theirs = torch.from_numpy(host), oracle.from_numpy(host)
    for descending in (False, True):
        agree(ours.sort(descending=descending), theirs.sort(descending=descending, stable=True))


def test_nan_is_the_largest_and_the_smallest_as_in_pytorch(torch: Any) -> None:
    host = np.array([[1.0, np.nan, 3.0, np.nan], [-np.inf, 0.0, np.inf, -0.0]], np.float32)
    ours, theirs = torch.from_numpy(host), oracle.from_numpy(host)
    for name in ("max", "min", "argmax", "argmin", "amax", "amin"):
        agree(getattr(ours, name)(dim=1), getattr(theirs, name)(dim=1))


@few
@given(data=st.data())
def test_softmax_along_any_dim(torch: Any, data: st.DataObject) -> None:
    shape = data.draw(shapes)
    ours, theirs = pair(torch, data.draw, "float32", shape)
    dim = dims_of(data.draw, shape)
    agree(ours.softmax(dim), theirs.softmax(dim))
    agree(
        torch.softmax(ours.half(), dim, dtype=torch.float32),
        theirs.half().softmax(dim, oracle.float),
    )


EQUATIONS = (
    "ij,jk->ik", "ij,jk", "bij,bjk->bik", "ij->ji", "ij->", "ii->i", "ii", "i,j->ij", "i,i->",
    "bhqd,bhkd->bhqk", "...ij,...jk->...ik", "ij,kj,kl->il", "ij,j->i", "ij,ik->ijk", "ij,ij->ij",
    "b...,b...->...",
)  # fmt: skip


@few
@given(data=st.data(), equation=st.sampled_from(EQUATIONS))
def test_sums_of_products(torch: Any, data: st.DataObject, equation: str) -> None:
    sizes = {name: data.draw(st.integers(1, 5)) for name in "bhijkldq"}
    pairs = []
    for names in equation.partition("->")[0].split(","):
        dims = [sizes[name] for name in names.replace("...", "")]
        shape = (*dims[: names.find("...")], 2, 3, *dims[names.find("...") :])
        pairs.append(pair(torch, data.draw, "float32", shape if "..." in names else tuple(dims)))
    agree(
        torch.einsum(equation, *(ours for ours, _ in pairs)),
        oracle.einsum(equation, *(theirs for _, theirs in pairs)), 2.0**-18,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        ("ij,jk->ik", "has 2 operands, but got 1 tensors"),
        ("ijk->i", "does not name the dims of shape"),
        ("ij->x", "must name indices of the operands"),
        ("ij->ii", "each once"),
        ("iJ->i", "lower-case letters"),
        ("i1->i", "must name indices"),
        ("ii->i", "index i is of sizes 2 and 3"),
    ],
)
def test_a_wrong_equation_is_refused(torch: Any, equation: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        torch.einsum(equation, torch.ones(2, 3))
    with pytest.raises(UsageError, match="index j is of sizes 3 and 2"):
        torch.einsum("ij,jk->ik", torch.ones(2, 3), torch.ones(2, 3))


def test_products_by_name(torch: Any) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    agree(torch.mm(a, b), oracle.from_numpy((a @ b).numpy()))
    agree(a[None].bmm(b[None]), oracle.from_numpy((a @ b).numpy())[None])
    for name, wrong in (("mm", a[None]), ("bmm", a)):
        with pytest.raises(UsageError, match="matmul broadcasts"):
            getattr(torch, name)(wrong, b)
    with pytest.raises(UsageError, match="as many matrices"):
        torch.bmm(torch.ones(2, 3, 4), torch.ones(3, 4, 5))


def test_comparing_whole_tensors(torch: Any) -> None:
    host = np.array([1.0, np.inf, -np.inf, np.nan, 0.0], np.float32)
    near = host * np.float32(1 + 1e-6)
    for ours, other in (
        (host, near),
        (host, host + 1),
        (near[:3], host[:3]),
        (host[:3], -host[:3]),
    ):
        for equal_nan in (False, True):
            expected = oracle.allclose(
                oracle.from_numpy(ours), oracle.from_numpy(other), equal_nan=equal_nan
            )
            tensor = torch.allclose(
                torch.from_numpy(ours), torch.from_numpy(other), equal_nan=equal_nan
            )
            assert tensor is expected
    x = torch.arange(6)
    assert torch.equal(x, torch.arange(6))
    assert not x.equal(torch.zeros(6, dtype="int64"))
    assert not x.equal(x.reshape(2, 3))


def test_tensors_are_made_as_in_pytorch(torch: Any) -> None:
    agree(torch.eye(3, 4), oracle.eye(3, 4))
    agree(torch.eye(2, dtype="int64"), oracle.eye(2, dtype=oracle.int64))
    for start, end, steps in ((0, 1, 5), (3, -2, 4), (1, 1, 1), (0, 1, 0)):
        agree(torch.linspace(start, end, steps), oracle.linspace(start, end, steps))
    parts = [torch.full((2, 3), value) for value in (1.0, 2.0)]
    for dim in (0, 1, 2, -1):
        agree(
            torch.stack(parts, dim), oracle.stack([oracle.full((2, 3), v) for v in (1.0, 2.0)], dim)
        )
    with pytest.raises(UsageError, match="stack needs equal shapes"):
        torch.stack([torch.ones(2), torch.ones(3)])
    agree(torch.where(parts[0] > 1, parts[0], 7.0), oracle.full((2, 3), 7.0))
    agree(parts[0].where(parts[0] > 1, parts[1]), oracle.full((2, 3), 2.0))


def test_elements_come_to_the_host_and_gradients_are_nothing(torch: Any) -> None:
    with torch.no_grad():
        x = torch.ones(3, device="cuda").cuda()
    host = x.cpu()
    assert (type(host.numpy()), host.detach().cpu().tolist()) == (np.ndarray, [1.0, 1.0, 1.0])
    assert torch.no_grad()(lambda: 3)() == 3
    assert torch.inference_mode()(lambda: 3)() == 3


@pytest.mark.adr("0149-D3")
def test_every_operation_is_a_kernel_that_takes_time() -> None:
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "max": lambda torch, x: x.max(1), "sort": lambda torch, x: x.sort(),
        "std": lambda torch, x: x.std(), "cumsum": lambda torch, x: x.cumsum(0),
        "pow": lambda torch, x: x**2.5, "norm": lambda torch, x: x.norm(),
        "matmul": lambda torch, x: torch.einsum("ij,kj->ik", x, x),
    }  # fmt: skip
    for name, call in calls.items():
        with RuntimeContext("h100-sxm", ranks=1, data=False) as torch:
            call(torch, torch.empty(64, 64))
            report = torch.report()
        kernels = {item["name"]: item for item in report["kernels"]}
        assert name in kernels, (name, sorted(kernels))
        assert kernels[name]["time_ns"] > 0


@pytest.mark.adr("0149-D3")
def test_an_operation_that_there_is_not_says_what_there_is(torch: Any) -> None:
    x = torch.ones(2)
    with pytest.raises(MissingNameError, match=r"no cumsun; did you mean cumsum"):
        x.cumsun(0)
    with pytest.raises(MissingNameError, match=r"no fft_zz; it has .*abs, .*argmax.* run FILE"):
        _ = torch.fft_zz
    assert {"cumsum", "reshape", "einsum"} - set(dir(x)) == {"einsum"}
    assert {"einsum", "randn", "topk"} <= set(dir(torch))
    assert not hasattr(x, "__cuda_array_interface__")
    for name in ops.TORCH_FUNCTIONS:
        assert callable(getattr(torch, name))


@pytest.mark.parametrize(
    ("name", "there", "bound"),
    [("TensorMethods", ops.TENSOR_METHODS, 1), ("TorchFunctions", ops.TORCH_FUNCTIONS, 0)],
)
def test_type_checkers_are_told_what_there_is(
    name: str, there: Mapping[str, Callable[..., Any]], bound: int
) -> None:
    stub = Path(tensor.__file__).with_name("torch_names.pyi")
    (told,) = (
        node
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    arguments: dict[str, list[str]] = {}
    for method in told.body:
        assert isinstance(method, ast.FunctionDef)
        own = method.args
        names = [*own.args[1:], *([own.vararg] if own.vararg else []), *own.kwonlyargs]
        arguments.setdefault(method.name, []).extend(argument.arg for argument in names)
    assert {name: list(dict.fromkeys(names)) for name, names in arguments.items()} == {
        name: list(inspect.signature(call).parameters)[bound:] for name, call in there.items()
    }


def test_wrong_arguments_name_the_operation(torch: Any) -> None:
    x = torch.ones(2, 3)
    for words, call in {
        "cumsum: dim 2 does not exist": lambda: x.cumsum(2),
        "sort: dim must be a number": lambda: x.sort("a"),
        "topk: k must be from 0 to 3": lambda: x.topk(4),
        "max along a dim without elements": lambda: torch.zeros(2, 0).max(1),
        "norm: p must be 'fro' or a number": lambda: x.norm("nuc"),
        "mean needs a floating-point tensor": lambda: torch.arange(3).mean(),
        "clamp: at least one": lambda: x.clamp(),
        "linspace: steps must be 0 or more": lambda: torch.linspace(0, 1, -1),
        "abs is not defined for bools": lambda: (x > 0).abs(),
    }.items():
        with pytest.raises(UsageError, match=words):
            call()
    with RuntimeContext(data=False) as empty, pytest.raises(NoDataError, match="needs data"):
        ops.equal(empty.ones(2), empty.ones(2))
