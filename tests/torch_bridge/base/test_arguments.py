"""Wrong arguments are the program's mistakes, in the words of PyTorch."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from typer.testing import CliRunner

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from kernbench.cli.app import app  # noqa: E402
from kernbench.torch_bridge.base.arguments import checked  # noqa: E402
from tests.tiers import daily  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402


class Line:
    given: tuple[object, ...]

    @checked
    def __init__(self, length: int = 1, other: Line | None = None, *, note: Any = "") -> None:
        self.given = operator.index(length), other and other.given, note


@checked
def meet(first: Line, second: Line, is_short: bool = True) -> tuple[Line, Line]:
    assert len(first.given) == len(second.given) == 3
    return first, second


def test_what_fits_is_handed_on() -> None:
    line = Line(np.int64(3), Line(True), note=3)
    assert line.given[0] == 3
    assert meet(line, second=line, is_short=1) == (line, line)  # type: ignore[arg-type]
    assert meet.__name__ == "meet"


def test_what_does_not_is_named_with_its_function() -> None:
    value: Any = "x"
    for call, words in (
        (lambda: Line(value), r"Line\(\): argument 'length' must be int, not str"),
        (lambda: Line(1.5), "argument 'length' must be int, not float"),  # type: ignore[arg-type]
        (lambda: Line(other=value), "argument 'other' must be Line or None, not str"),
        (lambda: meet(Line(), value), r"meet\(\): argument 'second' must be Line, not str"),
        (lambda: meet(Line(), second=None), "not NoneType"),  # type: ignore[arg-type]
        (lambda: meet(Line()), "missing 1 required positional argument"),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match=words):
            call()


WORDS = {
    "a name of no device": "device type at start of device string: x",
    "no device": "device() received an invalid combination of arguments - got (list)",
    "a move to a name": "device type at start of device string: x",
    "a move to a list": "got (list)",
    "a tensor on a list": "ones(): argument 'device' must be torch.device, not list",
    "a stream of any device": "device type at start of device string: x",
    "priority": "Stream(): argument 'priority' must be int, not str",
    "seed": "manual_seed(): argument 'seed' must be int, but got 'x'",
    "no seed": "manual_seed(): argument 'seed' must be int, but got None",
    "seed of a generator": "manual_seed(): argument 'seed' must be int, but got [1]",
    "offset": "set_offset(): argument 'offset' must be int, not str",
    "event": "wait_event(): argument 'event' must be Event, not str",
    "stream to wait for": "wait_stream(): argument 'stream' must be Stream, not NoneType",
    "stream of an event": "record(): argument 'stream' must be Stream or None, not str",
    "stream that waits": "wait(): argument 'stream' must be Stream or None, not str",
    "end": "elapsed_time(): argument 'end_event' must be Event, not int",
    "stream": "argument 'stream' must be Stream or None, not str",
    "chosen stream": "set_stream(): argument 'stream' must be Stream or None, not int",
    "stream of a graph": "argument 'stream' must be Stream or None, not str",
    "device of": "argument 'obj' must be Tensor or UntypedStorage or TypedStorage, not int",
    "cycles": "argument 'cycles' must be int, not str",
}


@pytest.mark.parametrize("case", WORDS)
def test_a_program_hears_what_it_passed(case: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as raised:
        simulated("wrong_arguments.py", case)
    assert WORDS[case] in str(raised.value)


@pytest.mark.parametrize("case", daily("end", of=WORDS))
def test_a_command_says_it_with_its_line_and_of_no_bug_of_ours(case: str) -> None:
    done = CliRunner().invoke(app, ["torchrun", str(PROGRAMS / "wrong_arguments.py"), case])
    assert done.exit_code == 1
    said = done.stderr
    assert WORDS[case].partition(" - ")[0] in " ".join(said.split())
    assert "bug" not in said
    assert "wrong_arguments.py:" in said
