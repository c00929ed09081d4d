"""Tasks: what a candidate is judged against, in the forms that benchmarks of kernels have."""

from __future__ import annotations

import ast
import copy
import importlib.util
import inspect
import math
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils._pytree import register_pytree_node, tree_flatten, tree_map, tree_unflatten

from kernbench.errors import UnsupportedOpError, UsageError
from kernbench.inputs import parse_yaml, read_text
from kernbench.judging.values import BESIDES, on_device

_MOST_SOURCE_BYTES = 1 << 20
_LEAST_SCALED = 16
"""Numbers of a task from here on are sizes; smaller ones are those of windows, strides, groups."""
SMALL_ELEMENTS = 1 << 15
"""The most elements of inputs at the size that others are beside."""
_PRIMES = (19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103)
_MANY_COMBINED = 1 << 21
"""The most that the numbers of a size of the judge's own multiply to, if they can be smaller."""
_MOST_INPUTS = 3
_MANY_ELEMENTS = 1 << 20
MOST_ELEMENTS = 1 << 22
"""The most elements of inputs at which records are executed with values."""
_SEVERAL = 3
"""Of so many sizes it is no chance what their numbers have in common."""
MOST_RANKS = 16
Sizes = dict[str, int]


@dataclass
class TaskProblem:
    """One size of a task, built: what the reference is and what both are called with."""

    reference: Callable[..., Any]
    inputs: tuple[Any, ...]
    """What both are called with; tensors anywhere inside, on the simulated device."""
    init: tuple[Any, ...] = ()
    """What the candidate's class is made of."""
    module: Any = None
    """The reference, where it is a module of PyTorch with parameters."""


@dataclass
class TaskSize:
    """A size of a task: its name, and what it sets."""

    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    is_stated: bool = False
    """Whether the task states it itself, so that no candidate may refuse it."""


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors anywhere inside of a value, in order."""
    return [item for item in tree_flatten(tree)[0] if isinstance(item, Tensor)]


def with_tensors(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the value with other tensors in the places of its own."""
    leaves, form = tree_flatten(tree)
    rest = iter(tensors)
    return tree_unflatten([next(rest) if isinstance(e, Tensor) else e for e in leaves], form)


def copied(tree: Any) -> Any:
    """Return a value that a call may change: copies of its tensors, and of what holds others."""
    return tree_map(lambda e: e.clone() if isinstance(e, Tensor) else copy.deepcopy(e), tree)


def opened(tree: Any, tensor: type = Tensor) -> Any:
    """Return a value; from then on what its objects have is a part of it, as of lists.

    ``tensor``: the type of that; objects that have none stay what they are.
    """
    for leaf in tree_flatten(tree)[0]:
        if hasattr(leaf, "__dict__") and not isinstance(leaf, (tensor, type)):
            parts = tree_flatten(opened(list(vars(leaf).values()), tensor))[0]
            if any(isinstance(part, tensor) for part in parts):
                register_pytree_node(type(leaf), _parts_of, partial(_put_together, type(leaf)))
    return tree


def _parts_of(value: Any) -> tuple[list[Any], list[str]]:
    return list(vars(value).values()), list(vars(value))


def _put_together(kind: Any, parts: Iterable[Any], names: Any) -> Any:
    value = kind.__new__(kind)
    vars(value).update(zip(names, parts, strict=True))
    return value


@contextmanager
def _without_values(device: str) -> Iterator[None]:
    """Have tensors made on a device that keeps no values, which nothing looks at."""
    is_validated = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with torch.device(device):
            yield
    finally:
        Distribution.set_default_validate_args(is_validated)


def load_module(path: Path, name: str) -> types.ModuleType:
    """Return the module of a file, executed; an empty one of that name that is there becomes it."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    there = sys.modules.get(name)
    if there is not None and there.__spec__ is None:
        vars(there).update(vars(module))
        module = there
    else:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class JudgedTask:
    """A task: sizes, and at each of them a reference and inputs."""

    form: ClassVar[str]
    candidate: ClassVar[str]
    """What a candidate defines."""
    has_weights: ClassVar[bool] = False
    """Whether its reference is a module, whose weights count, too."""
    has_room: ClassVar[bool] = False
    """Whether inputs that the reference does not read are room for results, which alone count."""
    has_check: bool = False
    """Whether it says itself which results are right."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ranks = 1
        self.tolerance: tuple[float, float] | None = None
        self.besides: frozenset[str] = frozenset()
        """Which of :data:`BESIDES` a candidate must get right, too."""
        self.module = self._load()
        self._counts: dict[str, int | None] = {}
        """Elements of inputs by size, as far as they are known."""
        self.num_results: dict[str, int] = {}
        """Elements of the reference's results by label of size, as far as they are known."""

    def _load(self) -> types.ModuleType:
        return load_module(self.path, "task_of_judge")

    def stated(self) -> list[TaskSize]:
        """Return the sizes that the task states, the one to be timed last."""
        raise NotImplementedError

    def inputs(self, size: TaskSize, seed: int) -> tuple[Any, ...]:
        """Return what both are called with at a size, tensors where the task makes them."""
        raise NotImplementedError

    def build(self, size: TaskSize, seed: int, rank: int = 0) -> TaskProblem:
        """Return the problem of a size, on one of the task's ranks."""
        raise NotImplementedError

    def hollow(self, size: TaskSize, seed: int, rank: int = 0) -> TaskProblem:
        """Return the same in a run without data, where memory of a device is no memory."""
        with _without_values("cuda"):
            return self.build(size, seed, rank)

    def accepts(self, inputs: tuple[Any, ...], results: Any) -> bool:
        """Return whether a task that has a check of its own takes results for right."""
        return False

    def num_elements(self, size: TaskSize) -> int | None:
        """Return how many elements the inputs of a size have; None: the task has no such size."""
        key = repr(size.settings)
        for device in ("meta", "cpu"):  # without memory, where a task names no device
            if key not in self._counts:
                with suppress(Exception), _without_values(device):
                    self._counts[key] = count_elements(self.inputs(size, 0))
        return self._counts.setdefault(key, None)

    def count(self, seed: int) -> None:
        """Count the elements of all sizes, as far as that succeeds here: others are tried again."""
        for size in [*self.beside(seed), *self.stated()]:
            self.num_elements(size)
        self._counts = {key: count for key, count in self._counts.items() if count is not None}

    def beside(self, seed: int) -> Iterator[TaskSize]:
        """Yield sizes around those that are stated, small ones first; a prime is drawn by seed."""
        base, names, units = self._scaled(self.units())
        if (self.num_elements(base) or 0) > MOST_ELEMENTS:
            base, names, units = self._scaled(dict.fromkeys(units, 1))
        if self.num_elements(base) is None:
            return
        if names:
            yield base
        prime = random.Random(seed).choice(_PRIMES)
        numbers = {name: (base.settings[name], units[name]) for name in names}
        for picked in (
            dict(units),
            {n: prime if unit < _LEAST_SCALED else 3 * unit for n, unit in units.items()},
            {name: value + unit for name, (value, unit) in numbers.items()},
            {name: value - unit for name, (value, unit) in numbers.items()},
        ):
            picked = {name: picked[name] for name in names if picked[name]}
            if len(picked) > 1:
                yield _with(base, picked)
            for name in names[:4]:
                if name in picked:
                    yield _with(base, {name: picked[name]})

    def _scaled(self, units: dict[str, int]) -> tuple[TaskSize, list[str], dict[str, int]]:
        """Return the timed size, made small by its larger numbers, with their names and units."""
        base = self.stated()[-1]
        numbers = {n: v for n, v in base.settings.items() if type(v) is int and units[n]}
        names = [name for name, value in numbers.items() if value >= _LEAST_SCALED]
        # Results may have an element for each combination, as an outer product's do.
        while (self.num_elements(base) or 0) > SMALL_ELEMENTS or (
            math.prod(base.settings[name] for name in names) > _MANY_COMBINED
        ):
            large = [n for n in names if base.settings[n] > max(_LEAST_SCALED, units[n])]
            if not large:
                break
            name = max(large, key=lambda item: base.settings[item])
            unit = units[name]
            base = _with(base, {name: max(base.settings[name] // 2 // unit, 1) * unit})
        return base, names, units

    def units(self) -> dict[str, int]:
        """Return what the numbers of sizes are multiples of; 0: the number is no size."""
        return dict.fromkeys(self.stated()[-1].settings, 1)

    def bind(self, module: types.ModuleType, problem: Mapping[str, Any]) -> Callable[..., Any]:
        """Return what is called of a candidate; runs in its own process.

        Raises:
            UsageError: The candidate does not define it.
        """
        result = getattr(module, self.candidate, None)
        if not callable(result):
            raise UsageError(
                f"the candidate defines no {self.candidate}, which a task of {self.form} calls"
            )
        return cast("Callable[..., Any]", result)


def _with(size: TaskSize, changed: Sizes) -> TaskSize:
    settings = {**size.settings, **changed}
    if all(name.startswith("#") for name in settings):
        return TaskSize(_label(list(settings.values())), settings)
    numbers = (f"{k}={v}" for k, v in settings.items() if type(v) is int)
    return TaskSize(", ".join(numbers), settings)


class OwnTask(JudgedTask):
    """Ours: ``reference(*inputs)``, ``inputs(size, seed)``, ``sizes``, ``tolerance``, ``ranks``."""

    form, candidate = "kernbench", "solve"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.tolerance = getattr(self.module, "tolerance", None)
        try:
            if self.tolerance is not None:
                relative, absolute = map(float, self.tolerance)
                self.tolerance = relative, absolute
        except (TypeError, ValueError):
            raise UsageError(
                f"{path.name}: tolerance must be (relative, absolute), but got {self.tolerance!r}"
            ) from None
        self.ranks = getattr(self.module, "ranks", 1)
        if type(self.ranks) is not int or not 1 <= self.ranks <= MOST_RANKS:
            raise UsageError(
                f"{path.name}: ranks must be an integer from 1 to {MOST_RANKS}, but got "
                f"{self.ranks!r}"
            )
        besides = getattr(self.module, "besides", ())
        self.besides = frozenset((besides,) if isinstance(besides, str) else besides)
        if unknown := self.besides - set(BESIDES):
            raise UsageError(
                f"{path.name}: besides must name some of {', '.join(BESIDES)}, but got "
                f"{', '.join(sorted(map(repr, unknown)))}"
            )
        sizes = getattr(self.module, "sizes", None)
        if not isinstance(sizes, (list, tuple)) or not sizes:
            raise UsageError(
                f"{path.name}: sizes must be a list of sizes, but got {sizes!r}; give those that "
                "inputs(size, seed) takes, the one to be timed last"
            )

    def stated(self) -> list[TaskSize]:
        return [
            TaskSize(_label(size), _settings(size), is_stated=True) for size in self.module.sizes
        ]

    def build(self, size: TaskSize, seed: int, rank: int = 0) -> TaskProblem:
        return TaskProblem(self.module.reference, _on_device(self.inputs(size, seed, rank)))

    def inputs(self, size: TaskSize, seed: int, rank: int = 0) -> tuple[Any, ...]:
        settings = size.settings
        names = sorted(name for name in settings if name.startswith("#"))
        asked: Any = tuple(settings[name] for name in names) if names else settings
        asked = asked[0] if names == ["#"] else asked
        ranked = (rank,) if self.ranks > 1 else ()
        inputs = self.module.inputs(asked, seed, *ranked)
        return tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)


def _settings(size: Any) -> dict[str, Any]:
    if isinstance(size, dict):
        return dict(size)
    if isinstance(size, (list, tuple)):
        return {f"#{index}": item for index, item in enumerate(size)}
    return {"#": size}


def _label(size: Any) -> str:
    if isinstance(size, dict):
        return ", ".join(f"{name}={value}" for name, value in size.items())
    return "x".join(map(str, size)) if isinstance(size, (list, tuple)) else str(size)


class KernelBenchTask(JudgedTask):
    """KernelBench's: ``Model``, ``get_inputs``, ``get_init_inputs``; against it ``ModelNew``."""

    form, candidate, has_weights = "KernelBench", "ModelNew", True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        names = {
            name
            for item in ("get_inputs", "get_init_inputs")
            for name in getattr(self.module, item).__code__.co_names
        }
        values = vars(self.module)
        self._derived: list[ast.stmt] = []
        """What is computed of sizes, as in ``shape = (channels, 1, 1)``."""
        for statement in ast.parse(read_text(self.path, _MOST_SOURCE_BYTES)).body:
            if isinstance(statement, ast.Assign):
                parts = ast.walk(statement.value)
                used = {node.id for node in parts if isinstance(node, ast.Name)}
                used = {name for name in used if type(values.get(name)) is int}
                if used:
                    self._derived.append(statement)
                    names |= used
                    names -= {ast.unparse(target) for target in statement.targets}
        self._sizes = {n: values[n] for n in sorted(names) if type(values.get(n)) is int}

    def _set(self, size: TaskSize) -> None:
        """Set the numbers of a size, and what is computed of them."""
        values = vars(self.module)
        values.update(size.settings)
        exec(compile(ast.Module(self._derived, []), str(self.path), "exec"), values)

    def stated(self) -> list[TaskSize]:
        return [TaskSize("as stated", dict(self._sizes), True)]

    def inputs(self, size: TaskSize, seed: int) -> tuple[Any, ...]:
        self._set(size)
        return tuple(self.module.get_inputs())

    def build(self, size: TaskSize, seed: int, rank: int = 0) -> TaskProblem:
        self._set(size)
        torch.manual_seed(seed)
        init = self.module.get_init_inputs()
        init = tuple(init) if isinstance(init, (list, tuple)) else (init,)
        torch.manual_seed(seed)
        if len(init) == 2 and init[0] == [] and isinstance(init[1], dict):
            model = self.module.Model(**init[1])
        else:
            model = self.module.Model(*init)
        model = model.cuda() if isinstance(model, torch.nn.Module) else model
        return TaskProblem(model, _on_device(self.inputs(size, seed)), init, model)

    def bind(self, module: types.ModuleType, problem: Mapping[str, Any]) -> Callable[..., Any]:
        cuda = super().bind(module, problem)(*problem["init"])
        state = problem["state"]
        if isinstance(cuda, torch.nn.Module):
            own = cuda.state_dict()
            if state and {n: t.shape for n, t in own.items()} == {
                n: t.shape for n, t in state.items()
            }:
                cuda.load_state_dict(state)
            cuda = cuda.cuda()
        return cuda  # type: ignore[no-any-return]


class GpuModeTask(JudgedTask):
    """GPU MODE's: a folder with ``task.yml`` and ``reference.py``; against it ``custom_kernel``."""

    form, candidate, has_room = "GPU MODE", "custom_kernel", True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for name in ("generate_input", "ref_kernel"):
            if not callable(getattr(self.module, name, None)):
                raise UsageError(
                    f"{self.module.__file__}: it defines no {name}, of which a task of {self.form} "
                    "is made; tasks with functions of their own cannot be judged"
                )
        self._check = getattr(self.module, "check_implementation", None)
        self.has_check = self._check is not None
        self._is_ranked = "rank" in inspect.signature(self.module.generate_input).parameters
        if self._is_ranked:
            ranks: set[Any] = {size.settings.get("world_size") for size in self.stated()}
            self.ranks = next(iter(ranks))
            if len(ranks) > 1 or self.ranks not in range(1, MOST_RANKS + 1):
                raise UsageError(
                    f"{self.path.name}: world_size must be one number from 1 to {MOST_RANKS} in "
                    f"all sizes, but got {', '.join(sorted(map(str, ranks)))}"
                )

    def _load(self) -> types.ModuleType:
        folder = self.path if self.path.is_dir() else self.path.parent
        self._described = parse_yaml(read_text(folder / "task.yml", _MOST_SOURCE_BYTES), "task.yml")
        if not isinstance(self._described, dict):
            raise UsageError("task.yml must have keys such as tests and files")
        for item in self._described.get("files") or ():
            source = folder / str(item.get("source", ""))
            name = str(item.get("name", "")).removesuffix(".py")
            if name in ("task", "utils"):
                load_module(source, name)
        return load_module(folder / "reference.py", "reference")

    def stated(self) -> list[TaskSize]:
        """The tests, and of the benchmarks the first."""
        described = [*(self._described.get("tests") or ())]
        described += (self._described.get("benchmarks") or [])[:1]
        settings = [{k: v for k, v in e.items() if k != "seed"} for e in described]
        task_sizes = [TaskSize(_label(size), size, True) for size in settings]
        if not task_sizes:
            raise UsageError("task.yml states no sizes: it needs tests, each with its settings")
        return task_sizes

    def units(self) -> dict[str, int]:
        """Return the largest numbers that all stated sizes are multiples of, if they are several.

        Candidates may count on it. A number that all agree in is part of the problem.
        """
        units = super().units()
        sizes = [*(self._described.get("tests") or ()), *(self._described.get("benchmarks") or ())]
        for name in units if len(sizes) >= _SEVERAL else ():
            values = {size[name] for size in sizes if type(size.get(name)) is int}
            units[name] = math.gcd(*values) if len(values) > 1 else 0
        return units

    def accepts(self, inputs: tuple[Any, ...], results: Any) -> bool:
        """Return whether the task's ``check_implementation`` takes results for right."""
        if self._check is None:
            return False
        try:
            said = self._check(*copied(inputs), results)
        except UnsupportedOpError:
            raise
        except Exception:  # of results that are not what it looks for
            return False
        return bool(said[0] if isinstance(said, tuple) else not said)

    def inputs(self, size: TaskSize, seed: int, rank: int = 0) -> tuple[Any, ...]:
        ranked = {"rank": rank} if self._is_ranked else {}
        return (opened(self.module.generate_input(**size.settings, seed=seed, **ranked)),)

    def build(self, size: TaskSize, seed: int, rank: int = 0) -> TaskProblem:
        return TaskProblem(self.module.ref_kernel, _on_device(self.inputs(size, seed, rank)))


class _EnoughInputsError(Exception):
    pass


class _FirstInputs(list[Any]):
    """The first inputs; the last of them is a later one where they are of one block each."""

    def append(self, value: Any) -> None:
        count = count_elements(value)
        if len(self) < _MOST_INPUTS:
            super().append(value)
        elif count <= SMALL_ELEMENTS:
            self[-1] = value
        if count > _MANY_ELEMENTS or (len(self) == _MOST_INPUTS and count >= SMALL_ELEMENTS):
            raise _EnoughInputsError


class _FewInputs:
    """The base of TritonBench's metrics: of inputs, which grow to gigabytes, it takes the first."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.dtype = settings.get("dtype")
        self.input_tensors: list[Any] = []

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _FirstInputs() if name == "input_tensors" else value)


class TritonBenchTask(JudgedTask):
    """TritonBench's: a ``performance_metrics``, with the golden kernel as the reference."""

    form, candidate = "TritonBench", "performance_metrics"

    def _load(self) -> types.ModuleType:
        self._op = self.path.stem.removesuffix("_perf")
        golden = next(
            (
                text
                for parent in self.path.resolve().parents
                if (text := parent / "data" / "TritonBench_G_v1" / f"{self._op}.py").is_file()
            ),
            None,
        )
        if golden is None:
            raise UsageError(
                f"{self.path.name}: no data/TritonBench_G_v1/{self._op}.py above it, which is what "
                "candidates are compared with; keep the benchmark's folders as they are"
            )
        self._golden = load_module(golden, f"golden_{self._op}")
        return self._with(self._golden)

    def _with(self, kernel: types.ModuleType) -> types.ModuleType:
        """Return the perf file, which calls ``kernel``."""
        utils = types.ModuleType("performance_utils")
        vars(utils).update(Performance_Metrics=_FewInputs, do_bench_config=lambda *a, **k: None)
        package = types.ModuleType("TritonBench_v1")
        sys.modules |= {
            "performance_utils": utils,
            "TritonBench_v1": package,
            f"TritonBench_v1.{self._op}": kernel,
        }
        return load_module(self.path, f"perf_{self._op}")

    def stated(self) -> list[TaskSize]:
        """Three of its inputs, of which there are 2 to 30: small ones, growing."""
        return [
            TaskSize(f"input {index}", {"index": index}, True)
            for index in range(len(self._inputs()))
        ]

    def beside(self, seed: int) -> Iterator[TaskSize]:
        """Yield the largest small one of its inputs with one extent less by one, each in turn.

        Where the golden kernel itself fails then, there is no such size.
        """
        counts = list(map(count_elements, self._inputs()))
        index = max([0, *(at for at, count in enumerate(counts) if count <= SMALL_ELEMENTS)])
        extents = {n for tensor in tensors_of(self._inputs()[index]) for n in tensor.shape}
        for extent in sorted(e for e in extents if e >= _LEAST_SCALED):
            label = f"input {index}, {extent - 1} for {extent}"
            yield TaskSize(label, {"index": index, "extent": extent})

    def _inputs(self) -> list[Any]:
        metrics = self.module.performance_metrics()
        with suppress(_EnoughInputsError):
            metrics.get_input_tensors()
        if not metrics.input_tensors:
            raise UsageError(f"{self.path.name}: its get_input_tensors() makes no inputs")
        return list(metrics.input_tensors)

    def inputs(self, size: TaskSize, seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        metrics = self.module.performance_metrics()
        inputs = self._inputs()[size.settings["index"]]
        if extent := size.settings.get("extent"):
            inputs = tree_map(lambda leaf: _one_less(leaf, extent), inputs)
        return (metrics.to_cuda(inputs),)

    def build(self, size: TaskSize, seed: int, rank: int = 0) -> TaskProblem:
        metrics = self.module.performance_metrics()
        return TaskProblem(metrics.call_op, self.inputs(size, seed))

    def bind(self, module: types.ModuleType, problem: Mapping[str, Any]) -> Callable[..., Any]:
        metrics = self._with(module).performance_metrics()
        return metrics.call_op  # type: ignore[no-any-return]


def _one_less(leaf: Any, extent: int) -> Any:
    """Return a tensor less the last of each dimension of an extent, or the number less by one."""
    if isinstance(leaf, Tensor):
        return leaf[tuple(slice(n - (n == extent)) for n in leaf.shape)].contiguous()
    return leaf - 1 if type(leaf) is int and leaf == extent else leaf


def count_elements(tree: Any) -> int:
    """Return how many elements the tensors anywhere inside of a value have."""
    return sum(int(tensor.numel()) for tensor in tensors_of(tree))


def _on_device(tree: Any) -> Any:
    return with_tensors(tree, [on_device(tensor) for tensor in tensors_of(tree)])


@contextmanager
def of_the_task(path: Path, what: str) -> Iterator[None]:
    """Turn an error of a task's own into one that its author can read.

    Raises:
        UsageError: The task failed, or exited.
    """
    try:
        yield
    except (UsageError, UnsupportedOpError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UsageError(f"{path}: {what}: {type(error).__name__}: {str(error)[:1000]}") from error


def load_task(path: Path) -> JudgedTask:
    """Return the task of a file or folder, by what it defines.

    Raises:
        UsageError: It is none.
    """
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        raise UsageError(f"--against {path}: there is no such file or folder")
    if path.is_dir() or path.name in ("task.yml", "reference.py"):
        if (folder / "task.yml").is_file():
            return GpuModeTask(path)
        if path.is_dir():
            raise UsageError(f"--against {path}: the folder has no task.yml")
    text = read_text(path, _MOST_SOURCE_BYTES)
    forms: dict[str, type[JudgedTask]] = {
        "def get_init_inputs": KernelBenchTask,
        "class performance_metrics": TritonBenchTask,
        "def reference": OwnTask,
    }
    for mark, kind in forms.items():
        if mark in text:
            return kind(path)
    raise UsageError(
        f"--against {path}: it defines none of Model with get_inputs and get_init_inputs "
        "(KernelBench), performance_metrics (TritonBench), or reference, inputs and sizes; a task "
        "of GPU MODE is the folder with task.yml"
    )
