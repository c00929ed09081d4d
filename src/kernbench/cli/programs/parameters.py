"""Parameters of a bench: from ``name=value`` on the command line to the annotated type."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

from kernbench.errors import UnknownNameError, UsageError, nearest


def say_whose_options(path: Path, args: Sequence[str], options: Collection[str]) -> None:
    """Print a note on ``options`` of kernbench that stand behind a program, and go to it.

    There is none on those that the program's file names itself, behind a ``--``, and on ``--help``.
    """
    parts = [arg.partition("=")[0] for arg in args]
    parts = parts[: parts.index("--")] if "--" in parts else parts
    ours = dict.fromkeys(name for name in parts if name in options and name != "--help")
    if not ours:
        return
    tree = ast.walk(ast.parse(path.read_bytes()))
    named = {node.value for node in tree if isinstance(node, ast.Constant)}
    names = [name for name in ours if name not in named]
    if names:
        goes = "goes" if len(names) == 1 else "go"
        print(
            f"note: {', '.join(names)} {goes} to {path.name}, as with python; options of kernbench "
            "come before the program",
            file=sys.stderr,
            flush=True,
        )


_READS_MORE = re.compile(
    r"\b(argv|parse_known_args|HfArgumentParser|absl|click|fire|hydra|jsonargparse|tyro|typer)\b"
)
"""What a program reads options with that its text does not show."""


def taken_back(
    path: Path, args: Sequence[str], options: Mapping[str, bool]
) -> tuple[list[str], list[str]]:
    """Return which arguments behind a program are kernbench's, and which are the program's.

    ``options`` are names of kernbench's options, and whether each has a value. They are kernbench's
    where the program would refuse them: it reads its options with argparse, and has none of that
    name, or reads none. All else is the program's, and what stands behind a ``--``.
    """
    from kernbench.cli.sweeps.points import options_of
    from kernbench.cli.sweeps.sources import program_sources

    texts = [file.read_text(encoding="utf-8", errors="replace") for file in program_sources(path)]
    own = options_of(path)
    reads = any("argparse" in text for text in texts)
    if any(map(_READS_MORE.search, texts)) or (reads and not own):
        return [], list(args)
    theirs = {program_option.spelled for program_option in own.values()} | {"--help"}
    ours: list[str] = []
    left = list(args)
    kept: list[str] = []
    while left and left[0] != "--":
        name, equals, _ = left[0].partition("=")
        is_ours = name in options and name not in theirs
        count = 2 if is_ours and options[name] and not equals else 1
        (ours if is_ours else kept).extend(left[:count])
        del left[:count]
    return ours, [*kept, *left]


def exit_status(end: SystemExit) -> int:
    """Return the exit status of a program that ended by ``SystemExit``; print what it says."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class BenchParameter:
    """One parameter of a bench's ``run``."""

    name: str
    annotation: Any
    default: Any
    """``inspect.Parameter.empty`` where a value must be given."""

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def __str__(self) -> str:
        text = f"{self.name}: {type_name(self.annotation)}"
        return text if self.is_required else f"{text} = {_shown(self.default)}"


def parameters_of(run: Callable[..., object]) -> list[BenchParameter]:
    """Return the parameters of a bench's ``run`` after the first, which is ``torch``.

    A parameter without annotation has its default's type, or is a text.

    Raises:
        UsageError: An annotation names something that is not there.
    """
    result = []
    for parameter in list(inspect.signature(run).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        annotation = parameter.annotation
        if isinstance(annotation, str):
            annotation = _evaluated(run, parameter.name, annotation)
        if annotation is inspect.Parameter.empty:
            known = (
                parameter.default is not inspect.Parameter.empty and parameter.default is not None
            )
            annotation = type(parameter.default) if known else str
        result.append(BenchParameter(parameter.name, annotation, parameter.default))
    return result


def parse_parameters(
    texts: Sequence[str], known: Sequence[BenchParameter], bench: str
) -> dict[str, Any]:
    """Return the values of ``name=value`` texts, by name.

    Raises:
        UnknownNameError: The bench has no such parameter.
        UsageError: A value is not of its parameter's type, is missing, or is given twice.
    """
    by_name = {bench_parameter.name: bench_parameter for bench_parameter in known}
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"--param must be NAME=VALUE, but got {text!r}")
        if name not in by_name:
            raise UnknownNameError(
                f"bench {bench} has no parameter {name!r}: {nearest(name, by_name)}"
            )
        if name in values:
            raise UsageError(f"parameter {name} is given twice")
        annotation = by_name[name].annotation
        try:
            values[name] = convert(value.strip(), annotation)
        except ValueError:
            raise UsageError(
                f"parameter {name} of bench {bench} must be {type_name(annotation)}, "
                f"but got {value!r}"
            ) from None
    missing = [item.name for item in known if item.is_required and item.name not in values]
    if missing:
        raise UsageError(
            f"bench {bench} needs a value for {', '.join(missing)}: --param {missing[0]}=..."
        )
    return values


def convert(text: str, annotation: Any) -> Any:
    """Return the value of type ``annotation`` that ``text`` spells.

    Lists and tuples are comma-separated, with or without brackets.

    Raises:
        ValueError: It spells none.

    >>> convert("1,2,4", list[int]), convert("none", int | None), convert("off", bool)
    ([1, 2, 4], None, False)
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return _convert_to_first(text, arguments)
    if origin is Literal:
        return _pick(text, arguments)
    if origin in (list, tuple) or annotation in (list, tuple):
        return _convert_sequence(text, origin or annotation, arguments)
    if annotation is bool:
        return _convert_bool(text)
    if annotation is int:
        return int(text, 0)
    if annotation is types.NoneType:
        if text.lower() != "none":
            raise ValueError(text)
        return None
    if annotation is float:
        return float(text)
    # Any, str, and types that only the bench knows: the text as it is.
    return text


def type_name(annotation: Any) -> str:
    """Return an annotation as help and errors show it.

    >>> type_name(Literal["ring", "tree"]), type_name(int | None)
    ('ring|tree', 'int|none')
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return "|".join(type_name(argument) for argument in arguments)
    if origin is Literal:
        return "|".join(str(argument) for argument in arguments)
    if origin in (list, tuple):
        inner = ", ".join(
            "..." if argument is Ellipsis else type_name(argument) for argument in arguments
        )
        return f"{origin.__name__}[{inner}]"
    if annotation is types.NoneType:
        return "none"
    return getattr(annotation, "__name__", str(annotation))


def _evaluated(run: Callable[..., object], name: str, annotation: str) -> Any:
    try:
        # What the annotation would have been without `from __future__ import annotations`.
        return eval(annotation, getattr(run, "__globals__", {}))
    except Exception as error:
        raise UsageError(
            f"the annotation of parameter {name}, {annotation!r}, cannot be read: {error}"
        ) from None


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def _convert_bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _convert_to_first(text: str, choices: Sequence[Any]) -> Any:
    # None first: every text is a str, also "none".
    for choice in sorted(choices, key=lambda item: item is not types.NoneType):
        try:
            return convert(text, choice)
        except ValueError:
            continue
    raise ValueError(text)


def _pick(text: str, choices: Sequence[Any]) -> Any:
    for choice in choices:
        if text == str(choice):
            return choice
    raise ValueError(text)


def _convert_sequence(text: str, kind: type, arguments: Sequence[Any]) -> Any:
    if text[:1] + text[-1:] in ("[]", "()"):
        text = text[1:-1]
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if kind is list or Ellipsis in arguments or not arguments:
        argument = arguments[0] if arguments else str
        return kind(convert(part, argument) for part in parts)
    if len(parts) != len(arguments):
        raise ValueError(text)
    return tuple(convert(part, item) for part, item in zip(parts, arguments, strict=True))
