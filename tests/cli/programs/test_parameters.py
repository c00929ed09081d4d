from __future__ import annotations

from typing import Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.cli.programs.parameters import convert, parameters_of, parse_parameters
from kernbench.errors import UnknownNameError, UsageError


def bench(
    torch: Any,
    size: int,
    scale: float = 0.5,
    dtype: Literal["f16", "f32"] = "f16",
    sizes: list[int] = [1, 2],  # noqa: B006
    limit: int | None = None,
    plain=3,
    text="x",
) -> None: ...


@pytest.mark.adr("0011-D1")
@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("12", int, 12),
        ("0x10", int, 16),
        ("1_024", int, 1024),
        ("1e-3", float, 1e-3),
        ("a=b", str, "a=b"),
        ("True", bool, True),
        ("off", bool, False),
        ("0", bool, False),
        ("f32", Literal["f16", "f32"], "f32"),
        ("2", Literal[1, 2], 2),
        ("1,2, 3", list[int], [1, 2, 3]),
        ("[1,2]", list[int], [1, 2]),
        ("", list[int], []),
        ("4,8", tuple[int, int], (4, 8)),
        ("(4, x)", tuple[int, str], (4, "x")),
        ("1,2,3", tuple[int, ...], (1, 2, 3)),
        ("a,b", list, ["a", "b"]),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("none", Optional[str], None),  # noqa: UP045 - users write it
        ("2.5", int | float, 2.5),
        ("ring", Any, "ring"),
    ],
)
def test_values_are_converted_by_annotation(text: str, annotation: Any, value: Any) -> None:
    assert convert(text, annotation) == value
    assert type(convert(text, annotation)) is type(value)


@pytest.mark.parametrize(
    ("text", "annotation"),
    [
        ("three", int),
        ("1.5", int),
        ("maybe", bool),
        ("f64", Literal["f16", "f32"]),
        ("1,x", list[int]),
        ("1,2,3", tuple[int, int]),
        ("x", int | None),
        ("", float),
    ],
)
def test_other_values_are_refused(text: str, annotation: Any) -> None:
    with pytest.raises(ValueError):
        convert(text, annotation)


@given(st.lists(st.integers()), st.booleans())
def test_lists_of_integers_survive_the_command_line(values: list[int], brackets: bool) -> None:
    text = str(values) if brackets else ",".join(map(str, values))
    assert convert(text, list[int]) == values


def test_parameters_come_from_annotations_or_defaults() -> None:
    shown = [str(parameter) for parameter in parameters_of(bench)]
    assert shown == [
        "size: int",
        "scale: float = 0.5",
        "dtype: f16|f32 = f16",
        "sizes: list[int] = 1,2",
        "limit: int|none = none",
        "plain: int = 3",
        "text: str = x",
    ]


def test_given_values_override_defaults_only_where_given() -> None:
    values = parse_parameters(["size=3", "plain=4"], parameters_of(bench), "b")
    assert values == {"size": 3, "plain": 4}


@pytest.mark.parametrize(
    ("given_texts", "error", "words"),
    [
        (
            ["size=3", "sise=4"],
            UnknownNameError,
            r"bench b has no parameter 'sise': did you mean size",
        ),
        (["size=three"], UsageError, r"size of bench b must be int, but got 'three'"),
        (["size=1", "dtype=f8"], UsageError, r"dtype of bench b must be f16\|f32, but got 'f8'"),
        (["size"], UsageError, "NAME=VALUE"),
        (["size=1", "size=2"], UsageError, "given twice"),
        ([], UsageError, "needs a value for size"),
    ],
)
def test_wrong_parameters_say_what_is_possible(
    given_texts: list[str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        parse_parameters(given_texts, parameters_of(bench), "b")


def test_an_annotation_that_cannot_be_read_is_named() -> None:
    def run(torch: Any, size: Nowhere = 3) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(UsageError, match="annotation of parameter size, 'Nowhere'"):
        parameters_of(run)
