"""``kernbench run``: any program on a machine, by what its file is."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from kernbench.cli import options as common
from kernbench.cli.programs.bench_file import known_benches
from kernbench.cli.programs.benches import BenchOptions, run_bench, show_bench
from kernbench.cli.programs.kinds import Kind, is_readable, kind_of
from kernbench.cli.programs.scripts import ScriptOptions, run_script
from kernbench.cli.programs.torch_programs import TorchrunOptions, torchrun
from kernbench.cli.registry import given_options, options_command
from kernbench.errors import UsageError

PLACE = 10
app = typer.Typer()

_CLASSES: dict[Kind, type[common.ProgramOptions]] = {
    Kind.BENCH: BenchOptions,
    Kind.SCRIPT: ScriptOptions,
    Kind.PYTORCH: TorchrunOptions,
}
_TITLES = {
    frozenset(Kind): "Options",
    frozenset((Kind.BENCH, Kind.SCRIPT)): "Options of benches and scripts",
    frozenset((Kind.BENCH, Kind.PYTORCH)): "Options of benches and PyTorch programs",
    frozenset((Kind.BENCH,)): "Options of benches",
    frozenset((Kind.SCRIPT,)): "Options of scripts",
    frozenset((Kind.PYTORCH,)): "Options of PyTorch programs, as torchrun's",
}
_INSTEAD = {
    ("ranks", Kind.PYTORCH): "its ranks are --nproc-per-node N",
    ("nproc_per_node", Kind.BENCH): "its ranks are --ranks N",
    ("param", Kind.SCRIPT): "its arguments come after it",
    ("param", Kind.PYTORCH): "its arguments come after it",
    ("args", Kind.BENCH): "its parameters are --param NAME=VALUE",
    ("seed", Kind.PYTORCH): "it calls torch.manual_seed",
    ("tf32", Kind.PYTORCH): "it sets torch.backends.cuda.matmul.allow_tf32 and the like",
    ("target", Kind.PYTORCH): "kernbench script FILE takes it, with PyTorch on the CPU",
}


@dataclass(frozen=True, kw_only=True)
class RunOptions(TorchrunOptions, ScriptOptions, BenchOptions):
    """What ``kernbench run`` was given: the options of every kind of program."""

    program: str = common.argument(
        "",
        metavar="FILE",
        help="A bench with run(torch, ...) or its name, a script, or a PyTorch program.",
        show_default=False,
    )
    machine: common.BenchMachine = None  # type: ignore[assignment]  # until it is known what runs
    show_help: bool = common.option(
        False, "--help", help="Show this, or the parameters of a bench."
    )


def _kinds_with(name: str) -> frozenset[Kind]:
    """Return the kinds of programs that have an option; all for one of the command's own."""
    kinds = (kind for kind, item in _CLASSES.items() if name in item.__dataclass_fields__)
    return frozenset(kinds) or frozenset(Kind)


def kind_asked(program: str, is_module: object) -> Kind:
    """Return what a program is; modules are run as PyTorch programs are."""
    return Kind.PYTORCH if is_module else kind_of(program)


class _RunCommand(common.ProgramCommand):
    """The command, which reads options after FILE as its own if FILE is a bench."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        args = self.spelled_out(ctx, args)
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        program = values.get("program")
        if not isinstance(program, str) or kind_asked(program, values.get("module")) is Kind.BENCH:
            ctx.allow_interspersed_args = True
        else:
            args = self.in_order(ctx, args)
        try:
            return TyperCommand.parse_args(self, ctx, args)
        except Exception as error:
            # Click knows possibilities only for options that there are not, a class that Typer does
            # not show.
            name = getattr(error, "option_name", "") if hasattr(error, "possibilities") else ""
            if name.startswith("--") and ctx.allow_interspersed_args:
                told = f"; a parameter of a bench is --param {name.removeprefix('--')}=VALUE"
                error.message += told  # type: ignore[attr-defined]
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {
            "Arguments": [],
            **{t: [] for t in _TITLES.values()},
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                title = "Arguments" if is_argument else _TITLES[_kinds_with(parameter.name or "")]
                rows[title].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


@options_command(
    app,
    "run",
    cls=_RunCommand,
    context_settings={"help_option_names": []},
    epilog=f"Benches that ship with kernbench: {', '.join(known_benches())}.",
)
def _run(context: typer.Context, options: RunOptions) -> int:
    """Run a bench, a script or a PyTorch program on a machine and show where the time went.

    kernbench run gemm --machine h100-sxm -p m=4096 --no-data

    kernbench run --nproc-per-node 8 train.py --batch 16 --machine h100-sxm --save train.run

    What FILE is, its syntax tree says: a bench defines run(torch, ...) for others to call; what
    imports PyTorch is run as by torchrun; anything else is run as python FILE. Arguments of a
    program come after FILE; options of kernbench before it, or after it where the program has none
    of that name (it reads them with argparse, or reads none).
    """
    if not options.program:
        if options.show_help:
            typer.echo(context.get_help())
            return 0
        benches = ", ".join(known_benches())
        typer.echo(f"error: name a program: a Python file, or a bench: {benches}", err=True)
        return 2
    kind = kind_asked(options.program, options.module)
    if options.show_help:
        if kind is Kind.BENCH:
            return show_bench(options.program, options.debug)
        typer.echo(context.get_help())
        return 0
    _refuse_options_of_others(context, options, kind)
    values = {field.name: getattr(options, field.name) for field in fields(_CLASSES[kind])}
    if kind is Kind.BENCH:
        return run_bench(BenchOptions(**values))
    values["machine"] = options.machine or common.DEFAULT_MACHINE
    if kind is Kind.SCRIPT:
        return run_script(ScriptOptions(**values), _say_what_would_run)
    return torchrun(TorchrunOptions(**values))


def _say_what_would_run(path: Path) -> None:
    """Note that a program, which imports no PyTorch that could be seen, asks it for a GPU."""
    typer.echo(
        f"note: {path.name} asks PyTorch for a GPU, though neither it nor a module beside it "
        "imports PyTorch: it is run as a script, whose Triton kernels alone are timed; kernbench "
        f"torchrun {path.name} runs PyTorch's operations on devices, too",
        err=True,
    )


def _refuse_options_of_others(context: typer.Context, options: RunOptions, kind: Kind) -> None:
    """Refuse options that the program's kind does not have.

    Raises:
        UsageError: There is one; says what to do instead.
    """
    for name, text in given_options(context):
        if kind in _kinds_with(name):
            continue
        if not options.module and not is_readable(options.program):
            # Running it says what is wrong.
            return
        instead = _INSTEAD.get((name, kind), "see kernbench run --help")
        kinds = " and ".join(sorted(str(kind).removeprefix("a ") for kind in _kinds_with(name)))
        what = f"{options.program} is {kind}"
        if name == "args":
            raise UsageError(f"{what}, which takes no {' '.join(options.args or ())}; {instead}")
        raise UsageError(f"{text} is for a {kinds}, but {what}; {instead}")
