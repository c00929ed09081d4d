"""What ``triton.autotune`` chose, kept by run (ADR-0097).

Triton keeps the choices of an autotuner for the life of the process, by arguments and not by
device. So while a run is active its autotuners find the choices of that run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

from triton.runtime import driver as triton_driver
from triton.runtime.autotuner import Autotuner

from kernbench.report import pair_line
from kernbench.triton_backend.driver import KernbenchDriver
from kernbench.triton_backend.launcher import Launcher, active_launcher
from kernbench.triton_backend.replaced import ReplacedAttributes

_RUN: Callable[..., Any] = Autotuner.run
_BENCH: Callable[..., Any] = Autotuner._bench
_CHECK_DISK_CACHE: Callable[..., Any] = Autotuner.check_disk_cache


class Choices(MutableMapping[Any, Any]):
    """The configs that one autotuner chose: those of the active run, or those of no run at all."""

    def __init__(self, outside: dict[Any, Any]) -> None:
        self._outside = outside
        self._of_runs: WeakKeyDictionary[Launcher, dict[Any, Any]] = WeakKeyDictionary()

    def _here(self) -> dict[Any, Any]:
        if not _is_active():
            return self._outside
        return self._of_runs.setdefault(active_launcher(), {})

    def __getitem__(self, key: Any) -> Any:
        return self._here()[key]

    def __setitem__(self, key: Any, config: Any) -> None:
        self._here()[key] = config

    def __delitem__(self, key: Any) -> None:
        del self._here()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._here())

    def __len__(self) -> int:
        return len(self._here())

    def __repr__(self) -> str:
        return repr(self._here())


def _run(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Choose and launch, as Triton does."""
    # Stays when the run has ended: without one, it is the dictionary that was there before.
    if _is_active() and not isinstance(self.cache, Choices):
        self.cache = Choices(self.cache)
    if not _is_active():
        return _RUN(self, *args, **kwargs)
    before = getattr(self, "configs_timings", None)
    try:
        return _RUN(self, *args, **kwargs)
    finally:
        active_launcher().tunes(None)
        timings = getattr(self, "configs_timings", None)
        if timings and timings is not before:
            _say_how_sure(self.base_fn.__name__, timings)


def _say_how_sure(kernel: str, timings: Mapping[Any, Any]) -> None:
    """Have the report say that a choice is closer to the next one than errors are."""
    times = sorted(
        timing[0] if isinstance(timing, list | tuple) else timing for timing in timings.values()
    )
    if len(times) > 1 and (unsure := pair_line("kernels", *times[:2])):
        # Only the launcher of a run has a report.
        remark = getattr(active_launcher(), "remark", None)
        if remark is not None:
            remark(f"the two best configurations of {kernel} are {unsure}")


def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
    """Benchmark a candidate, as Triton does, and tell the run of it."""
    if _is_active():
        hooked = self.user_defined_pre_hook or self.user_defined_post_hook
        if hooked or any(config.pre_hook for config in self.configs):
            # What a hook puts right, only the program knows.
            active_launcher().tunes(None)
        else:
            active_launcher().tunes(frozenset((*self.reset_to_zero, *self.restore_value)))
    return _BENCH(self, *args, config=config, **meta)


def _check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
    """Tune anew in a run: choices on disk may be of another machine."""
    if not _is_active():
        return bool(_CHECK_DISK_CACHE(self, tuning_key, configs, bench_fn))
    bench_fn()
    return False


def _is_active() -> bool:
    return isinstance(triton_driver._active, KernbenchDriver)


REPLACED = ReplacedAttributes(
    Autotuner, run=_run, _bench=_bench, check_disk_cache=_check_disk_cache
)
"""Make autotuners choose for the active run."""
