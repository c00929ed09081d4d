"""Products of matrices by torch's names, and sums of products by Einstein's notation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernbench.errors import UsageError
from kernbench.ops.elementwise import mul
from kernbench.ops.products.gemm import matmul
from kernbench.ops.reductions import sum
from kernbench.runtime_api import Tensor

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices.

    Raises:
        UsageError: One of them is no matrix.
    """
    return _product("mm", a, b, 2)


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Return the products of two stacks of matrices, of as many each.

    Raises:
        UsageError: One of them has no three dims, or they differ in number.
    """
    if len(a.shape) == len(b.shape) == 3 and a.shape[0] != b.shape[0]:
        raise UsageError(f"bmm needs as many matrices of both, but got {a.shape} and {b.shape}")
    return _product("bmm", a, b, 3)


def _product(name: str, a: Tensor, b: Tensor, dims: int) -> Tensor:
    if len(a.shape) != dims or len(b.shape) != dims:
        raise UsageError(
            f"{name} needs two tensors of {dims} dims, but got shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}; matmul broadcasts"
        )
    return matmul(a, b)


def einsum(equation: str, *operands: Tensor | Sequence[Tensor]) -> Tensor:
    """Return the sum of products that ``equation`` says: ``einsum("bik,bkj->bij", a, b)``.

    Operands are contracted from left to right, each pair by one product of matrices. An index twice
    in one operand is its diagonal; ``...`` are dims that broadcast.

    Raises:
        UsageError: The equation does not fit the operands.
    """
    operand = (
        operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    )
    tensors: list[Tensor] = list(operand)  # type: ignore[arg-type]  # tensors, or a list of them
    inputs, output = _parsed(equation, tensors)
    terms = [_diagonals(*pair) for pair in zip(inputs, tensors, strict=True)]
    _check_sizes(equation, terms)
    names, result = terms[0]
    for position, (other_names, other) in enumerate(terms[1:], 2):
        later = "".join(name for name, _ in terms[position:]) + output
        names, result = _contracted(names, result, other_names, other, later)
    gone = tuple(at for at, name in enumerate(names) if name not in output)
    if gone:
        result = sum(result, gone)
        names = "".join(name for name in names if name in output)
    return result.permute([names.index(name) for name in output]) if output else result


def _parsed(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """Return the indices of each operand and of the result; dims of ``...`` are capital letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(tensors) or not tensors:
        raise UsageError(
            f"einsum {equation!r} has {len(inputs)} operands, but got {len(tensors)} tensors"
        )
    if any(item.isalpha() and not item.islower() for item in (*left, *right)):
        raise UsageError(f"einsum {equation!r}: indices must be lower-case letters")
    spread = 0
    expanded = []
    for names, tensor in zip(inputs, tensors, strict=True):
        extra = len(tensor.shape) - len(names.replace("...", ""))
        if extra < 0 or ("..." not in names and extra):
            raise UsageError(
                f"einsum {equation!r}: {names!r} does not name the dims of shape "
                f"{tuple(tensor.shape)}"
            )
        spread = max(spread, extra)
        expanded.append(names.replace("...", _LETTERS[len(_LETTERS) - extra :]))
    dots = _LETTERS[len(_LETTERS) - spread :]
    every = "".join(expanded)
    if not arrow:
        once = sorted(name for name in set(every) if every.count(name) == 1 and name.islower())
        output = dots + "".join(once)
    else:
        output = right.replace("...", dots)
    unknown = [name for name in output if name not in every]
    if unknown or len(set(output)) != len(output) or not f"a{every}{output}".isalpha():
        raise UsageError(
            f"einsum {equation!r}: the result must name indices of the operands, each once"
        )
    return expanded, output


def _diagonals(names: str, tensor: Tensor) -> tuple[str, Tensor]:
    """Return an operand in which each index is of one dim: of several, along their diagonal."""
    sizes: dict[str, int] = {}
    strides: dict[str, int] = {}
    for name, size, stride in zip(names, tensor.shape, tensor.stride(), strict=True):
        if sizes.setdefault(name, size) != size:
            raise UsageError(f"einsum: index {name} is of sizes {sizes[name]} and {size}")
        strides[name] = strides.get(name, 0) + stride
    if len(sizes) == len(names):
        return names, tensor
    view = tensor.show(tensor.offset, tuple(sizes.values()), tuple(strides.values()))
    return "".join(sizes), view


def _check_sizes(equation: str, terms: Sequence[tuple[str, Tensor]]) -> None:
    sizes: dict[str, int] = {}
    for names, tensor in terms:
        for name, size in zip(names, tensor.shape, strict=True):
            known = sizes.setdefault(name, size)
            if known == 1 and name.isupper():
                sizes[name] = size
            elif size != known and not (size == 1 and name.isupper()):
                raise UsageError(
                    f"einsum {equation!r}: index {name} is of sizes {known} and {size}"
                )


def _contracted(a_names: str, a: Tensor, b_names: str, b: Tensor, later: str) -> tuple[str, Tensor]:
    """Return two operands as one: indices that nobody needs later are summed over."""
    a_names, a = _without_lone(a_names, a, b_names + later)
    b_names, b = _without_lone(b_names, b, a_names + later)
    shared = [name for name in a_names if name in b_names]
    batch = [name for name in shared if name in later]
    inner = [name for name in shared if name not in later]
    rows = [name for name in a_names if name not in shared]
    columns = [name for name in b_names if name not in shared]
    if not inner:
        return _outer(a_names, a, b_names, b)
    sizes = dict(zip(a_names + b_names, (*a.shape, *b.shape), strict=True))
    for name, size in zip(a_names, a.shape, strict=True):
        sizes[name] = max(sizes[name], size)

    def arranged(names: str, x: Tensor, *groups: list[str]) -> Tensor:
        x = x.permute([names.index(name) for group in groups for name in group])
        x = x.expand([sizes[name] for group in groups for name in group])
        return x.reshape(tuple(math.prod(sizes[name] for name in group) for group in groups))

    product = matmul(
        arranged(a_names, a, batch, rows, inner), arranged(b_names, b, batch, inner, columns)
    )
    order = [*batch, *rows, *columns]
    return "".join(order), product.reshape(tuple(sizes[name] for name in order))


def _without_lone(names: str, x: Tensor, needed: str) -> tuple[str, Tensor]:
    """Return an operand summed over the indices that only it has."""
    lone = tuple(at for at, name in enumerate(names) if name not in needed)
    return ("".join(n for n in names if n in needed), sum(x, lone)) if lone else (names, x)


def _outer(a_names: str, a: Tensor, b_names: str, b: Tensor) -> tuple[str, Tensor]:
    """Return the product of operands without an index to sum over, element by element."""
    order = [*a_names, *(name for name in b_names if name not in a_names)]

    def spread(names: str, x: Tensor) -> Tensor:
        x = x.permute([names.index(name) for name in order if name in names])
        sizes = iter(x.shape)
        return x.reshape(tuple(next(sizes) if name in names else 1 for name in order))

    return "".join(order), mul(spread(a_names, a), spread(b_names, b))
