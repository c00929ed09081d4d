"""What a run installs in PyTorch and Python, and that only what has a reason has an order."""

from __future__ import annotations

import importlib
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kernbench import torch_bridge
from kernbench.torch_bridge.base.patches import Installation, Patches, install_all
from tests.tiers import of_campaigns
from tests.torch_bridge.running import simulated

pytest.importorskip("torch")

programs = importlib.import_module("kernbench.torch_bridge.front.programs")
device = importlib.import_module("kernbench.torch_bridge.device.install")
BRIDGE = Path(torch_bridge.__file__).parent

Place = tuple[int, str]
"""An owner, and the name of an attribute of it."""


class Replaced:
    """Notes which rows of the tables replace which attributes, and by what at last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[Place, list[str]] = {}
        self.values: dict[Place, str] = {}
        self.names: dict[Place, str] = {}
        self.tables: list[Sequence[Installation]] = []
        self._open: list[str] = []
        self._order: Callable[[Sequence[Installation]], Sequence[Installation]] = list
        real, of_device, put = programs.installations, device.INSTALLATIONS, Patches.set

        def note(patches: Patches, owner: Any, name: str, value: Any) -> Any:
            if self._open:
                place = (id(owner), name)
                self.rows.setdefault(place, []).append(self._open[-1])
                self.names[place] = f"{getattr(owner, '__name__', owner)}.{name}"
                self.values[place] = getattr(value, "__qualname__", type(value).__name__)
            return put(patches, owner, name, value)

        def watched(table: Sequence[Installation]) -> list[Installation]:
            self.tables.append(table)
            return [replace(row, install=self._noting(row)) for row in self._order(table)]

        monkeypatch.setattr(Patches, "set", note)
        monkeypatch.setattr(device, "INSTALLATIONS", _Each(lambda: watched(of_device)))
        monkeypatch.setattr(programs, "installations", lambda argument: watched(real(argument)))

    def _noting(self, row: Installation) -> Callable[[Patches], None]:
        def install(patches: Patches) -> None:
            self._open.append(row.name)
            row.install(patches)
            self._open.pop()

        return install

    def shuffle(self, seed: int) -> None:
        """Install in another order from now on, of those that the table allows."""
        self._order = lambda table: shuffled(table, random.Random(seed))
        self.rows, self.values = {}, {}

    def without_order(self) -> list[tuple[str, ...]]:
        """Return what is replaced by several rows of which no reason says who comes first."""
        after = {row.name: set(row.after) for table in self.tables for row in table}
        return [
            (self.names[place], *pair)
            for place, rows in self.rows.items()
            for pair in pairwise(dict.fromkeys(rows))
            if pair[0] not in _all_before(pair[1], after)
        ]


class _Each:
    """A table that is asked for anew each time that a run goes through it."""

    def __init__(self, make: Callable[[], list[Installation]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Installation]:
        return iter(self._make())


def _all_before(name: str, after: dict[str, set[str]]) -> set[str]:
    result = set(after[name])
    for item in after[name]:
        result |= _all_before(item, after)
    return result


def shuffled(table: Sequence[Installation], rng: random.Random) -> list[Installation]:
    """Return the rows in a random order of those that their reasons allow."""
    left = {row.name: row for row in table}
    order = []
    while left:
        row = rng.choice([item for item in left.values() if not item.after.keys() & left.keys()])
        order.append(left.pop(row.name))
    return order


def test_rows_that_replace_the_same_have_an_order_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replaced = Replaced(monkeypatch)
    # Another test of this process may have imported it: then nothing stands in for it.
    has_compiler = "torch._dynamo" in sys.modules
    simulated("installed.py", tmp_path, nprocs=2, data=False)
    assert replaced.without_order() == []
    # The check finds what the table does not say.
    replaced.tables = [[replace(row, after={}) for row in table] for table in replaced.tables]
    order = {item[1:] for item in replaced.without_order()}
    assert ("replaced.attention", "replaced.context_parallel") in order
    assert (("compiler", "replaced.stand_ins") in order) is not has_compiler


def test_what_a_build_for_cuda_has_too_is_put_there_after_that_is_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replaced = Replaced(monkeypatch)
    program = tmp_path / "program.py"
    program.write_text("")
    simulated(program)
    put = {
        row
        for place, name in replaced.names.items()
        for row in replaced.rows[place]
        if name.startswith("torch._C._cuda_")
    }
    assert {"module", "replaced.library_calls"} <= put
    after = {row.name: row.after.keys() for table in replaced.tables for row in table}
    assert [row for row in put if not after[row] & {"cuda_builds", "device"}] == []


@pytest.mark.parametrize(("data", "num_orders"), [of_campaigns(True, 2), (False, 1)])
def test_rows_that_no_reason_orders_may_come_in_any_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: bool, num_orders: int
) -> None:
    torch = pytest.importorskip("torch")
    replaced = Replaced(monkeypatch)

    def run(folder: Path) -> tuple[Any, ...]:
        folder.mkdir()
        run = simulated("installed.py", folder, nprocs=2, data=data)
        saved = [torch.load(path, weights_only=False) for path in sorted(folder.iterdir())]
        assert len(saved) == 2
        log = [(instance.template.name, instance.ends_ps) for instance in run.op_log.instances]
        return saved, log, replaced.values

    run(tmp_path / "first")  # What it imports is there from now on, and replaced.
    replaced.values, replaced.tables = {}, []
    expected = run(tmp_path / "table")
    orders = {tuple(row.name for row in replaced.tables[0])}
    for seed in range(num_orders):
        replaced.shuffle(seed)
        orders.add(tuple(row.name for row in shuffled(replaced.tables[0], random.Random(seed))))
        assert run(tmp_path / f"{seed}") == expected
    assert len(orders) == num_orders + 1


def test_a_row_before_what_it_needs_is_found() -> None:
    first = Installation("first", "", lambda patches: None)
    second = Installation("second", "", lambda patches: None, after={"first": "for a reason"})
    install_all(Patches(), [first, second])
    with pytest.raises(AssertionError, match="second is listed before first"):
        install_all(Patches(), [second, first])
    with pytest.raises(AssertionError, match="first is listed twice"):
        install_all(Patches(), [first, first])


def test_every_module_that_installs_is_in_a_table_or_part_of_one_that_is() -> None:
    sources = {path: path.read_text() for path in BRIDGE.rglob("*.py")}
    defines = re.compile(r"^def install\(", re.MULTILINE)
    paths = {path for path, text in sources.items() if defines.search(text)}
    assert len(paths) > 30
    for path in paths:
        name = path.parent.name if path.stem in ("install", "__init__") else path.stem
        # What a package shows as its own is installed by the package's name.
        if f"{path.stem} import install" in (path.parent / "__init__.py").read_text():
            name = path.parent.name
        called = {f"{name}.install"}
        users = [other for other, text in sources.items() if any(item in text for item in called)]
        assert [other for other in users if other != path], f"nobody installs {path}"
