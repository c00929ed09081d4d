"""``triton.testing`` while a run is active: ``do_bench`` answers in modeled time (ADR-0050)."""

from __future__ import annotations

import csv
import importlib.util
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import triton.testing as triton_testing
from triton.runtime import driver as triton_driver

from kernbench.errors import UsageError
from kernbench.outputs import as_text, whole_file
from kernbench.triton_backend.driver import KernbenchDriver
from kernbench.triton_backend.replaced import ReplacedAttributes

_RETURN_MODES = ("min", "max", "mean", "median", "all")

_ORIGINALS = {name: getattr(triton_testing, name) for name in ("do_bench", "do_bench_cudagraph")}
_MARK: Any = triton_testing.Mark


class NothingToTimeWarning(UserWarning):
    """The function given to ``do_bench`` launched no kernel, so the answer is NaN."""


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Iterable[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    **options: Any,
) -> Any:
    """Return the modeled milliseconds of what ``fn`` launches, in the form that was asked for.

    ``fn`` is called once, and its launches touch no data: modeled time does not vary. So all
    quantiles are the same number, and ``warmup`` and ``rep`` mean nothing. The two events around
    ``fn`` take what they take on the device. Operators of PyTorch
    itself run on the host and take no modeled time; if ``fn`` launches no kernel at all, the
    answer is NaN. A call when kernbench is not active is Triton's.
    """
    if not isinstance(triton_driver.active, KernbenchDriver):
        return _ORIGINALS["do_bench"](
            fn, warmup, rep, grad_to_none, quantiles, return_mode, **options
        )
    return _modeled(fn, grad_to_none, quantiles, return_mode, by_events=True)


def do_bench_cudagraph(
    fn: Callable[[], Any],
    rep: float = 20,
    grad_to_none: Iterable[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    **options: Any,
) -> Any:
    """Do as :func:`do_bench`, without events between the launches of a graph."""
    if not isinstance(triton_driver.active, KernbenchDriver):
        return _ORIGINALS["do_bench_cudagraph"](
            fn, rep, grad_to_none, quantiles, return_mode, **options
        )
    return _modeled(fn, grad_to_none, quantiles, return_mode)


def _modeled(
    fn: Callable[[], Any],
    grad_to_none: Iterable[Any] | None,
    quantiles: Sequence[float] | None,
    return_mode: str,
    *,
    by_events: bool = False,
) -> Any:
    if return_mode not in _RETURN_MODES:
        raise UsageError(
            f"do_bench: return_mode must be one of {', '.join(_RETURN_MODES)}, "
            f"but got {return_mode!r}"
        )
    for tensor in grad_to_none or ():
        tensor.grad = None
    driver = triton_driver.active
    milliseconds = driver.launcher.benchmark_ms(fn)
    if milliseconds == 0:
        if not driver.has_warned:
            driver.has_warned = True
            _warn()
        milliseconds = math.nan
    elif by_events:
        milliseconds += driver.launcher.device_rates().event_ms
    if quantiles is not None:
        return milliseconds if len(quantiles) == 1 else [milliseconds] * len(quantiles)
    return [milliseconds] if return_mode == "all" else milliseconds


def _warn() -> None:
    warnings.warn(
        "do_bench was given a function that launches no kernel: PyTorch's own operators run "
        "on the host and have no modeled time, the answer is NaN",
        NothingToTimeWarning,
        stacklevel=4,
    )


class ModeledMark(_MARK):  # type: ignore[misc]  # Triton ships no types
    """The result of ``triton.testing.perf_report``: Triton's plots, or only a table."""

    def _run(
        self,
        bench: Any,
        save_path: str,
        show_plots: bool,
        print_data: bool,
        diff_col: bool = False,
        save_precision: int = 6,
        **kwargs: Any,
    ) -> Any:
        if all(importlib.util.find_spec(name) for name in ("matplotlib", "pandas")):
            return super()._run(
                bench, save_path, show_plots, print_data, diff_col, save_precision, **kwargs
            )
        rows = list(self._rows(bench, kwargs))
        header = [*bench.x_names, *(f"{name} ({bench.ylabel})" for name in bench.line_names)]
        if diff_col and len(header) == 2:
            header.append("Diff")
            rows = [[*row, row[1] - row[0]] for row in rows]
        # Without a plot the numbers are the only result there is.
        if print_data or show_plots:
            print(f"{bench.plot_name}:\n{_table(header, rows)}")
        if save_path:
            folder = Path(save_path)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{bench.plot_name}.csv"
            with whole_file(path) as file, as_text(file) as text:
                writer = csv.writer(text)
                writer.writerow(header)
                writer.writerows([_cell(value, save_precision) for value in row] for row in rows)
        return [dict(zip(header, row, strict=True)) for row in rows]

    def _rows(self, bench: Any, kwargs: dict[str, Any]) -> Iterable[list[Any]]:
        for x in bench.x_vals:
            values = list(x) if isinstance(x, (list, tuple)) else [x] * len(bench.x_names)
            if len(values) != len(bench.x_names):
                raise ValueError(f"Expected {len(bench.x_names)} values, got {values}")
            named = dict(zip(bench.x_names, values, strict=True))
            row = list(values)
            for line in bench.line_vals:
                result = self.fn(**named, **{bench.line_arg: line}, **bench.args, **kwargs)
                row.append(result[0] if isinstance(result, (list, tuple)) else result)
            yield row


def _table(header: list[str], rows: list[list[Any]]) -> str:
    cells = [header, *([_cell(value, 6) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ("  ".join(map(str.rjust, row, widths)) for row in cells)
    return "\n".join(lines)


def _cell(value: Any, precision: int) -> str:
    return f"{value:.{precision}f}" if isinstance(value, float) else str(value)


REPLACED = ReplacedAttributes(
    triton_testing, do_bench=do_bench, do_bench_cudagraph=do_bench_cudagraph, Mark=ModeledMark
)
"""Make ``triton.testing`` ask the active run."""
