"""Objects of shared modules, such as ``json._default_encoder``: those that the program names.

A class may have thousands of objects, of which most are a process's own. All share those that
are reached from a shared module by attributes, and a program that sets something there names them.

Some it names only by functions that give them out: one that returns one of its module's globals
(``return _manager``), of its closure or of its class gives the same object to all processes. What
it returns otherwise it has made, or fetched by another function.
"""

from __future__ import annotations

import ast
import ctypes
import dis
import linecache
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from io import IOBase
from itertools import chain, compress, count, groupby, islice, repeat, takewhile
from logging import Logger
from operator import is_not, ne
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from kernbench.torch_bridge.assigned import writes
from kernbench.torch_bridge.assigned.owners import Owners, is_simple
from kernbench.torch_bridge.assigned.registries import (
    CHANGING,
    HOLDING_NOTHING,
    is_machinery,
    kind_of,
)
from kernbench.torch_bridge.assigned.tables import kept_elsewhere
from kernbench.torch_bridge.assigned.writes import own_dict
from kernbench.torch_bridge.base.patches import MISSING
from kernbench.torch_bridge.processes import call_counts

_CFunction: Any = ctypes._CFuncPtr  # type: ignore[attr-defined]
_RETURNS, _CACHE = dis.opmap["RETURN_VALUE"], 0
_FOLLOWED = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "RETURN_VALUE")
_LAST_LOADS = frozenset(
    dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "BINARY_SUBSCR")
)


def given_out(function: Any, space: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what a function in a module or class returns that was there before it was called."""
    if isinstance(function, (classmethod, staticmethod)):
        function = function.__func__
    if type(function) is not FunctionType:
        return
    code = function.__code__
    for steps in _lines_that_return(code):
        value: Any = MISSING
        for operation, name in steps:
            if operation == "LOAD_GLOBAL":
                value = function.__globals__.get(name, MISSING)
            elif operation == "LOAD_DEREF":
                cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
                value = _content(cells.get(name))
            elif operation == "LOAD_ATTR":
                value = (space if value is MISSING else _space(value)).get(name, MISSING)
            elif value is not MISSING:
                yield value


@lru_cache(maxsize=1 << 16)
def _lines_that_return(code: CodeType) -> tuple[tuple[tuple[str, Any], ...], ...]:
    """Return the steps of each line that may return what it loads, until its first call.

    Disassembling takes most of the time here, and most functions of libraries have no such line.
    """
    if not _returns_what_it_loads(code):
        return ()
    steps = dis.get_instructions(code)
    lines = (
        tuple(
            (step.opname, step.argval)
            for step in takewhile(lambda step: "CALL" not in step.opname, line)
            if step.opname in _FOLLOWED
        )
        for _, line in groupby(steps, lambda step: step.positions and step.positions.lineno)
    )
    return tuple(line for line in lines if ("RETURN_VALUE", None) in line)


def _returns_what_it_loads(code: CodeType) -> bool:
    operations = code.co_code[::2]
    at = operations.find(_RETURNS)
    while at >= 0:
        before = operations[:at].rstrip(bytes([_CACHE]))
        if before and before[-1] in _LAST_LOADS:
            return True
        at = operations.find(_RETURNS, at + 1)
    return False


def _content(cell: Any) -> Any:
    try:
        return MISSING if cell is None else cell.cell_contents
    except ValueError:
        return MISSING


def _space(value: Any) -> Any:
    return vars(value) if isinstance(value, (type, ModuleType)) else own_dict(value)


def changed_results(file: str, functions: Container[int]) -> Iterator[tuple[str, int, bool]]:
    """Yield shared functions whose results a file of the program's changes, and the lines.

    By their full names, of those whose identities are in ``functions``; and functions of C whose
    attributes it sets, which ``ctypes`` keeps in C (last: False).
    """
    try:
        nodes = list(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    except (SyntaxError, ValueError):
        return
    imported = _imported(nodes)

    def full(node: ast.expr) -> str:
        first, *rest = _path(node)
        return ".".join([imported.get(first, ""), *rest])

    def called(node: ast.expr) -> str:
        name = full(node.func) if isinstance(node, ast.Call) else ""
        return name if id(_named(name)) in functions else ""

    results = {
        name.id: called(node.value)
        for node in nodes
        if isinstance(node, ast.Assign)
        for name in node.targets
        if isinstance(name, ast.Name)
    }
    for node in nodes:
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            is_changed = not isinstance(node.ctx, ast.Load)
            if is_changed or (isinstance(node, ast.Attribute) and node.attr in CHANGING):
                owner = node.value
                function = results.get(owner.id) if isinstance(owner, ast.Name) else called(owner)
                if function:
                    yield function, node.lineno, True
                elif is_changed and isinstance(_named(full(owner)), _CFunction):
                    yield full(owner), node.lineno, False


def _imported(nodes: list[ast.AST]) -> dict[str, str]:
    """Return the full names of what a file imports, by its names there."""
    imported: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                first = name.name.partition(".")[0]
                imported[name.asname or first] = name.name if name.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                imported[name.asname or name.name] = f"{node.module}.{name.name}"
    return imported


def _path(node: ast.expr) -> list[str]:
    """Return the names of ``a.b.c``, an empty one in place of what is no name."""
    if isinstance(node, ast.Attribute):
        return [*_path(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else ""]


def _named(name: str) -> Any:
    """Return what a full name stands for in the modules that are imported; None if nothing."""
    module, _, attribute = name.rpartition(".")
    if not module:
        return None
    owner = sys.modules.get(module) or _named(module)
    return _space(owner).get(attribute)


_TOLD_OF = (type, ModuleType, FunctionType)
"""Kinds whose writes are told wherever they are."""
_LEFT_OUT = (torch.Tensor, torch.nn.Module, threading.local, IOBase)
"""Kinds of objects that are seldom shared, or that each thread has for itself; and streams, which
may be of whoever runs the program, and note what it prints."""
_OF_MACHINERY = frozenset(("torch._ops", "torch.library", "triton.knobs"))
"""Parts of it whose objects programs set attributes of."""
WRITES_DIRECTLY = frozenset(("vars", "__dict__", "__setattr__", "__delattr__"))
"""By these names a program may set attributes without anybody who is told."""
_CACHED = type(cache(len))
"""What ``functools.cache`` makes of a function."""
_MOST_PARTS = 64
_MOST_CALLS = 6
_OF_WRITES = frozenset((writes.__name__, call_counts.__name__))
"""Modules between who assigns and who is told."""
_PATCHING = frozenset(("unittest.mock", "_pytest.monkeypatch"))
"""Modules that assign what the program gives them."""


class _Index:
    """Where names are: the keys of spaces, looked through again where a name was added."""

    def __init__(self) -> None:
        self._seen: tuple[dict[Any, Any], ...] = ({}, {}, {})
        """By key: the identity of its space, its length, and its newest name."""
        self._by_name: defaultdict[str, set[Any]] = defaultdict(set)

    def find(self, names: Iterable[str], keys: Sequence[Any], spaces: Sequence[Any]) -> list[Any]:
        """Return the keys of the spaces in which some names are, in order."""
        # Each import of a program's own module comes by here with thousands of spaces, few of them
        # new: no Python loop over all.
        reverse: Any = reversed
        newest: Iterator[Any] = map(next, map(reverse, spaces), repeat(None))
        now = list(map(id, spaces)), list(map(len, spaces)), list(newest)
        added: set[int] = set()
        for values, seen in zip(now, self._seen, strict=True):
            added.update(compress(count(), map(ne, map(seen.get, keys), values)))
        for position in added:
            key = keys[position]
            for values, seen in zip(now, self._seen, strict=True):
                seen[key] = values[position]
            for name in spaces[position]:
                self._by_name[name].add(key)
        return sorted(set().union(*(self._by_name.get(name, ()) for name in names)))


_IN_MODULES = _Index()
"""By the names of modules, from run to run: libraries have the same in each."""


class NamedObjects:
    """The objects that all share, and that the program names."""

    def __init__(
        self,
        owners: Owners,
        tell: Callable[[type], None],
        watch: Callable[[list[Any], list[Any], list[Any]], None],
    ) -> None:
        self._owners = owners
        self._tell = tell
        """Has writes to attributes of the objects of a class told."""
        self._watch = watch
        """Has containers compared, and dictionaries of objects; last, those of them that the
        program changes itself."""
        self._by_identity: dict[int, Any] = {}
        """Kept alive, so that no other object gets the identity of one."""
        self.names: set[str] = set()
        """What code of the program's own names: first packages, then what is in them."""
        self.changed: set[str] = set()
        """Those of them in code that changes containers."""
        self.by_program: set[int] = set()
        """Containers of such names, by identity."""
        self.unkept: dict[int, str] = {}
        """Names of functions whose results are all processes', by the functions' identities."""
        self._refused: set[int] = set()
        """What the present search has found not to be shared, by identity: many modules have it."""
        self._spaces: list[Mapping[str, Any]] = []
        """What the objects have by names."""
        self._in_spaces = _Index()
        """By their positions: each package that a program imports names more, few have any."""
        self._modules: dict[str, ModuleType] = {}
        """The modules of the latest search."""
        self._by_package: defaultdict[str, dict[str, ModuleType]] = defaultdict(dict)

    def __contains__(self, owner: Any) -> bool:
        if id(owner) in self._by_identity:
            return True
        if not isinstance(owner, Logger):
            return False
        return owner.manager.loggerDict.get(str(own_dict(owner).get("name"))) is owner

    def is_named(self, module: ModuleType) -> bool:
        """Return whether a module is of a package that the program names."""
        return package_of(module) in self.names

    def expect(self, names: frozenset[str], modules: Mapping[str, ModuleType]) -> None:
        """Know what more names stand for in modules, and in objects that are known."""
        names -= self.names
        is_first = not self.names
        self.names.update(names)
        if is_first:
            self._watch_all(*self._look_into(modules.values(), names))
        elif names:
            having = self._in_spaces.find(names, range(len(self._spaces)), self._spaces)
            containers, inner = self._walk([self._spaces[key] for key in having], names)
            self._sort(modules)
            of_names = [own for name, own in self._by_package.items() if name in self.names]
            spaces = list(map(vars, chain.from_iterable(own.values() for own in of_names)))
            keys = _IN_MODULES.find(names, list(chain.from_iterable(of_names)), spaces)
            newly_named = [own for name, own in self._by_package.items() if name in names]
            for places, asked in (
                ([item for own in newly_named for item in own.values()], self.names),
                ([modules[key] for key in keys if key in modules], names),
            ):
                held, kept = self._look_into(places, asked)
                containers += held
                inner += kept
            self._watch_all(containers, inner)

    def _sort(self, modules: Mapping[str, ModuleType]) -> None:
        """Sort modules that were not there before into their packages."""
        known = self._modules
        are_new = list(map(is_not, map(known.get, modules), modules.values()))
        gone = () if len(known) + sum(are_new) == len(modules) else known.keys() - modules.keys()
        for name in (*gone, *compress(modules, are_new)):
            if name in known:
                self._by_package[package_of(known.pop(name))].pop(name, None)
        for name, module in compress(modules.items(), are_new):
            known[name] = self._by_package[package_of(module)][name] = module

    def meet(self, module: ModuleType) -> None:
        """Know the objects of a module that was imported."""
        self._watch_all(*self._look_into([module], self.names))

    def _look_into(
        self, modules: Iterable[ModuleType], names: Set[str]
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Do as :meth:`_walk`, in modules of packages that the program names."""
        containers: list[Any] = []
        inner: list[dict[str, Any]] = []
        for module in modules:
            is_asked = self.is_named(module) and not vars(module).keys().isdisjoint(names)
            if is_asked and self._owners.is_shared(module):
                of_machinery = is_machinery(module.__name__)
                held, kept = self._walk([vars(module)], names, of_machinery)
                if of_machinery:
                    elsewhere = [vars(module).get(name) for name in kept_elsewhere(module.__name__)]
                    own = [] if module is sys else self._of_program(held)
                    held = [item for item in own if all(item is not other for other in elsewhere)]
                containers += held
                inner += kept
        return containers, inner

    def _of_program(self, containers: list[Any]) -> list[Any]:
        return [container for container in containers if id(container) in self.by_program]

    def _watch_all(self, containers: list[Any], inner: list[dict[str, Any]]) -> None:
        self._refused.clear()
        is_direct = not self.names.isdisjoint(WRITES_DIRECTLY)
        self._watch(containers, inner if is_direct else [], self._of_program(containers))

    def _walk(
        self, spaces: Iterable[Mapping[str, Any]], names: Set[str], of_machinery: bool = False
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Return the containers of names, and the attributes of objects that were not known."""
        containers: list[Any] = []
        inner: list[dict[str, Any]] = []
        spaces = list(spaces)
        for space in spaces:
            holders: list[tuple[str, Any]] = []
            for name in names & space.keys():
                value = space[name]
                of_kind = type(value)
                if of_kind is str or (of_kind is ModuleType and id(value) in self._refused):
                    continue
                results = list(given_out(value, space))
                if of_kind is _CACHED or (of_machinery and (results or of_kind is MethodType)):
                    self.unkept[id(value)] = name
                holders += [(name, holder) for holder in (value, *results)]
            for name, holder in holders:
                kind = kind_of(holder)
                if kind is not None:
                    containers.append(holder)
                    # Modules have their own way to be each process's (``python.modules``).
                    if name in self.changed and holder is not sys.modules:
                        self.by_program.add(id(holder))
                for value in _with_parts(holder, kind):
                    if id(value) in self._by_identity or id(value) in self._refused:
                        continue
                    if not self._may_be_shared(value):
                        self._refused.add(id(value))
                        continue
                    self._by_identity[id(value)] = value
                    own = list(_spaces(value))
                    spaces += own
                    self._spaces += own
                    if not issubclass(type(value), _TOLD_OF):
                        inner.append(own_dict(value))
        return containers, inner

    def _may_be_shared(self, value: Any) -> bool:
        kind = type(value)
        if issubclass(kind, ModuleType) and sys.modules.get(vars(value).get("__name__")) is value:
            # It is looked into by its own name.
            return False
        if issubclass(kind, _TOLD_OF):
            return not self._owners.is_own(value)
        module = kind.__module__
        if kind in HOLDING_NOTHING or issubclass(kind, _LEFT_OUT) or module == "builtins":
            return False
        if (is_machinery(module) and module not in _OF_MACHINERY) or self._owners.is_own(value):
            return False
        self._tell(kind)
        return True

    def is_by_program(self, owner: Any, frame: FrameType | None, before: Any, value: Any) -> bool:
        """Return whether the program sets an attribute of an object, and not a library for all.

        Itself, by a method of the object, or by a function that sets plain values.
        """
        is_setting = before is not MISSING and is_simple(before) and is_simple(value)
        # What an object finds when it is first asked, as one of torch.ops does, it keeps for all.
        is_kept = before is MISSING and not is_simple(value)
        for _ in range(_MOST_CALLS):
            if frame is None:
                break
            name = str(frame.f_globals.get("__name__"))
            if self._owners.is_own_name(name) or name in _PATCHING:
                return True
            if name not in _OF_WRITES:
                is_ours = name.startswith("kernbench.")
                is_method = not is_kept and _first_argument(frame) is owner
                if is_ours or not (is_setting or is_method):
                    break
            frame = frame.f_back
        return False


def package_of(module: ModuleType) -> str:
    """Return the name of the package of a module."""
    return module.__name__.partition(".")[0]


def _spaces(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield what an object has by names."""
    kind = type(value)
    if issubclass(kind, type):
        yield vars(value)
        yield vars(value).get("_member_map_", {})
    elif kind is not FunctionType:
        yield own_dict(value)


def _with_parts(value: Any, kind: Any) -> Iterator[Any]:
    yield value
    if kind is not None:
        is_table = issubclass(kind, dict)
        yield from list(islice(kind.values(value) if is_table else value, _MOST_PARTS))


def _first_argument(frame: FrameType) -> Any:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else MISSING
