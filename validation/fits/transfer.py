"""Applies one device's fitted constants to another device of its family."""

from __future__ import annotations

from kernbench.accuracy.calibration import constants_of, number_at
from kernbench.accuracy.rows import Category
from kernbench.errors import UsageError
from kernbench.hardware import edited, machine_text
from kernbench.inputs import parse_yaml


def transferred(donor: str, target: str, category: Category = Category.GEMM) -> str:
    """Return the text of ``target`` with the fitted constants of ``donor``.

    Both are names or files. Everything that vendors state remains the target's own, so the result
    is the model of the target if none of its rows had been measured.

    Raises:
        UsageError: One of them has a constant that the other lacks.
    """
    text, origin = machine_text(target)
    own, value = (parse_yaml(*pair) for pair in ((text, origin), machine_text(donor)))
    theirs, mine = (constants_of(category, item) for item in (value, own))
    if theirs != mine:
        names = {their.key for their in theirs} ^ {constant.key for constant in mine}
        raise UsageError(
            f"constants of {donor} cannot be applied to {target}: only one of them has "
            f"{', '.join(sorted(names))}"
        )
    numbers, sources = {}, {}
    for constant in theirs:
        number = number_at(value, constant.key)
        assert number is not None
        sources[constant.key] = f"fitted on {donor}"
        for key in (constant.key, *constant.tied):
            numbers[key] = number
            sources.setdefault(key, f"tied to {constant.key}")
    return edited(text, numbers, sources, origin)
