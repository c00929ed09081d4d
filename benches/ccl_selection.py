"""Which algorithm and protocol does a machine take for which message, and what would others take?

Per op, group and message size: the choice, who made it (NCCL's table or the modeled time), and the
modeled time of every way on idle links. With --machine any machine can be asked.
"""

from kernbench.links import Asked, Choice, Selector
from kernbench.runtime_api import RuntimeContext

RANKS = 8


def run(
    torch: RuntimeContext,
    ops: tuple[str, ...] = ("all_reduce", "all_gather", "all_to_all"),
    world_sizes: tuple[int, ...] = (8,),
    sizes_kib: tuple[int, ...] = (1, 32, 1024, 32768),
    show_refused: bool = False,
) -> None:
    """Print a table per op and world size; the choice is marked with an asterisk."""
    selector = Selector(torch.machine)
    for op in ops:
        for ranks in world_sizes:
            print(f"{op}, {ranks} ranks of {torch.machine.name}: modeled us by KiB of the message")
            print_table(selector, op, ranks, sizes_kib, show_refused)


def print_table(
    selector: Selector, op: str, ranks: int, sizes_kib: tuple[int, ...], show_refused: bool
) -> None:
    sips = tuple(range(ranks))
    cells: dict[str, list[str]] = {}
    by: list[str] = []
    for size_kib in sizes_kib:
        asked = Asked(op, ranks, size_kib * 512, 2)
        chosen = selector.choose(asked, sips)
        by.append(chosen.chosen_by)
        for item in selector.table(asked, sips):
            mark = "*" if name(item) == name(chosen) else " "
            text = "-" if item.time_ps is None else f"{item.time_ps / 1e6:.2f}{mark}"
            cells.setdefault(name(item), []).append(text)
            if item.why_not and show_refused:
                print(f"  {size_kib} KiB: {name(item)} {item.why_not}")
    print(f"{'':28}" + "".join(f"{size_kib:>13}" for size_kib in sizes_kib))
    for label, row in cells.items():
        if set(row) != {"-"}:
            print(f"{label:28}" + "".join(f"{cell:>13}" for cell in row))
    print(f"{'chosen by':28}" + "".join(f"{entry:>13}" for entry in by))


def name(choice: Choice) -> str:
    return f"{choice.algorithm}/{choice.protocol}" if choice.protocol else choice.algorithm
