"""Sets that are Python's in all but their order, which follows from the running process's seed.

One type serves all ranks: in which order a set shows itself is decided when it is asked. The
modules that a rank imports for itself are compiled so that their sets are of these types.
"""

from __future__ import annotations

import ast
import builtins
import copy
import copyreg
import marshal
import operator
import os
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import lru_cache, wraps
from hashlib import blake2b
from importlib.machinery import SourceFileLoader
from operator import itemgetter, methodcaller
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import HERE

_VARIABLE = "PYTHONHASHSEED"
_KIND = "__kernbench_stands_for__"
_MADE_BY = (
    *("__and__", "__or__", "__sub__", "__xor__", "__rand__", "__ror__", "__rsub__", "__rxor__"),
    *("copy", "difference", "intersection", "symmetric_difference", "union"),
)
"""Methods that return a set."""


def seed_of(environment: Mapping[Any, Any], name: str) -> bytes:
    """Return the seed of a process that starts with such variables; ``name`` is no other's."""
    asked = environment.get(os.fsencode(_VARIABLE), b"")
    return blake2b(asked if asked not in (b"", b"random") else f"of {name}".encode()).digest()


def _number(data: bytes, seed: bytes) -> int:
    number = int.from_bytes(blake2b(data, digest_size=8, key=seed).digest(), "little", signed=True)
    return -2 if number == -1 else number


def _salted(value: Any, seed: bytes) -> int | None:
    """Return the hash of a value by a seed, or None if no seed decides it."""
    by: Any = type(value).__hash__
    if by in (str.__hash__, bytes.__hash__, memoryview.__hash__):
        # As in Python, text that is equal as bytes has one hash, and what is empty has 0.
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
        return _number(data, seed) if data else None
    if by is Enum.__hash__:
        return _salted(value.name, seed)
    if by is PurePath.__hash__:
        return _salted(str(value), seed)
    if by in (tuple.__hash__, frozenset.__hash__):
        numbers = [_salted(part, seed) for part in _parts(value)]
        if numbers and any(number is not None for number in numbers):
            parts = [hash(part) if number is None else number
                     for part, number in zip(_parts(value), numbers, strict=True)]  # fmt: skip
            ordered = parts if by is tuple.__hash__ else sorted(parts)
            return _number(repr(ordered).encode(), seed)
    return None


def _parts(value: Any) -> Iterator[Any]:
    """Return the parts of a tuple or set in the order in which Python keeps them."""
    kind: Any
    for kind in (tuple, builtins.set, builtins.frozenset):
        if isinstance(value, kind):
            parts: Iterator[Any] = kind.__iter__(value)
            return parts
    raise TypeError(type(value).__name__)


@unseen
def hash_of(value: Any, /) -> int:
    """Return ``hash(value)`` by the seed of the running process."""
    plain, process = hash(value), HERE.process
    if process is None or process.hash_seed is None:
        return plain
    number = _salted(value, process.hash_seed)
    return plain if number is None else number


hash_of.__name__ = hash_of.__qualname__ = "hash"


def _in_order(values: Any) -> list[Any]:
    """Return the elements: what no seed decides in Python's order, text at random among it."""
    process = HERE.process
    seed = None if process is None else process.hash_seed
    if seed is None:
        return list(_parts(values))
    texts: list[tuple[int, Any]] = []
    others: list[Any] = []
    for value in _parts(values):
        number = _salted(value, seed)
        if number is None:
            others.append(value)
        else:
            texts.append((number, value))
    places = [(number % (len(others) + 1), 0, number, value) for number, value in texts]
    places += [(place, 1, 0, value) for place, value in enumerate(others)]
    return [value for *_, value in sorted(places, key=itemgetter(0, 1, 2))]


class _KindOfSet(ABCMeta):
    """The class of the types, to which a plain set belongs, and which are equal to Python's.

    It is an abstract class's, so that programs may combine them with abstract classes.
    """

    def _plain(cls) -> Any:
        return cls.__dict__.get(_KIND)

    def __instancecheck__(cls, instance: Any) -> bool:
        plain = cls._plain()
        return super().__instancecheck__(instance) if plain is None else isinstance(instance, plain)

    def __subclasscheck__(cls, subclass: type) -> bool:
        plain = cls._plain()
        return super().__subclasscheck__(subclass) if plain is None else issubclass(subclass, plain)

    def __eq__(cls, other: object) -> bool:
        return cls is other or (other is not None and cls._plain() is other)

    def __hash__(cls) -> int:
        return type.__hash__(cls._plain() or cls)


class _OrderedSet:
    """What shows the order of a set."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        # Python's own iterator goes along, which sees that the set has changed meanwhile; all in
        # C, as it takes no time of a program's host.
        return map(itemgetter(1), zip(_parts(self), _in_order(self), strict=False))

    def __repr__(self) -> str:
        name, values = type(self).__name__, ", ".join(map(repr, self))
        if not values:
            return f"{name}()"
        return f"{{{values}}}" if name == "set" else f"{name}({{{values}}})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Make it a plain set for others; its subclasses are what they are."""
        plain = type(self).__dict__.get(_KIND)
        return super().__reduce_ex__(protocol) if plain is None else (plain, (list(self),))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if _KIND not in type(self).__dict__:
            return copy._reconstruct(  # type: ignore[attr-defined]
                self, memo, *super().__reduce_ex__(4)
            )
        kind: Any = type(self)
        return kind(copy.deepcopy(list(self), memo))


class OwnSet(_OrderedSet, builtins.set[Any], metaclass=_KindOfSet):
    """A ``set``."""

    __slots__ = ("_to_pop",)
    _to_pop: list[Any]

    def pop(self) -> Any:
        """Remove and return an element, the next in the order that an earlier call has found."""
        if not self:
            return super().pop()
        while True:
            rest = getattr(self, "_to_pop", None)
            if not rest:
                rest = self._to_pop = _in_order(self)[::-1]
            value = rest.pop()
            if value in self:
                self.remove(value)
                return value

    def __getstate__(self) -> Any:
        if hasattr(self, "_to_pop"):
            del self._to_pop
        return object.__getstate__(self)


class OwnFrozenSet(_OrderedSet, builtins.frozenset[Any], metaclass=_KindOfSet):
    """A ``frozenset``."""

    __slots__ = ()


_OF_PLAIN: dict[int, Any] = {}


def _owned(value: Any) -> Any:
    """Return a set that Python has made as one of ours, and all else as it is."""
    own = _OF_PLAIN.get(id(type(value)))
    return value if own is None else own(value)


def _owning(method: Callable[..., Any]) -> Callable[..., Any]:
    @unseen
    @wraps(method)
    def own(*args: Any) -> Any:
        return _owned(method(*args))

    return own


OPERATORS = {name: _owning(getattr(operator, name)) for name in ("and_", "or_", "sub", "xor")}
"""Operators that make a set of the views of a dictionary."""


def _stand_for(own: Any, plain: type) -> None:
    """Let a type pass for one of Python's, and what its methods make be of it."""
    _OF_PLAIN[id(plain)] = own
    own.__name__, own.__qualname__, own.__module__ = plain.__name__, plain.__name__, "builtins"
    own.__doc__ = plain.__doc__
    for holder in (_KindOfSet, _OrderedSet, own):
        for name, function in list(vars(holder).items()):
            if isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
                setattr(holder, name, unseen(function))
    for name in _MADE_BY:
        setattr(own, name, _owning(getattr(plain, name)))
    setattr(own, _KIND, plain)


_stand_for(OwnSet, builtins.set)
_stand_for(OwnFrozenSet, builtins.frozenset)


def _reduced(cls: type) -> Any:
    """Pickle the types as Python's (``defaultdict(set)``), and their subclasses by name."""
    plain = cls.__dict__.get(_KIND)
    return cls.__qualname__ if plain is None else (type, (plain(),))


def install(patches: Patches) -> None:
    """Let the types be pickled, and copied."""
    copyreg.pickle(_KindOfSet, _reduced)
    patches.on_close(copyreg.dispatch_table.pop, _KindOfSet, None)
    copies = copy._copy_dispatch  # type: ignore[attr-defined]
    patches.on_close(copies.__setitem__, builtins.set, copies[builtins.set])
    copies[builtins.set] = methodcaller("copy")


def plain_where_compiled(value: Any) -> Any:
    """Return what PyTorch's compiler takes for a value: sets that compiled code makes are plain.

    It loses what is put into a set of a class of Python's.
    """
    if value is OwnSet or value is OwnFrozenSet:
        return value.__dict__[_KIND]
    for name, function in OPERATORS.items():
        if value is function:
            return getattr(operator, name)
    if isinstance(value, _OrderedSet) or value is hash_of:
        from torch._dynamo.exc import Unsupported

        raise Unsupported(
            "kernbench: with --hash-seeds the compiler leaves sets that are made outside of "
            "compiled code, and hash(), to Python"
        )
    return value


_OF_DISPLAYS, _OF_VIEWS = "__kernbench_set__", "__kernbench_{}__"
NAMES: dict[str, Any] = {
    "set": OwnSet,
    "frozenset": OwnFrozenSet,
    "hash": hash_of,
    _OF_DISPLAYS: OwnSet,
    **{_OF_VIEWS.format(name): function for name, function in OPERATORS.items()},
}
"""What such a module finds under these names, in place of what is built in."""

_OPERATORS = {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.Sub: "sub"}


class _Displays(ast.NodeTransformer):
    """Passes what displays, comprehensions and keys of dictionaries make to the type of sets."""

    def visit_Set(self, node: ast.Set) -> ast.AST:
        return _call(_OF_DISPLAYS, [self.generic_visit(node)], node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        return _call(_OF_DISPLAYS, [self.generic_visit(node)], node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """``names.keys() & others``: a set that a method of dictionaries makes."""
        name = _OPERATORS.get(type(node.op))
        is_of_view = is_view(node.left) or is_view(node.right)
        self.generic_visit(node)
        if name is None or not is_of_view:
            return node
        return _call(_OF_VIEWS.format(name), [node.left, node.right], node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Leave the set of ``x in {...}`` to Python, which makes it once: it has no order."""
        node.left = self.visit(node.left)
        node.comparators = [
            self.generic_visit(value)  # type: ignore[misc]
            if isinstance(value, ast.Set) and isinstance(operator, (ast.In, ast.NotIn))
            else self.visit(value)
            for operator, value in zip(node.ops, node.comparators, strict=True)
        ]
        return node


def is_view(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in ("items", "keys")


def _call(function: str, arguments: list[Any], where: ast.AST) -> ast.AST:
    name = ast.copy_location(ast.Name(function, ast.Load()), where)
    return ast.copy_location(ast.Call(func=name, args=arguments, keywords=[]), where)


@lru_cache(maxsize=512)
def _marshalled(source: bytes, path: str) -> bytes:
    """Return the code of a module, which many ranks import."""
    tree = _Displays().visit(ast.parse(source, path))
    return marshal.dumps(compile(tree, path, "exec", dont_inherit=True))


def compiled(source: bytes, path: str) -> CodeType:
    """Return a module's code, no other's: the compiler keeps what it compiles with the code."""
    code: CodeType = marshal.loads(_marshalled(source, path))
    return code


class SeededLoader(SourceFileLoader):
    """Loads a module of a rank's own."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compiled(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        names: dict[str, Any] = module.__dict__
        names.update(NAMES)
        super().exec_module(module)
