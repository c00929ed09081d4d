"""What a run replaces in other libraries is put back."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernbench.interrupts import is_untimely
from kernbench.runtime_api import SpawnException
from kernbench.torch_bridge.base.patches import Patches
from tests.torch_bridge.running import simulated


class Owner:
    inherited = "base"


class Child(Owner):
    own = "child"


@pytest.mark.adr("0060-D4")
def test_closing_puts_back_own_attributes_and_shows_inherited_ones_again() -> None:
    patches = Patches()
    assert patches.set(Child, "own", 1) == "child"
    assert patches.set(Child, "inherited", 2) == "base"
    patches.set(Child, "new", 3)
    assert (Child.own, Child.inherited, Child.new) == (1, 2, 3)  # type: ignore[attr-defined, comparison-overlap]
    patches.close()
    assert Child.own == "child"
    assert "inherited" not in vars(Child)
    assert not hasattr(Child, "new")


def test_what_a_function_keeps_outside_of_its_dict_is_put_back() -> None:
    def doubled(number: int = 1) -> int:
        return 2 * number

    patches = Patches()
    patches.set(doubled, "__defaults__", (5,))
    assert doubled() == 10
    patches.close()
    assert doubled() == 2


class Shape:
    sides = 3

    def of_object(self, *, more: int) -> int:
        return self.sides + more

    @classmethod
    def of_class(cls, *, more: int) -> int:
        return cls.sides + more

    @staticmethod
    def of_none(*, more: int) -> int:
        return 3 + more


@pytest.mark.parametrize("name", ["of_object", "of_class", "of_none"])
def test_what_wraps_a_function_gets_it_and_is_called_as_it_was(name: str) -> None:
    def around(original: Any, factor: int, *args: Any, **kwargs: Any) -> int:
        result: int = factor * original(*args, **kwargs)
        return result

    before = vars(Shape)[name]
    patches = Patches()
    patches.wrap(Shape, name, around, 10)
    assert getattr(Shape(), name)(more=1) == 40
    assert getattr(Shape, name).__qualname__ == f"Shape.{name}"
    patches.close()
    assert vars(Shape)[name] is before


def test_an_interrupt_waits_until_everything_is_restored() -> None:
    owner, untimely = ModuleType("owner"), []
    patches = Patches()
    patches.set(owner, "name", 1)
    patches.on_close(lambda: untimely.append(is_untimely(sys._getframe())))
    assert not is_untimely(sys._getframe())
    patches.close()
    assert untimely == [True]
    assert not hasattr(owner, "name")


def snapshot(modules: list[Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for owner in modules:
        for name, value in vars(owner).items():
            # Modules that are imported later appear as attributes of their packages.
            if type(value) is not ModuleType and not name.startswith("__"):
                result[f"{owner.__name__}.{name}"] = value
    return result


@pytest.mark.adr("0060-D4")
@pytest.mark.parametrize(
    ("nprocs", "source", "error"),
    [
        (1, "pass", None),
        (1, "raise ValueError('on purpose')", ValueError),
        (2, "pass", None),
        (2, "raise ValueError('on purpose')", SpawnException),
        (2, "import sys; sys.exit(3)", SpawnException),
    ],
)
def test_a_run_leaves_torch_and_python_as_they_were(
    tmp_path: Path, nprocs: int, source: str, error: type[Exception] | None
) -> None:
    torch = pytest.importorskip("torch")
    c10d = pytest.importorskip("torch.distributed.distributed_c10d")
    spawn = pytest.importorskip("torch.multiprocessing.spawn")
    simulated(_program(tmp_path, "import torch.distributed.tensor"))  # imports what it imports
    watched = [
        torch, torch.Tensor, torch.cuda, torch.accelerator, torch.cuda.random, torch.cuda.nccl,
        torch.multiprocessing, spawn, torch.distributed, c10d, torch.version,
        torch.utils.data.DataLoader,
    ]  # fmt: skip
    before = snapshot(watched)
    environ, argv, path, main = dict(os.environ), sys.argv, sys.path, sys.modules["__main__"]
    type_of_environ = type(os.environ)
    rng = torch.get_rng_state()
    program = _program(tmp_path, f"import os; os.environ['SET'] = '1'\n{source}")
    with nullcontext() if error is None else pytest.raises(error):
        simulated(program, nprocs=nprocs)
    after = snapshot(watched)
    assert [name for name in before if after.get(name) is not before[name]] == []
    assert dict(os.environ) == environ
    assert type(os.environ) is type_of_environ
    assert (sys.argv, sys.path, sys.modules["__main__"]) == (argv, path, main)
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.zeros(1).device.type == "cpu"


def _program(folder: Path, source: str) -> Path:
    path = folder / "program.py"
    path.write_text(source)
    return path
