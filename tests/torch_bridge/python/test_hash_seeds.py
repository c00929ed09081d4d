"""Ranks with hash seeds of their own: orders of sets of strings differ as between processes."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

pytest.importorskip("torch")

from kernbench.cli.app import app
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.python.hash_seeds import (
    OwnFrozenSet,
    OwnSet,
    hash_of,
    install,
    seed_of,
)
from tests.tiers import daily
from tests.torch_bridge.running import PROGRAMS, simulated

PROGRAM = "hash_seeds.py"
OF_NO_SEED = {
    *("tuples of numbers", "numbers", "hash of a number", "sorted", "a dictionary", "in", "equal"),
}


def results_of(folder: Path, *names: str) -> list[Any]:
    return [json.loads((folder / f"{name}.json").read_text()) for name in names or ("0", "1")]


def ran(case: str, folder: Path, *args: str, nprocs: int = 2, seeds: bool = True) -> list[str]:
    context = simulated(PROGRAM, case, folder, *args, nprocs=nprocs, hash_seeds=seeds)
    return [item for make in context.run.remarks for item in make()]


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    return {name for name in first if first[name] != second[name]}


def real_results(folder: Path, seeds: tuple[str, str]) -> list[dict[str, Any]]:
    for rank, seed in enumerate(seeds):
        subprocess.run(
            [sys.executable, PROGRAMS / PROGRAM, "orders", folder],
            env=os.environ | {"RANK": str(rank), "PYTHONHASHSEED": seed},
            check=True,
        )
    return results_of(folder)


@pytest.mark.adr("0227-D1")
def test_what_differs_between_processes_differs_between_ranks(tmp_path: Path) -> None:
    real = real_results(tmp_path, ("1", "2"))
    remarks = ran("orders", tmp_path)
    ranks = results_of(tmp_path)
    assert differing(*ranks) == differing(*real) == ranks[0].keys() - OF_NO_SEED
    assert any("(--hash-seeds); what" in remark for remark in remarks)
    ran("orders", tmp_path)
    assert results_of(tmp_path) == ranks


@pytest.mark.adr("0227-D2")
def test_one_seed_for_all_is_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not differing(*real_results(tmp_path, ("5", "5")))
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    remarks = ran("orders", tmp_path)
    of_five = results_of(tmp_path)
    assert not differing(*of_five)
    assert any("all were alike, as PYTHONHASHSEED is set" in remark for remark in remarks)
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    remarks = ran("orders", tmp_path)
    assert differing(*results_of(tmp_path))
    assert not any("all were alike" in remark for remark in remarks)


def test_without_the_option_ranks_have_one_order(tmp_path: Path) -> None:
    remarks = ran("orders", tmp_path, seeds=False)
    assert not differing(*results_of(tmp_path))
    assert not any("hash-seeds" in remark for remark in remarks)


@pytest.mark.adr("0227-D3")
@pytest.mark.parametrize(
    "case",
    daily(
        "as_python_has_them",
        "host_time",
        of=("as_python_has_them", "compiled", "workers", "host_time"),
    ),
)
def test_all_else_is_as_with_pythons_sets(tmp_path: Path, case: str) -> None:
    ran(case, tmp_path)
    with_seeds = results_of(tmp_path)
    ran(case, tmp_path, seeds=False)
    if case == "host_time":
        assert results_of(tmp_path) == with_seeds


@pytest.mark.adr("0227-D2")
def test_a_program_seeds_the_processes_that_it_starts(tmp_path: Path) -> None:
    ran("spawned", tmp_path, nprocs=1)
    first, second, main = results_of(tmp_path, "0", "1", "main")
    assert first != second != main != first
    ran("spawned", tmp_path, "7", nprocs=1)
    first, second, new_main = results_of(tmp_path, "0", "1", "main")
    assert first == second != main == new_main


def test_collectives_in_the_order_of_a_set_reduce_unlike_tensors(tmp_path: Path) -> None:
    right = [2.0 * number for number in range(20)]
    remarks = ran("reductions", tmp_path)
    assert results_of(tmp_path)[0] != right
    assert any("ranks have an order each" in remark for remark in remarks)
    remarks = ran("reductions", tmp_path, seeds=False)
    assert results_of(tmp_path) == [right, right]
    assert any("--hash-seeds shows it" in remark for remark in remarks)


def test_errors_name_the_lines_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="'set' object has no attribute 'missing'") as error:
        ran("raises", tmp_path, nprocs=1)
    text = (PROGRAMS / PROGRAM).read_text().splitlines()
    lines = [
        item.lineno for item in traceback.extract_tb(error.tb) if item.filename.endswith(PROGRAM)
    ]
    assert text[(lines[-1] or 0) - 1].strip().startswith("({1, 2} - names).missing,")


@contextmanager
def seeded(seed: str) -> Iterator[None]:
    patches = Patches()
    patches.set(HERE, "process", SimpleNamespace(hash_seed=seed_of({}, seed)))
    install(patches)
    try:
        yield
    finally:
        patches.close()


TEXT = st.one_of(st.text(max_size=3), st.binary(max_size=3))
VALUES = st.lists(
    st.one_of(TEXT, st.integers(-3, 30), st.none(), st.tuples(TEXT, st.integers(0, 2))),
    max_size=12,
)
OPERATORS = ["__and__", "__or__", "__sub__", "__xor__"]
METHODS = ["union", "intersection", "difference", "symmetric_difference"]
CHANGES = ["update", "intersection_update", "difference_update", "symmetric_difference_update"]
TESTS = ["__eq__", "__ne__", "__le__", "__lt__", "__ge__", "__gt__", "isdisjoint"]


@pytest.mark.adr("0227-D3")
@given(VALUES, VALUES, st.sampled_from([(OwnSet, set), (OwnFrozenSet, frozenset)]), st.text())
def test_sets_are_pythons_in_all_but_order(
    values: list[Any], others: list[Any], kinds: tuple[Any, Any], seed: str
) -> None:
    kind, plain = kinds
    with seeded(seed):
        own, of_python = kind(values), plain(values)
        assert own == of_python
        assert of_python == own
        assert len(own) == len(of_python)
        assert isinstance(of_python, kind)
        assert type(own) in (plain,)
        listed = list(own)
        assert len(listed) == len(of_python)
        assert set(listed) == of_python
        assert listed == list(own) == [*iter(own)]
        assert eval(repr(own)) == of_python
        assert all(value in own for value in values)
        for other in (kind(others), plain(others), set(others), frozenset(others)):
            for name in TESTS:
                assert getattr(own, name)(other) == getattr(of_python, name)(plain(other))
            for name in OPERATORS + METHODS:
                result = getattr(own, name)(other)
                assert result == getattr(of_python, name)(other)
                assert type(result) is kind
            assert (other - own) == (other - of_python)
            assert (other | own) == (other | of_python)
        for copied in (copy.copy(own), copy.deepcopy(own), own.copy()):
            assert type(copied) is kind
            assert copied == of_python
        sent = pickle.loads(pickle.dumps(own))
        assert sent == of_python
        assert type(sent) is plain
        if kind is OwnFrozenSet:
            assert hash(own) == hash(of_python)
            return
        for name in CHANGES:
            changed, expected = kind(values), plain(values)
            getattr(changed, name)(others)
            getattr(expected, name)(others)
            assert changed == expected
        popped = [own.pop() for _ in range(len(own))]
        assert set(popped) == of_python
        assert not own
        assert popped == listed


@given(st.sets(st.one_of(st.text(min_size=1), st.binary(min_size=1)), max_size=12), st.randoms())
def test_an_order_follows_from_the_seed_and_the_elements_alone(names: set[Any], order: Any) -> None:
    shuffled = list(names)
    order.shuffle(shuffled)
    with seeded("a"):
        assert list(OwnSet(names)) == list(OwnSet(shuffled)) == list(OwnFrozenSet(shuffled))
        assert hash_of(tuple(shuffled)) == hash_of(tuple(shuffled))
        assert hash_of(frozenset(names)) == hash_of(OwnFrozenSet(shuffled))


def test_pop_takes_what_was_added_since_and_not_what_was_removed() -> None:
    with seeded("a"):
        names = OwnSet(f"{number}" for number in range(9))
        first = names.pop()
        names -= {f"{number}" for number in range(5)}
        names.add("new")
        rest = [names.pop() for _ in range(len(names))]
    assert sorted(rest) == sorted({"5", "6", "7", "8", "new"} - {first})


def test_folded_ranks_have_no_seeds_of_their_own() -> None:
    options = ["torchrun", "--nproc-per-node", "2", "--no-data", "--fold", "--hash-seeds"]
    result = CliRunner().invoke(app, [*options, str(PROGRAMS / PROGRAM), "orders"])
    assert result.exit_code == 2
    assert "--fold runs one rank for all that do the same, but with --hash-seeds" in result.output
