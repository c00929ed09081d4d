"""``torch.utils.benchmark`` in simulated time: equal measurements are not repeated.

PyTorch repeats a statement for a fifth of a second, to average noise out. Simulated time has no
noise, a fifth of a second of it is 100,000 small operations, and a statement that takes no
simulated time would be repeated without end.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE

MODULE = "torch.utils.benchmark.utils.timer"
"""Programs import it late, and importing it is slow."""
_MOST_BY_THE_HOST = 10
"""The repetitions after which a statement is taken to need no simulated time."""


def patch(module: ModuleType, patches: Patches) -> None:
    """Let its ``Timer`` repeat a statement only as often as that adds information."""
    timer: Any = module.__dict__["Timer"]
    common: Any = module.__dict__["common"]
    measure, estimate = timer._threaded_measurement_loop, timer._estimate_block_size

    def estimate_block_size(self: Any, min_run_time: float) -> int:
        if HERE.process is not None and not HERE.is_foreign:
            with common.set_torch_threads(self._task_spec.num_threads):
                nothing = self._timeit(0)
                for number in (1, _MOST_BY_THE_HOST):
                    if self._timeit(number) > 2 * nothing:
                        break
                else:
                    return _MOST_BY_THE_HOST
        size: int = estimate(self, min_run_time)
        return size

    def measurement_loop(
        self: Any,
        number: int,
        time_hook: Callable[[], float],
        stop_hook: Callable[[list[float]], bool],
        min_run_time: float,
        max_run_time: float | None = None,
        callback: Any = None,
    ) -> list[float]:
        if HERE.process is None or HERE.is_foreign:
            loop: list[float] = measure(
                self, number, time_hook, stop_hook, min_run_time, max_run_time, callback
            )
            return loop
        times: list[float] = []
        with common.set_torch_threads(self._task_spec.num_threads):
            while True:
                times.append(time_hook())
                if callback:
                    callback(number, times[-1])
                is_steady = len(times) > 1 and abs(times[-1] - times[-2]) <= times[-1] / 100
                is_enough = sum(times) >= min_run_time or is_steady
                if stop_hook(times) and is_enough:
                    break
                if max_run_time and sum(times) > max_run_time:
                    break
        return times

    patches.set_all(
        timer, _estimate_block_size=estimate_block_size, _threaded_measurement_loop=measurement_loop
    )
