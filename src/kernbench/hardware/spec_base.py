"""Parts of machine files: exact numbers with bounds, and groups without unknown keys."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema

LEAST, MOST = Fraction(1, 1 << 20), 10**7
"""The bounds of a quantity above 0, in the unit of its key.

Beyond any machine, and within what times of kernels, in picoseconds, leave to 64 bits.
"""


def _number(value: Any) -> Fraction:
    """Take a number as its decimal text, so that 0.1 is one tenth and not a binary neighbour."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        raise ValueError(f"must be a plain number in the unit of the key's name, but got {value!r}")
    try:
        number = Fraction(str(value))
    except ValueError:
        raise ValueError(f"must be a finite number, but got {value!r}") from None
    if number > MOST:
        raise ValueError(f"must be at most {MOST}, but got {value}")
    return number


def _positive(value: Any) -> Fraction:
    number = _number(value)
    if number <= 0:
        raise ValueError(f"must be above 0, but got {value}")
    if number < LEAST:
        raise ValueError(f"must be at least {float(LEAST):f}, but got {value}")
    return number


def _not_negative(value: Any) -> Fraction:
    number = _number(value)
    if number < 0:
        raise ValueError(f"must be 0 or more, but got {value}")
    return number


def _share(value: Any) -> Fraction:
    number = _number(value)
    if not 0 < number <= 1:
        raise ValueError(f"must be above 0 and at most 1, but got {value}")
    return number


def plain(value: Fraction) -> int | float:
    """Give back the decimal number that was read: its text is what :func:`_number` takes."""
    return value.numerator if value.denominator == 1 else float(value)


_AsNumber = PlainSerializer(plain)


def _schema(**bounds: float) -> WithJsonSchema:
    """Tell the JSON schema what the validator beside it accepts."""
    return WithJsonSchema({"type": "number", **bounds})


Positive = Annotated[
    Fraction, PlainValidator(_positive), _AsNumber, _schema(minimum=float(LEAST), maximum=MOST)
]
NotNegative = Annotated[
    Fraction, PlainValidator(_not_negative), _AsNumber, _schema(minimum=0, maximum=MOST)
]
Share = Annotated[
    Fraction, PlainValidator(_share), _AsNumber, _schema(exclusiveMinimum=0, maximum=1)
]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Cycles = Annotated[int, Field(strict=True, ge=0, le=MOST)]


class Spec(BaseModel):
    """A group of keys: nothing unknown, nothing changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, with other values for some fields; what follows from them follows anew."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            # A cached property of the original, which Pydantic copies.
            del copied.__dict__[name]
        return copied
