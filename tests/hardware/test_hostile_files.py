"""Machine files that nobody means well with: refused by name, or described; soon, in little memory.

Each is a preset with one or two of its parts replaced, or its text spoilt. What is not refused
runs a kernel, as that is where a number that nobody checked would surface.
"""

from __future__ import annotations

import copy
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import KernbenchError, MachineError
from kernbench.hardware import parse_machine
from kernbench.ops import matmul
from kernbench.runtime_api import RuntimeContext
from tests.tiers import daily, examples

MOST_S, MOST_BYTES = 10, 500 << 20
PRESETS = Path(__file__).parents[2] / "src/kernbench/hardware/presets"

NUMBERS = (0, -1, 1, 2, 0.5, 1e-300, 5e-324, 1e300, 1e7, 10**30, -0.0, math.nan, math.inf)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    "",
    "x",
    "12 GB/s",
    "\x00",
    [],
    {},
    [[]],
    {"x": 1},
    [1, None],
    [{}],
    "9" * 5000,
)
HOSTILE = st.sampled_from((*NUMBERS, *OTHERS))


@cache
def preset(name: str) -> Any:
    return yaml.safe_load((PRESETS / f"{name}.yaml").read_text())


def paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        yield (*before, key)
        if isinstance(part, dict | list):
            yield from paths(part, (*before, key))


@st.composite
def spoilt(draw: st.DrawFn, name: str) -> str:
    """Draw the text of a preset of which one or two parts are not as they should be."""
    data = copy.deepcopy(preset(name))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(paths(data))))
        owner = data
        for key in path[:-1]:
            owner = owner[key]
        change = draw(st.sampled_from(("replace", "replace", "replace", "remove", "add", "move")))
        if change == "replace":
            owner[path[-1]] = draw(HOSTILE)
        elif change == "remove":
            del owner[path[-1]]
        elif change == "move":
            owner[path[-1]] = copy.deepcopy(data)
        elif isinstance(owner, dict):
            owner[draw(st.sampled_from((*data, "x", "", "1", "sip.clock_ghz")))] = draw(HOSTILE)
        else:
            owner.append(draw(HOSTILE))
    return yaml.safe_dump(data)


TEXTS = (
    "name: &a [*a]",
    "sip: &a {pe: *a}",
    "a: &a [x, x, x]\n"
    + "".join(
        f"{b}: &{b} [*{a}, *{a}, *{a}]\n"
        for a, b in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)
    ),
    "<<: &a {<<: *a}",
    "sip: " + 3000 * "{a: ",
    "a: b\n" * 3,
    "%YAML 9.9\n--- 1",
    "--- a\n--- b",
    "name: !!python/object/apply:os.system [true]",
    "\ufeffname: x",
    "name: \x07",
    "? ",
    "sizes: [1]\nsip: 3\n",
    "name: 0o777777777777777777777777\n",
    "name: " + "9" * 100_000,
)


@contextmanager
def bounded() -> Iterator[None]:
    """Let what runs inside take so much more memory, and time of the processor."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    start = process_time()
    try:
        yield
        assert process_time() - start < MOST_S
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def used(text: str) -> None:
    """Describe a machine and run a kernel on it, unless one or the other is refused."""
    with bounded():
        try:
            machine = parse_machine(text, "mine.yaml")
        except KernbenchError as refusal:
            words = str(refusal)
        else:
            words = "mine.yaml was taken"
            with suppress(KernbenchError), RuntimeContext(machine=machine, data=False) as torch:
                matmul(torch.zeros(64, 64), torch.zeros(64, 64))
    assert "mine.yaml" in words


@pytest.mark.parametrize("name", daily("ahbm", of=("ahbm", "h100-sxm", "gb200")))
@examples(60, deadline=None)
@given(data=st.data())
def test_a_spoilt_machine_is_refused_by_name_or_can_be_used(name: str, data: st.DataObject) -> None:
    used(data.draw(spoilt(name)))


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_spoilt_text_is_refused_by_name(text: str) -> None:
    with pytest.raises(MachineError, match=r"mine\.yaml"), bounded():
        parse_machine(text, "mine.yaml")


def test_what_would_take_too_much_is_found() -> None:
    with pytest.raises(MemoryError), bounded():
        bytearray(2 * MOST_BYTES)
