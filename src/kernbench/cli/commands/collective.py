"""``kernbench collective``: a collective's schedule and its time, before it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from kernbench.cli import options as common
from kernbench.cli.registry import Listing, options_command
from kernbench.errors import UnknownNameError, UsageError, nearest

if TYPE_CHECKING:
    from kernbench.links import Choice

_ITEM_BYTES = 2
_SIZE = re.compile(r"(\d+)\s*(?:([kmg])(?:i?b)?|b)?", re.IGNORECASE)
_PREFIXES = {"k": 10, "m": 20, "g": 30}
_MOST_GIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class CollectiveOptions(common.CommandOptions):
    """What ``kernbench collective show`` was given."""

    op: str = common.argument(..., metavar="OP", help="all_reduce, all_to_all, ...")
    machine: common.Machine = common.DEFAULT_MACHINE
    ranks: common.FirstRanks = None
    size: str = common.option("1MiB", metavar="BYTES", help="The message, like 4096, 64K or 1MiB.")
    algorithm: str = common.option("auto", metavar="NAME", help="An algorithm.")
    protocol: str = common.option("auto", metavar="NAME", help="One of the machine's.")
    steps: int = common.option(32, min=0, help="How many steps to print.")


@dataclass(frozen=True, kw_only=True)
class ExpertsOptions(common.CommandOptions):
    """What ``kernbench collective experts`` was given."""

    kernel: str = common.argument(..., metavar="KERNEL", help="deepep_dispatch, ...")
    machine: common.Machine = "h200"
    ranks: common.FirstRanks = None
    tokens: int = common.option(4096, help="Tokens of each rank.")
    hidden: int = common.option(7168, help="Elements of a token.")
    item_bytes: float = common.option(2.0, help="Bytes of an element, with its scale.")
    topk: int = common.option(8, help="Experts that a token chooses.")
    experts: int = common.option(256, help="Experts of all ranks.")
    pes: int | None = common.option(None, help="PEs that copy, where a kernel is given.")


PLACE = 80
app = typer.Typer(
    name="collective",
    help="Look into a collective before it runs.",
    no_args_is_help=True,
    cls=Listing,
)


@options_command(app, "show")
def _show_collective(context: typer.Context, options: CollectiveOptions) -> int:
    """Show a collective's algorithm, its modeled time, its bound, and its schedule step by step.

    kernbench collective show all_reduce --machine h100-sxm --ranks 8 --size 64M

    The message is as nccl-tests counts it, in elements of 2 bytes; of one rank for all_to_all. The
    bench ccl_selection prints what every other way would take.
    """
    from kernbench.collectives import known_ops
    from kernbench.hardware import load_machine
    from kernbench.links import Asked, Selector
    from kernbench.report import format_amount, format_ns

    if options.op not in known_ops():
        raise UnknownNameError(
            f"unknown collective {options.op!r}: {nearest(options.op, known_ops())}"
        )
    machine = load_machine(options.machine, options.ranks)
    ranks = 2 if options.op == "send_recv" else options.ranks or machine.num_sips
    size = 0 if options.op == "barrier" else parse_size(options.size)
    asked = Asked(options.op, ranks, size // _ITEM_BYTES, _ITEM_BYTES)
    sips = tuple(range(ranks))
    selector = Selector(machine)
    chosen = selector.choose(asked, sips, options.algorithm, options.protocol)
    time_ps, least_ps = selector.bracket(asked, sips, chosen)
    schedule = chosen.build(asked)
    print(f"{options.op} of {_binary(size)} by {ranks} ranks of {machine.name}")
    said = {"name": "as asked", "only one": "the only way", "nccl": "NCCL's choice"}
    reason = said.get(chosen.chosen_by, f"chosen by {chosen.chosen_by}")
    print(f"  {_way(chosen)}, {reason}")
    print(f"  {format_ns(time_ps / 1e3)} on idle links", end="")
    sent = int(schedule.sent_bytes().max(initial=0))
    if sent:
        print(f", which allow no less than {format_ns(least_ps / 1e3)} for this schedule")
        print(f"  a rank sends {format_amount(sent, 'B')} at most", end="")
    print()
    print()
    print(schedule.describe(options.steps))
    return 0


@options_command(app, "experts")
def _show_experts(context: typer.Context, options: ExpertsOptions) -> int:
    """Say how long a library's exchange of experts' rows takes among ranks on idle links.

    kernbench collective experts deepep_dispatch --machine h200 --tokens 4096
    """
    from kernbench.hardware import load_machine
    from kernbench.links import ExpertExchange, exchange_kernel, exchange_ps
    from kernbench.report import format_ns

    machine = load_machine(options.machine, options.ranks)
    ranks = options.ranks or machine.num_sips
    kernel = exchange_kernel(machine, options.kernel, ranks)
    exchange = ExpertExchange(
        tokens=options.tokens,
        row_bytes=options.hidden * options.item_bytes,
        topk=options.topk,
        experts=options.experts,
        ranks=ranks,
        pes=options.pes,
        gathers="combine" in options.kernel,
    )
    time_ps = exchange_ps(machine, exchange, kernel)
    print(f"{options.kernel} of {options.tokens} tokens a rank by {ranks} ranks of {machine.name}")
    print(f"  {format_ns(time_ps / 1e3)} on idle links; constants: {kernel.source}")
    return 0


def parse_size(text: str) -> int:
    """Return the number of bytes in ``64M``, ``1KiB`` or ``4096``; prefixes are binary.

    Raises:
        UsageError: It is not a whole number of 2-byte elements, or is more than any memory holds.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"a size is like 4096, 64K, 1MiB or 2G, but got {text!r}")
    size = int(match[1]) << _PREFIXES.get((match[2] or "").lower(), 0)
    if size % _ITEM_BYTES:
        raise UsageError(f"a size must be even, of {_ITEM_BYTES}-byte elements, but got {size}")
    if size > _MOST_GIB << 30:
        raise UsageError(f"a size must be at most {_MOST_GIB}G, but got {text!r}")
    return size


def _binary(size: int) -> str:
    for prefix, bits in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if size and size % (1 << bits) == 0:
            return f"{size >> bits} {prefix}B"
    return f"{size} B"


def _way(chosen: Choice) -> str:
    protocol = f" in protocol {chosen.protocol}" if chosen.protocol else ""
    return chosen.algorithm + protocol
