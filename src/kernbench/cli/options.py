"""The options that several commands take, each written once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from kernbench.checks import as_allowed
from kernbench.cli.registry import NEEDS, NOT_WITH, SHOWN_AS
from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.analysis import RunPart
    from kernbench.hardware import Machine as LoadedMachine
    from kernbench.op_log import OpLog


def option(
    default: Any,
    *names: str,
    needs: tuple[str, ...] = (),
    not_with: tuple[str, ...] = (),
    **settings: Any,
) -> Any:
    """Return a field that is an option, with what ``typer.Option`` takes; ``...``: required.

    It is refused where it would do nothing: without any of ``needs``, with one of ``not_with``.
    """
    return _field(default, typer.Option(*names, **settings), {NEEDS: needs, NOT_WITH: not_with})


def argument(default: Any, **settings: Any) -> Any:
    """Return a field that is an argument, with what ``typer.Argument`` takes; ``...``: required."""
    return _field(default, typer.Argument(**settings))


def only_with(default: Any, *needs: str, not_with: tuple[str, ...] = ()) -> Any:
    """Return the field of an option of several commands that one of them refuses as ``option``."""
    return field(default=default, metadata={NEEDS: needs, NOT_WITH: not_with})


def _field(default: Any, shown: Any, others: Mapping[str, tuple[str, ...]] = {}) -> Any:
    metadata = {SHOWN_AS: shown, **others}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


def _allowed(texts: list[str] | None) -> list[str] | None:
    """Refuse what cannot be allowed, as any wrong value of an option."""
    try:
        return sorted(as_allowed(",".join(texts), "allow")) if texts else None
    except UsageError as error:
        raise typer.BadParameter(str(error).removeprefix("allow: ")) from None


def machines_from(incomplete: str) -> list[str]:
    """Return the names of machines that begin so, for shells that complete them."""
    from kernbench.hardware import known_machines

    return [machine for machine in known_machines() if machine.startswith(incomplete)]


DEFAULT_MACHINE = "ahbm"
Machine = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE",
        help="Machine: a preset, NAME:SIPS, or a YAML file.",
        autocompletion=machines_from,
    ),
]
BenchMachine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Machine: a preset, NAME:SIPS, or a YAML file; the bench's MACHINE, else ahbm.",
        autocompletion=machines_from,
    ),
]
Ranks = Annotated[
    int | None, typer.Option(metavar="N", help="World size; the bench's RANKS, else SIPS, else 1.")
]
FirstRanks = Annotated[
    int | None, typer.Option(metavar="N", help="Ranks, on SIPs 0 to N-1; all by default.")
]
Args = Annotated[
    list[str] | None, typer.Argument(metavar="ARGS", help="What the program is given.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the machine: sip.cube.hbm_bandwidth_gbps=4000, or =2x; repeatable.",
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        "--max-restarts",
        "--max_restarts",
        metavar="N",
        min=0,
        help="Start all ranks again when one fails, as torchrun's agent does, so often at most.",
    ),
]
Data = Annotated[
    bool, typer.Option("--data/--no-data", help="Compute numbers, or time and shapes only.")
]
Price = Annotated[
    float | None,
    typer.Option(
        metavar="USD", help="What a device costs per hour [default: usd_per_device_hour]."
    ),
]
AnalysisJson = Annotated[
    str | None, typer.Option(metavar="FILE|-", help="Write it as JSON; - is stdout.")
]
Markdown = Annotated[
    str | None, typer.Option(metavar="FILE|-", help="Write it as Markdown; - is stdout.")
]
Range = Annotated[
    str | None,
    typer.Option(
        "--range",
        metavar="NAME",
        help="Only that part of the run: a range or step that its program names, FILE:LINE for "
        "steps that begin at a line, start-up, rest, or all.",
    ),
]
Steps = Annotated[
    str | None,
    typer.Option(metavar="2:", help="Only those steps, or those ranges of NAME: 3, 2:, 2:5, -1."),
]
ArgsOfAll = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", help="Behind --: what a program is given at all points."),
]
SweepEngine = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Who runs points: local, dask://HOST:PORT, ray, ray://HOST:PORT."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", "-j", metavar="N", help="Local processes [default: all cores]."),
]
Debug = Annotated[bool, typer.Option(envvar="KERNBENCH_DEBUG", help="Show full tracebacks.")]


COVERING = -1
"""As many as cover every place in a node and every group; up to eight ranks all of them."""
_SPELLED, _MEANT = "--fold=check", f"--fold-check={COVERING}"


class FoldingCommand(TyperCommand):
    """A command whose ``--fold`` may have a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.spelled_out(ctx, args))

    def spelled_out(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments with ``--fold=check`` in other words, where it is ours."""
        if _SPELLED not in args:
            return args
        meants = [_MEANT if arg == _SPELLED else arg for arg in args]
        values, _, _ = self.make_parser(ctx).parse_args(args=list(meants))
        of_program = len(args) - len(values.get("args") or ())
        return [*meants[:of_program], *args[of_program:]]


class ProgramCommand(FoldingCommand):
    """A command of a program, whose own options may stand behind it where it has none of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.in_order(ctx, args))

    def in_order(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments with our options before the program."""
        from pathlib import Path

        from kernbench.cli.programs.parameters import taken_back

        args = self.spelled_out(ctx, args)
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        program, behind = values.get("program"), list(values.get("args") or ())
        if not behind or values.get("module") or not Path(str(program)).is_file():
            return args
        options = {
            name: not getattr(parameter, "is_flag", False)
            for parameter in self.get_params(ctx)
            if parameter.param_type_name == "option"
            for name in (*parameter.opts, *parameter.secondary_opts)
            if name.startswith("--")
        }
        ours, theirs = taken_back(Path(str(program)), behind, options)
        ahead = len(args) - len(behind) - 1
        return [*args[:ahead], *ours, args[ahead], *theirs] if ours else args


class AxesCommand(TyperCommand):
    """A command with axes, for which it names its own option where another's is given."""

    _NAMES = frozenset({"--grid", "--space"})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # As for kernbench run: Typer does not show the class of Click's error.
            if getattr(error, "option_name", "") in self._NAMES and hasattr(error, "possibilities"):
                own = {name for param in self.params for name in param.opts}
                error.possibilities = sorted(self._NAMES & own)
            raise


def load_changed(
    name: str | LoadedMachine,
    ranks: int | None,
    settings: list[str] | None,
    price: float | None = None,
    energy: bool = False,
    scenario: str | None = None,
) -> tuple[LoadedMachine, list[str]]:
    """Return a machine, changed as options say, and a remark on that for the report.

    Raises:
        MachineError: There is no such machine, or it has no such key.
        UsageError: Its energy is asked for, and it says nothing of that.
    """
    from kernbench.hardware import load_machine, set_keys, with_scenario

    asked = list(settings or ())
    if price is not None:
        asked.append(f"usd_per_device_hour={price!r}")
    loaded = load_machine(name, ranks)
    if scenario is not None:
        loaded = with_scenario(loaded, scenario)
    machine, changes = set_keys(loaded, asked)
    if energy and machine.sip.power is None:
        from kernbench.analysis import no_energy

        raise no_energy(machine.name)
    listed = ", ".join(map(str, changes))
    return machine, [f"{machine.name} was changed: {listed}"] if changes else []


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """What every command with a class of options has."""

    own_options: frozenset[str] = frozenset()
    """The names of the command's options."""

    def __post_init__(self) -> None:
        if getattr(self, "json", None) == getattr(self, "markdown", None) == "-":
            raise UsageError("only one of --json and --markdown can go to stdout")


@dataclass(frozen=True, kw_only=True)
class SavedRunOptions(CommandOptions):
    """What all commands take that read runs which were saved."""

    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions(SavedRunOptions):
    """What those take that explain runs."""

    json: AnalysisJson = None


@dataclass(frozen=True, kw_only=True)
class RangeOptions(AnalysisOptions):
    """What those take that explain a part of a run, too."""

    range: Range = None
    steps: Steps = None

    def part(self, log: OpLog, *, is_steady: bool = True) -> RunPart:
        """Return the part of a run that was asked for; without a word, perhaps its steady step."""
        from kernbench.analysis import part_of

        return part_of(log, self.range, self.steps, is_steady=is_steady)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(CommandOptions):
    """What all commands take that report a run: its machine, and what they show and write."""

    program: str = ""
    machine: str | None = None
    settings: Set = None
    scenario: str | None = option(
        None,
        metavar="FILE",
        help="Noise and faults: keys of the machine's section scenario; --set scenario.KEY=VALUE "
        "gives single ones.",
    )
    log: str | None = option(None, metavar="FILE", help="Write the op log as Parquet.")
    trace: str | None = option(None, metavar="FILE", help="Write a timeline for ui.perfetto.dev.")
    json: str | None = option(None, metavar="FILE|-", help="Write the report as JSON; - is stdout.")
    save: str | None = option(
        None, metavar="RUN", help="Keep the run in a file, for kernbench why and the like."
    )
    lines: bool = option(
        False,
        "--lines",
        help="Show what each line of the program caused, and the longest kernels' lines.",
    )
    memory: bool = option(
        False, "--memory", help="Show what was in device memory, and at its peak."
    )
    energy: bool = option(
        False, "--energy", help="Show where the energy went, and what kernels draw."
    )
    price: Price = None
    debug: Debug = False

    def load_machine(
        self, name: str | LoadedMachine, ranks: int | None
    ) -> tuple[LoadedMachine, list[str]]:
        """Return a machine, changed as options say, and a remark on that for the report."""
        return load_changed(name, ranks, self.settings, self.price, self.energy, self.scenario)


@dataclass(frozen=True, kw_only=True)
class ProgramOptions(ReportOptions):
    """What those take that run a program."""

    data: Data = True
    check: bool | None = option(
        None,
        "--check/--no-check",
        help="Look for races, unwritten memory and the like [default: KERNBENCH_CHECK].",
    )
    check_nan: bool = option(
        False, "--check-nan", help="As --check, and the first NaN or Inf is an error."
    )
    allow: list[str] | None = option(
        None,
        metavar="MISTAKE,...",
        callback=_allowed,
        help="Let pass: masked-lanes (without other= they are zeros), out-of-bounds-reads (zeros, "
        "and a warning) [default: KERNBENCH_ALLOW].",
    )

    @property
    def records_memory(self) -> bool:
        """Whether the run notes what it allocates."""
        return self.memory or self.records_lines

    @property
    def records_lines(self) -> bool:
        """Whether the run notes what the lines of the program cause."""
        return self.lines or self.save is not None

    @property
    def checks(self) -> dict[str, Any]:
        """What is checked, as parameters of ``RuntimeContext``."""
        return {
            "check": True if self.check_nan else self.check,
            "nan_is_error": True if self.check_nan else None,
            "allow": self.allow or None,
        }


@dataclass(frozen=True, kw_only=True)
class FoldOptions(ProgramOptions):
    """What those take whose ranks may be folded."""

    fold: bool = option(
        False,
        "--fold",
        help="Run one of all ranks that do the same, for all of them; with --no-data. "
        "--fold=check also compares others with it.",
    )
    fold_check: int = option(
        0,
        metavar="N",
        min=-1,
        help="Fold, run N others in the stead of those that ran, and compare.",
    )
    fold_bound: bool = option(
        True,
        "--fold-bound/--no-fold-bound",
        help="Run a folded program unseen before, so that its times are those of all ranks, and "
        "a few of its ranks in one process, to bound what else differs.",
    )

    @property
    def is_folded(self) -> bool:
        """Whether one rank runs for many; to compare with others asks for it, too."""
        return self.fold or self.fold_check != 0


@dataclass(frozen=True, kw_only=True)
class KernelOptions(ProgramOptions):
    """What commands take besides that use no PyTorch of their own."""

    seed: int = option(0, help="Seed of kernbench's random numbers.")
    tf32: Literal["round", "truncate", "ieee"] = option(
        "round", help="float32 products whose kernel asks for tf32 or the like; ieee: in float32."
    )


@dataclass(frozen=True, kw_only=True)
class PointsOptions(CommandOptions):
    """What those take that run a program at many points."""

    program: str = argument(..., metavar="FILE", help="What kernbench run takes.")
    args: ArgsOfAll = None
    arg: list[str] | None = option(
        None,
        metavar="NAME=VALUE,...",
        help="An option --NAME of the program, whatever its text says.",
    )
    param: list[str] | None = option(
        None, "--param", "-p", metavar="NAME=VALUE", help="A parameter at all points."
    )
    machine: str | None = option(
        None,
        metavar="NAME|FILE",
        help="Machine; the bench's, else ahbm.",
        autocompletion=machines_from,
    )
    ranks: Ranks = None
    fold: bool = option(
        False, "--fold", help="Run one rank for all that do the same; with --no-data."
    )
    output: str | None = option(
        None, "--output", "-o", metavar="DIR", help="Where results are kept [default: sweeps/NAME]."
    )
    engine: SweepEngine = "local"
    workers: Workers = None
    timeout: float | None = option(
        None, metavar="SECONDS", min=0.001, help="The longest a point may run."
    )
    memory: str | None = option(None, metavar="SIZE", help="The most a point may hold: 2GB, 512MB.")
    debug: Debug = False
