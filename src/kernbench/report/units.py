"""Numbers as people read them: three digits and a unit."""

from __future__ import annotations

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_ns(time_ns: float) -> str:
    """Return a time.

    >>> format_ns(123_456), format_ns(0.5), format_ns(0)
    ('123 us', '0.50 ns', '0')
    """
    if not time_ns:
        return "0"
    for size, unit in _TIMES:
        # 999.5 us rounds to 1000 us: that is 1.00 ms.
        if time_ns >= 0.9995 * size:
            return f"{_three_digits(time_ns / size)} {unit}"
    return f"{time_ns:.2f} ns"


def format_amount(amount: float, unit: str) -> str:
    """Return an amount with a decimal prefix.

    >>> format_amount(1_234_000, "B"), format_amount(12, "B")
    ('1.23 MB', '12 B')
    """
    for size, prefix in _DECIMAL:
        if amount >= 0.9995 * size:
            return f"{_three_digits(amount / size)} {prefix}{unit}"
    return f"{amount:.0f} {unit}"


def format_size(size_bytes: int) -> str:
    """Return an amount of memory.

    >>> format_size(1536), format_size(1 << 34)
    ('1.50 KiB', '16.00 GiB')
    """
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.2f} {_BINARY[unit]}" if unit else f"{size_bytes} B"


def format_share(part: float, whole: float) -> str:
    """Return a percentage; ``-`` of nothing.

    >>> format_share(1, 3), format_share(1, 0)
    ('33%', '-')
    """
    return f"{100 * part / whole:.0f}%" if whole else "-"


def _three_digits(value: float) -> str:
    for limit, digits in ((9.995, 2), (99.95, 1)):
        if value < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"
