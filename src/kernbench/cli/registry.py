"""What all commands share: how they end."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperGroup

from kernbench.errors import KernbenchError, UsageError
from kernbench.logs import LEVELS, VARIABLE, show_logs

_LONGEST = 1000
SHOWN_AS = "typer"
"""The key of a field's metadata under which its option or argument is."""
NEEDS, NOT_WITH = "needs", "not with"
"""The keys under which are the fields without any of which, or with which, it would do nothing."""


def _show_logs(level: str | None) -> None:
    if level:
        try:
            show_logs(level)
        except UsageError as error:
            raise typer.BadParameter(str(error)) from None


@cache
def _log_level() -> Any:
    """Return the option, as typer makes it for a command that has it among its parameters."""
    result = typer.Typer(add_completion=False)

    @result.command()
    def command(
        log_level: Annotated[
            str | None,
            typer.Option(
                metavar="LEVEL",
                envvar=VARIABLE,
                show_envvar=False,
                is_eager=True,
                expose_value=False,
                callback=_show_logs,
                help=f"Say on stderr what is done: {', '.join(LEVELS)} [default: {VARIABLE}].",
            ),
        ] = None,
    ) -> None: ...

    (option,) = (
        param for param in typer.main.get_command(result).params if param.name == "log_level"
    )
    return option


def add_log_level(command: Any) -> None:
    """Give a command, and those in it, the option that all have."""
    command.params.append(_log_level())
    for item in getattr(command, "commands", {}).values():
        add_log_level(item)


class Listing(TyperGroup):
    """Commands that are listed with the whole first sentence of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [
            (name, command.get_short_help_str(_LONGEST))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Commands(Listing):
    """The commands; wrong usage exits with 2, Ctrl-C with 130, each with one line.

    Each has ``--log-level``, and so have all of them together, before a command's name.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        add_log_level(self)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KernbenchError as error:
            print(f"error: {error}", file=sys.stderr)
            status = 2
        except KeyboardInterrupt as error:
            lines = ["interrupted", *getattr(error, "__notes__", ())]
            print("\n  ".join(lines), file=sys.stderr)
            status = 130
        raise typer.Exit(status)


_Action = Callable[[typer.Context, Any], int]
_A = TypeVar("_A", bound=_Action)


def options_command(app: typer.Typer, name: str, **settings: Any) -> Callable[[_A], _A]:
    """Make a function of a context and options a command; what it returns is the exit status.

    The command's options are the fields of the dataclass that the function takes as ``options``,
    each with its annotation, its default, and its ``option`` or ``argument``. Its field
    ``own_options`` is none: it gets the names of all of them.
    """

    def register(action: _A) -> _A:
        kind = get_type_hints(action)["options"]
        hints = get_type_hints(kind, include_extras=True)
        asked = [field for field in fields(kind) if field.name != "own_options"]

        def command(context: typer.Context, **values: Any) -> None:
            options = kind(**values, own_options=option_names(context))
            _refuse_idle(context, options)
            raise typer.Exit(action(context, options))

        context = inspect.Parameter(
            "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )
        parameters = [context, *(_parameter(field, hints[field.name]) for field in asked)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, help=inspect.getdoc(action), **settings)(command)
        return action

    return register


def _parameter(field: Field[Any], annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    kind = inspect.Parameter.KEYWORD_ONLY
    if SHOWN_AS in field.metadata:
        annotation = Annotated[annotation, field.metadata[SHOWN_AS]]
    return inspect.Parameter(field.name, kind, default=default, annotation=annotation)


def _refuse_idle(context: typer.Context, options: Any) -> None:
    """Refuse what the command line asks for where it would be ignored.

    Raises:
        UsageError: There is such an option.
    """
    asked = dict(given_options(context))
    names = {param.name: _written(param) for param in context.command.params}

    def is_asked(name: str) -> bool:
        value = getattr(options, name)
        return bool(value) or (name in asked and value is not False)

    for field in fields(options):
        if field.name not in asked:
            continue
        needs = field.metadata.get(NEEDS, ())
        if needs and not any(map(is_asked, needs)):
            others = " or ".join(names[name] for name in needs)
            raise UsageError(f"{asked[field.name]} does nothing without {others}; add it")
        for name in filter(is_asked, field.metadata.get(NOT_WITH, ())):
            raise UsageError(f"{asked[field.name]} does nothing with {names[name]}")


def option_names(context: typer.Context) -> frozenset[str]:
    """Return the long names of the options of the command that is run."""
    names = (name for it in context.command.params for name in (*it.opts, *it.secondary_opts))
    return frozenset(name for name in names if name.startswith("--"))


def given_options(context: typer.Context) -> list[tuple[str, str]]:
    """Return the parameters that the command line gave: each one's name, and how it is written."""
    return [
        (param.name, _written(param))
        for param in context.command.params
        if param.name is not None
        and getattr(context.get_parameter_source(param.name), "name", "") == "COMMANDLINE"
    ]


def _written(param: Any) -> str:
    """Return how an option is written, or what an argument is called in the usage."""
    is_option = param.param_type_name == "option"
    return str(max(param.opts, key=len) if is_option else param.metavar or param.name)
