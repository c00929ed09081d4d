"""What a process assigns to shared modules and classes, and registers there, is its own."""

from __future__ import annotations

import ctypes
import io
import json
import logging
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.interrupts import is_untimely  # noqa: E402
from kernbench.torch_bridge.assigned import Assignments  # noqa: E402
from kernbench.torch_bridge.assigned.assignments import OwnAttribute  # noqa: E402
from kernbench.torch_bridge.assigned.objects import NamedObjects  # noqa: E402
from kernbench.torch_bridge.assigned.owners import Owners  # noqa: E402
from kernbench.torch_bridge.assigned.registries import registries_of  # noqa: E402
from kernbench.torch_bridge.assigned.tables import MemoryWords  # noqa: E402
from kernbench.torch_bridge.base.patches import MISSING  # noqa: E402
from tests.torch_bridge.running import real, simulated  # noqa: E402

PROGRAM = "assigned_in_parts.py"


def seen(folder: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def both(folder: Path, program: str, *args: str, nprocs: int) -> tuple[list[Any], list[Any]]:
    """Return what simulated processes have seen, and what real ones have."""
    folders = [folder / "ours", folder / "theirs"]
    for item in folders:
        item.mkdir()
    name, *rest = args or ("",)
    ours, theirs = ([name, str(folder), *rest] if name else [str(folder)] for folder in folders)
    real(program, *theirs, nprocs=nprocs)
    simulated(program, *ours, nprocs=nprocs)
    return seen(folders[0]), seen(folders[1])


def state() -> dict[str, Any]:
    """Return some of what the kinds of ``assigned.py`` change."""
    import abc
    import builtins
    import copyreg
    import decimal
    import gc
    import logging
    import reprlib
    import socket
    import sqlite3
    import types
    import typing

    import torch.nn.functional as functional
    from torch.optim.optimizer import _global_optimizer_post_hooks
    from torch.utils import _pytree as pytree
    from torch.utils.data import IterDataPipe

    return {
        "function": functional.gelu,
        "method": torch.nn.Linear.forward,
        "new": hasattr(torch, "kb_of_rank"),
        "new builtin": hasattr(builtins, "kb_say"),
        "pipes": list(IterDataPipe.functions),
        "trees": decimal.Context in pytree.SUPPORTED_NODES,
        "hooks": list(_global_optimizer_post_hooks),
        "copies": types.SimpleNamespace in copyreg.dispatch_table,
        "levels": dict(vars(logging)["_levelToName"]),
        "timeout": socket.getdefaulttimeout(),
        "threads": torch.get_num_interop_threads(),
        "defaults": functional.dropout.__defaults__,
        "code": functional.selu.__code__,
        "attributes": [hasattr(functional.relu, "kb_rank"), vars(torch.nn.Bilinear.forward)],
        "collections": len(gc.callbacks),
        "finders": [*sys.meta_path, *sys.path_hooks],
        "recursion": sys.getrecursionlimit(),
        "module": "kb_not_installed" in sys.modules,
        "writes": [vars(item).get("__setattr__") for item in (type(sys), type, abc.ABCMeta)],
        "objects": [dict(vars(item)) for item in (reprlib.aRepr, logging.lastResort, exit)],
        "of objects": [
            vars(item).get("__setattr__")
            for item in (reprlib.Repr, decimal.Context, torch._ops.OpOverload)
        ],
        "prec": decimal.BasicContext.prec,
        "collected": gc.get_threshold(),
        "adapters": [list(sqlite3.adapters), list(sqlite3.converters)],
        "overloads": "__main__" in vars(typing)["_overload_registry"],
        "handlers": [len(vars(logging)["_handlerList"]), list(vars(logging)["_handlers"])],
        "sparse": torch.sparse.check_sparse_tensor_invariants.is_enabled(),
    }


@pytest.fixture
def one_handler() -> Iterator[None]:
    """Leave one handler to be closed, so that a program's own puts one in place of one."""
    handlers: list[Any] = vars(logging)["_handlerList"]
    others = handlers[1:]
    del handlers[1:]
    yield
    handlers.extend(others)


def test_a_list_that_has_another_last_item_has_changed() -> None:
    words, items, other = MemoryWords(), [object()], [object()]
    words.follow([items, other])
    words.follow_end(items)
    items[0] = object()
    assert words.changed() == [0]
    assert words.changed() == []
    other.append(object())
    items.clear()
    assert words.changed() == [0, 1]
    words.forget(0)
    items[:] = [object()]
    assert words.changed() == []


def test_a_set_that_something_has_left_has_changed() -> None:
    words, members, items = MemoryWords(), {"a"}, [object()]
    words.follow([members, items])
    members.remove("a")
    assert words.changed() == [0]
    items.append(object())
    assert words.changed() == [1]
    words.forget(0)
    members.update("ab")
    assert words.changed() == []


def test_what_is_exchanged_as_a_whole_is_not_compared_by_its_parts() -> None:
    from torch.distributed.fsdp import _debug_utils

    containers = registries_of(_debug_utils).containers
    profiler = _debug_utils.SimpleProfiler
    assert not any(item is profiler.profiling or item is profiler.results for item in containers)


@pytest.mark.adr("0226-D1")
@pytest.mark.adr("0226-D2")
@pytest.mark.adr("0226-D3")
@pytest.mark.adr("0226-D6")
def test_each_kind_of_state_is_a_ranks_own_as_in_real_processes_and_gone_afterwards(
    tmp_path: Path, one_handler: None
) -> None:
    before = state()
    ours, theirs = both(tmp_path, "assigned.py", nprocs=2)
    assert len(theirs[0]) >= 131
    assert not [their for their in theirs[0].values() if "Error" in str(their)]
    for rank in range(2):
        differing = {k: (ours[rank][k], v) for k, v in theirs[rank].items() if ours[rank][k] != v}
        assert not differing
    assert theirs[0] != theirs[1]
    assert state() == before


@pytest.mark.adr("0226-D4")
def test_a_library_that_all_share_takes_nothing_of_the_rank_that_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "a_taking_library"
    package.mkdir(parents=True)
    # Which makes it a package that all ranks share.
    (package / f"_native{EXTENSION_SUFFIXES[0]}").touch()
    (package / "__init__.py").write_text(
        "from torch.nn.functional import relu\nimport numpy as np\nkind = np.float_of_old\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    try:
        simulated(PROGRAM, "library_that_takes_a_function", tmp_path, nprocs=2)
    finally:
        sys.modules.pop("a_taking_library")
    assert seen(tmp_path) == [[1.0, "float", 100.0], [1.0, "float", 101.0]]


@pytest.mark.adr("0226-D2")
def test_what_a_library_registers_when_it_is_first_asked_all_have_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two tables of which one tells whether the other is filled."""
    package = tmp_path / "site-packages" / "a_filling_library"
    package.mkdir(parents=True)
    (package / f"_native{EXTENSION_SUFFIXES[0]}").touch()
    (package / "__init__.py").write_text(
        "class Maker: pass\n"
        "makers, passes = {}, {}\n"
        "def known():\n"
        "    if not makers:\n"
        "        makers['cpu'], passes['cpu'] = Maker(), None\n"
        "    return list(passes)\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    try:
        simulated(PROGRAM, "library_that_fills_its_tables", tmp_path, nprocs=2)
    finally:
        sys.modules.pop("a_filling_library")
    assert seen(tmp_path) == [["cpu"], ["cpu"]]


@pytest.mark.adr("0226-D5")
def test_what_runs_ranks_calls_none_of_their_functions(tmp_path: Path) -> None:
    simulated(PROGRAM, "functions_that_the_simulation_calls", tmp_path, nprocs=2)
    assert seen(tmp_path) == [[True], [True]]


@pytest.mark.adr("0226-D5")
def test_between_turns_only_what_others_could_ask_for_is_hidden() -> None:
    """As vLLM's loggers have functions of their own; one may stand for the class's, too."""
    logger, owners = logging.Logger("an engine's"), Owners(set())
    process = SimpleNamespace(assigned={})
    for name in ("info_once", "info"):
        setattr(logger, name, print)
        process.assigned[name] = OwnAttribute(logger, name, MISSING, print, True, owners)
    assignments: Any = object.__new__(Assignments)
    assignments._shown, assignments._is_paused, assignments._words = process, False, MemoryWords()
    assignments.pause()
    assert logger.info_once is print  # type: ignore[attr-defined]
    assert logger.info is not print
    assignments.load(process)
    assert logger.info is print
    process.registered, assignments._tables = {}, []
    assignments._leave()
    assert "info_once" not in vars(logger)


def test_workers_begin_with_what_their_parent_has_and_keep_their_own(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, PROGRAM, "workers_of_a_loader", nprocs=1)
    assert ours == theirs == [[[[[6, 20], [6, 20]], [[6, 21], [6, 21]]], False, 5]]


@pytest.mark.parametrize("is_last", [False, True])
def test_spawned_processes_begin_without_what_their_parent_has(
    is_last: bool, tmp_path: Path
) -> None:
    simulated(PROGRAM, "spawned_ones_begin_anew", tmp_path, is_last=is_last)
    assert seen(tmp_path) == [[False, True, True]] * 2


@pytest.mark.adr("0266-D1")
def test_one_process_of_a_last_run_pays_nothing_for_a_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[frozenset[str]] = []
    monkeypatch.setattr(Assignments, "_expect", lambda self, names: searched.append(names))
    program = tmp_path / "program.py"
    program.write_text("import json\njson._default_encoder.sort_keys = False\n")
    for count, (is_last, nprocs) in enumerate(((True, 1), (False, 1), (True, 2))):
        simulated(program, nprocs=nprocs, is_last=is_last)
        assert len(searched) == count, (is_last, nprocs)
    assert all({"json", "_default_encoder"} <= names for names in searched)


def test_assignments_that_fail_do_so_in_pythons_words(capfd: pytest.CaptureFixture[str]) -> None:
    simulated(PROGRAM, "several_errors", nprocs=2)
    words = [
        "TypeError: cannot set 'kb' attribute of immutable type 'int'",
        "AttributeError: 'module' object has no attribute 'kb'",
        "AttributeError: type object 'Dataset' has no attribute 'kb'",
        "AttributeError: readonly attribute",
    ]
    printed = capfd.readouterr().out.splitlines()
    assert sorted(printed) == sorted(2 * words)


@pytest.mark.parametrize("before", ["eager", "inductor"])
def test_what_a_run_replaces_in_tables_while_a_process_runs_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    from torch._subclasses import fake_tensor

    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "torch._dynamo.explain\n"
        "torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2, device='cuda'))\n"
    )
    with monkeypatch.context() as patch:
        patch.setenv("KERNBENCH_COMPILE", before)
        simulated(program)
    simulated(program)
    answers = fake_tensor._DISPATCH_META_HANDLERS
    assert {answer.__module__ for answer in answers.values()} == {fake_tensor.__name__}


def test_an_interrupt_waits_from_the_first_that_is_shown_again_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close, untimely = Assignments.close, []

    def closing(assignments: Assignments) -> None:
        untimely.append(is_untimely(sys._getframe()))
        close(assignments)

    monkeypatch.setattr(Assignments, "close", closing)
    simulated(PROGRAM, "several_errors")
    assert untimely == [True]


class _Noting(io.TextIOBase):
    """A stream that notes what is printed."""


class _Plain:
    pass


def test_a_stream_of_whoever_runs_the_program_is_no_ranks_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library: Any = ModuleType("a_library_of_handlers")
    library.stream, library.plain = _Noting(), _Plain()
    monkeypatch.setitem(sys.modules, library.__name__, library)
    known = NamedObjects(Owners(set()), lambda kind: None, lambda *values: None)
    known.expect(frozenset((library.__name__, "stream", "plain")), {library.__name__: library})
    assert library.plain in known
    assert library.stream not in known


def test_what_holds_for_all_ranks_is_said_with_its_lines(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, time\nos.nice(0)\ntime.tzset()\n")
    said = {
        nprocs: [
            remark
            for make in simulated(program, nprocs=nprocs).run.remarks
            for remark in make()
            if "holds for all ranks" in remark
        ]
        for nprocs in (1, 2)
    }
    assert said[1] == []
    assert len(said[2]) == 1
    assert "os.nice() at program.py:2, time.tzset() at program.py:3" in said[2][0]


LIBRARY = """
import functools

class Manager:
    level = -1

_manager, _table, _by_name = Manager(), {}, {"a": Manager()}

def manager():
    return _manager

def table():
    return _table

def named(name):
    return _by_name[name]

def _of_closure():
    inner = Manager()
    def get():
        return inner
    return get

inside = _of_closure()

@functools.cache
def made_once():
    return Manager()
"""
USER = """
import json, os, sys
from pathlib import Path
import torch.distributed as dist
import a_giving_library
from a_giving_library import made_once as once

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
a_giving_library.manager().level = rank
a_giving_library.table()["rank"] = rank
a_giving_library.named("a").level = rank
a_giving_library.inside().level = rank
mine = dict(a_giving_library.table())
mine["rank"] = 5
shared = once()
shared.level = rank
dist.barrier()
seen = [a_giving_library.manager().level, a_giving_library.table()["rank"]]
seen += [a_giving_library.named("a").level, a_giving_library.inside().level]
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(seen))
"""


@pytest.mark.adr("0266-D2")
def test_what_a_function_gives_out_is_a_ranks_own_or_said_by_name_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "a_giving_library"
    package.mkdir(parents=True)
    (package / f"_native{EXTENSION_SUFFIXES[0]}").touch()
    (package / "__init__.py").write_text(LIBRARY)
    program = tmp_path / "program.py"
    program.write_text(USER)
    monkeypatch.syspath_prepend(str(package.parent))
    try:
        run = simulated(program, tmp_path, nprocs=2).run
    finally:
        sys.modules.pop("a_giving_library")
    assert seen(tmp_path) == [[0] * 4, [1] * 4]
    said = [text for make in run.remarks for text in make() if "one object for all" in text]
    assert len(said) == 1
    assert "a_giving_library.made_once() (program.py:17)" in said[0]
    assert "table" not in said[0]


@pytest.mark.adr("0257-D1")
def test_what_a_rank_changes_in_containers_is_its_own(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, "assigned_directly.py", nprocs=2)
    assert ours == theirs
    assert not [name for name in theirs[0] if theirs[0][name] == theirs[1][name]]


SETS_IN_C = """
import ctypes
import multiprocessing
import torch.distributed as dist
dist.init_process_group("gloo")
ctypes.pythonapi.Py_GetVersion.restype = ctypes.c_char_p
multiprocessing.get_context("spawn").of_rank = dist.get_rank()
dist.barrier()
"""


@pytest.mark.adr("0257-D2")
def test_what_is_set_in_c_is_said_by_name_and_line(tmp_path: Path) -> None:
    import multiprocessing

    program = tmp_path / "sets.py"
    program.write_text(SETS_IN_C)
    before = ctypes.pythonapi.Py_GetVersion.restype
    try:
        run = simulated(program, nprocs=2).run
    finally:
        ctypes.pythonapi.Py_GetVersion.restype = before
        vars(multiprocessing.get_context("spawn")).pop("of_rank", None)
    said = " ".join(text for make in run.remarks for text in make())
    assert "an assignment to ctypes.pythonapi.Py_GetVersion at sets.py:6 sets holds for all" in said
    assert "multiprocessing.get_context() (sets.py:7) returns, which is one object" in said
