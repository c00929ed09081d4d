"""Recorded traces of requests: tables with the columns of BurstGPT's or Azure's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from kernbench.errors import UsageError
from kernbench.inputs import opened_csv

_SHOWN = 3


def _moment(text: str) -> float:
    # Azure's have seven digits of a second, of which Python reads six.
    whole, _, part = text.strip().removesuffix("Z").removesuffix("+00:00").partition(".")
    return (datetime.fromisoformat(whole) - datetime(1970, 1, 1)).total_seconds() + float(
        f"0.{part or 0}"
    )


_FORMATS: dict[str, tuple[tuple[str, str, str], Callable[[str], float]]] = {
    "BurstGPT's": (("Timestamp", "Request tokens", "Response tokens"), float),
    "Azure's": (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _moment),
}
"""Columns of the arrival, the tokens in and the tokens out. Sources: HPMLL/BurstGPT, data/;
Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md."""


def read_trace(
    path: Path, most: int | None = None, *, skips_holes: bool = False
) -> list[tuple[float, int, int]]:
    """Return seconds, tokens in and tokens out of each request of a trace.

    Args:
        path: A table of comma-separated values.
        most: How many requests are wanted, the first ones; None: all.
        skips_holes: Whether rows without one of the three, or without tokens, are left out.

    Raises:
        UsageError: It cannot be read, has other columns, no request, or holes; names the lines.
    """
    rows: list[tuple[float, int, int]] = []
    holes: list[str] = []
    with opened_csv(path) as reader:
        columns, to_seconds = _format_of(path, reader.fieldnames or ())
        for row in reader:
            if most is not None and len(rows) == most:
                break
            try:
                rows.append(_request(row, columns, to_seconds))
            except ValueError as error:
                holes.append(f"line {reader.line_num}: {error}")
    if holes and not skips_holes:
        more = f", and {len(holes) - _SHOWN} more" if len(holes) > _SHOWN else ""
        raise UsageError(
            f"{path.name} has holes: {'; '.join(holes[:_SHOWN])}{more}; --skip-holes leaves such "
            "rows out"
        )
    if not rows:
        raise UsageError(f"{path.name} has no request")
    return rows


def _format_of(path: Path, names: object) -> tuple[tuple[str, str, str], Callable[[str], float]]:
    present = list(names)  # type: ignore[call-overload]
    for columns, to_seconds in _FORMATS.values():
        if set(columns) <= set(present):
            return columns, to_seconds
    known = "; ".join(f"{name} are {', '.join(triple)}" for name, (triple, _) in _FORMATS.items())
    raise UsageError(
        f"{path.name}: its columns are {', '.join(map(str, present)) or 'none'}, but columns of "
        f"traces: {known}"
    )


def _request(
    row: Mapping[str, str | None],
    columns: tuple[str, str, str],
    to_seconds: Callable[[str], float],
) -> tuple[float, int, int]:
    numbers: list[float] = []
    for name, convert in zip(columns, (to_seconds, float, float), strict=True):
        text = (row.get(name) or "").strip()
        try:
            numbers.append(convert(text))
        except ValueError:
            raise ValueError(f"{name} is {text!r}" if text else f"no {name}") from None
        if convert is float and not 1 <= numbers[-1] < 1e9:
            raise ValueError(f"{name} is {text}")
    return numbers[0], int(numbers[1]), int(numbers[2])
