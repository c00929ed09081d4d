"""Mistakes planted in random kernels: the sanitizer names the line, and is silent about the twin.

    python -m tests.integration.planted_mistakes [--first SEED] [--count N] [KIND ...]

runs a campaign and prints the seeds, and the source, of kernels in which a mistake was not found,
was found elsewhere, or where the twin without it was not silent.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import kernbench
from kernbench import errors
from tests.integration.random_kernels import (
    INPUT_SIZE,
    NUM_INPUTS,
    SLOT,
    Choose,
    Kernel,
    generate,
    inputs,
    loaded,
)

GRID = (3, 2)
"""Several programs: races need them, and a random kernel may let some return."""
PLANTED = 4096
"""Elements of the tensor that planted lines store to; each program has a part."""
PART = PLANTED // (GRID[0] * GRID[1])


@dataclass(frozen=True)
class Mistake:
    """Lines with a mistake and without, and how the sanitizer says it of the line marked ``#!``."""

    buggy: tuple[str, ...]
    correct: tuple[str, ...]
    said: type[Exception]
    words: str = ""


Plant = Callable[[Choose], Mistake]
KINDS: dict[str, Plant] = {}


def kind(plant: Plant) -> Plant:
    """Register a kind of mistake under the function's name."""
    KINDS[plant.__name__] = plant
    return plant


MINE = f"planted + (pid * {GRID[1]} + qid) * {PART}"
LANES = "m = tl.arange(0, 32)"


def swapped(
    before: tuple[str, ...], wrong: str, right: str, after: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return lines that differ in one."""
    return (*before, wrong, *after), (*before, right, *after)


def mixed(choose: Choose, value: str) -> str:
    """Return an expression of 32 elements in which every element that is undefined stays so."""
    for _ in range(choose(4)):
        value = (
            f"({value} * 2 + 1)",
            f"tl.maximum({value}, m)",
            f"tl.where(m % 2 == 0, {value}, -{value})",
            f"tl.reshape(tl.trans(tl.reshape({value}, [4, 8])), [32])",
            f"tl.flip({value}, 0)",
            f"tl.abs({value} + tl.load(x1 + m))",
            f"tl.sum(tl.broadcast_to({value}[:, None], [32, 16]), 1)",
        )[choose(7)]
    return value


def masked(choose: Choose) -> tuple[str, str]:
    """Return a load with lanes that are masked off, and the same with an ``other=``."""
    most = (11, "N // 2", 31)[choose(3)]
    load = f"v = tl.load(x{choose(NUM_INPUTS)} + m, mask=m < {most}"
    return f"{load})", f"{load}, other={choose(3)})"


@kind
def stored_masked_lanes(choose: Choose) -> Mistake:
    wrong, right = masked(choose)
    lines = (f"tl.store({MINE} + m, {mixed(choose, 'v')})  #!",)
    return Mistake(*swapped((LANES,), wrong, right, lines), errors.UndefinedValueError)


@kind
def summed_masked_lanes(choose: Choose) -> Mistake:
    wrong, right = masked(choose)
    how = ("tl.sum", "tl.max", "tl.min")[choose(3)]
    lines = (f"tl.store({MINE}, {how}({mixed(choose, 'v')}, 0))  #!",)
    return Mistake(*swapped((LANES,), wrong, right, lines), errors.UndefinedValueError)


@kind
def multiplied_masked_lanes(choose: Choose) -> Mistake:
    wrong, right = masked(choose)
    lines = (
        f"w = tl.broadcast_to({mixed(choose, 'v')}[None, :], [16, 32])",
        "w = tl.dot(w, tl.load(x0 + m[:, None] * 16 + tl.arange(0, 16)[None, :]))",
        "at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]",
        f"tl.store({MINE} + at, w)  #!",
    )
    return Mistake(*swapped((LANES,), wrong, right, lines), errors.UndefinedValueError)


@kind
def mask_of_masked_lanes(choose: Choose) -> Mistake:
    wrong, right = masked(choose)
    lines = (f"tl.store({MINE} + m, 1.0, mask={mixed(choose, 'v')} > 0)  #!",)
    return Mistake(*swapped((LANES,), wrong, right, lines), errors.UndefinedValueError, "is masked")


@kind
def address_of_masked_lanes(choose: Choose) -> Mistake:
    load = f"v = tl.load(index + m, mask=m < {(11, 31)[choose(2)]}"
    lines = (f"tl.store({MINE} + m, tl.load(x0 + v * {1 + choose(3)}))  #!",)
    result = swapped((LANES,), f"{load})", f"{load}, other=0)", lines)
    return Mistake(*result, errors.UndefinedValueError, "undefined address")


@kind
def branch_on_masked_lanes(choose: Choose) -> Mistake:
    wrong, right = masked(choose)
    how = ("tl.sum", "tl.max", "tl.min")[choose(3)]
    lines = (
        f"if {how}({mixed(choose, 'v')}, 0) > {choose(5)}:  #!",
        f"    tl.store({MINE}, 1.0)",
    )
    result = swapped((LANES,), wrong, right, lines)
    return Mistake(*result, errors.UndefinedValueError, "is decided by")


@kind
def turns_by_a_masked_scalar(choose: Choose) -> Mistake:
    load = "c = tl.load(index + pid, mask=pid < 0"
    lines = (
        "total = 0.0",
        f"for turn in range(c % {2 + choose(3)}):  #!",
        "    total += turn",
        f"tl.store({MINE}, total)",
    )
    result = swapped((), f"{load})", f"{load}, other=1)", lines)
    return Mistake(*result, errors.UndefinedValueError, "is decided by")


@kind
def read_of_unwritten(choose: Choose) -> Mistake:
    how = mixed(choose, "v")
    at = (f"tl.load(fresh + m + {choose(900)})  #!", "tl.load(fresh + m + 1024)")
    lines = (f"tl.store({MINE} + m, {how})",)
    result = swapped((LANES,), f"v = {at[0]}", f"v = {at[1]}", lines)
    return Mistake(*result, errors.UninitializedReadError, "which nothing has written")


@kind
def unwritten_not_dropped(choose: Choose) -> Mistake:
    load = f"v = tl.load(fresh + {1024 - 16} + m)  #!"
    how = mixed(choose, "v")
    lines = (f"tl.store({MINE} + m, {how})",)
    result = swapped((LANES, load), "v += 1", "v = tl.where(m >= 16, v, 0.0)", lines)
    return Mistake(*result, errors.UninitializedReadError, "which nothing has written")


@kind
def read_out_of_bounds(choose: Choose) -> Mistake:
    limit = INPUT_SIZE - choose(31)
    where = ("", "tl.load(index + m) * 0 + ")[choose(2)]
    wrong, right = (f"v = tl.load(x0 + {where}m + {start})  #!" for start in (limit, 7))
    result = swapped((LANES,), wrong, right, (f"tl.store({MINE} + m, v)",))
    return Mistake(*result, errors.OutOfBoundsError, "reads")


@kind
def write_out_of_bounds(choose: Choose) -> Mistake:
    where = ("", "tl.load(index + m) * 0 + ")[choose(2)]
    outside = (f"planted + {PLANTED - choose(31)}", f"planted - {1 + choose(20)}")[choose(2)]
    wrong, right = (f"tl.store({place} + {where}m, 1.0)  #!" for place in (outside, MINE))
    return Mistake(*swapped((LANES,), wrong, right, ()), errors.OutOfBoundsError, "writes")


@kind
def programs_write_one_place(choose: Choose) -> Mistake:
    where = ("planted", "planted + qid * 32", "planted + pid // 2 * 32")[choose(3)]
    value = ("m", "m + pid", "1.0")[choose(3)]
    wrong, right = (f"tl.store({place} + m, {value})  #!" for place in (where, MINE))
    return Mistake(*swapped((LANES,), wrong, right, ()), errors.DataRaceError)


@kind
def programs_read_what_others_write(choose: Choose) -> Mistake:
    store = f"tl.store({MINE} + m, m)"
    there = f"planted + ((pid + 1) % {GRID[0]} * {GRID[1]} + qid) * {PART}"
    wrong, right = (f"v = tl.load({place} + m)  #!" for place in (there, MINE))
    lines = (f"tl.store({MINE} + 64 + m, v)",)
    order = [store, "LOAD"] if choose(2) else ["LOAD", store]
    before, after = ((order[0],), ()) if order[1] == "LOAD" else ((), (order[1],))
    result = swapped((LANES, *before), wrong, right, (*after, *lines))
    # Either line may be the one that is named first.
    return Mistake(*result, errors.DataRaceError)


@kind
def plain_write_beside_atomics(choose: Choose) -> Mistake:
    atomic = f"tl.atomic_add(planted + {choose(64)} + m, 1.0)"
    place = (f"planted + {choose(64)}", f"{MINE} + 128")
    wrong, right = (f"tl.store({item} + m, 1.0)  #!" for item in place)
    return Mistake(*swapped((LANES, atomic), wrong, right, ()), errors.DataRaceError)


@kind
def lanes_on_one_element(choose: Choose) -> Mistake:
    share = 2 + choose(3)
    where = (f"m // {share}", f"m % {8 * share}" if share < 4 else "m % 16", f"m * 0 + {share}")
    at = where[choose(3)]
    wrong, right = f"tl.store({MINE} + {at}, m)  #!", f"tl.store({MINE} + {at}, {at} + 1)  #!"
    return Mistake(*swapped((LANES,), wrong, right, ()), errors.DataRaceError, "which one stays")


@kind
def lanes_that_data_sends_to_one_element(choose: Choose) -> Mistake:
    load = "at = tl.load(index + m)"
    value = ("m", "tl.load(x2 + m) + m * 8")[choose(2)]
    wrong, right = (f"tl.store({MINE} + {at}, {value})  #!" for at in ("at", "at * 32 + m"))
    return Mistake(*swapped((LANES, load), wrong, right, ()), errors.DataRaceError, "by lanes")


@kind
def overflow_in_an_address(choose: Choose) -> Mistake:
    data = choose(2)
    row = "tl.load(index + m) + 2" if data else "pid + qid + 2"
    wrong, right = "o = r * 1073741824  #!", "o = (r * 1073741824) & 31"
    lines = (f"tl.store({MINE} + m, tl.load(x0 + {'o' if data else 'o + m'}))",)
    return Mistake(
        *swapped((LANES, f"r = {row}"), wrong, right, lines), errors.AddressOverflowError
    )


@kind
def nan_from_numbers(choose: Choose) -> Mistake:
    before = (LANES, f"v = tl.load(x{choose(NUM_INPUTS)} + m)", "v = v - v")
    wrong, right = "v = v / v  #!", "v = v / (v + 1)  #!"
    # Not mixed: a maximum takes the number, and NaN is gone.
    lines = (f"tl.store({MINE} + m, v * {1 + choose(3)})",)
    return Mistake(*swapped(before, wrong, right, lines), errors.NonFiniteWarning)


@kind
def float_that_no_integer_holds(choose: Choose) -> Mistake:
    load = f"v = tl.load(x{choose(NUM_INPUTS)} + m)"
    dtype, limit = (("tl.int32", "3e9"), ("tl.int8", "300.0"), ("tl.int32", "-3e9"))[choose(3)]
    wrong, right = (f"w = (v + {item}).to({dtype})  #!" for item in (limit, "5.0"))
    result = swapped((LANES, load), wrong, right, (f"tl.store({MINE} + m, w)",))
    return Mistake(*result, errors.ConversionWarning)


@kind
def element_that_is_not_there(choose: Choose) -> Mistake:
    load = f"v = tl.load(x{choose(NUM_INPUTS)} + m)"
    wrong = ("m + 1", "m - 1", "tl.load(index + m) * 40", "31 + m * 0 + pid")[choose(4)]
    by = swapped(
        (LANES, load), f"w = tl.gather(v, {wrong}, 0)  #!", "w = tl.gather(v, 31 - m, 0)", ()
    )
    lines = (f"tl.store({MINE} + m, w)",)
    result = tuple((*item, *lines) for item in by)
    if wrong.startswith("31"):
        # Only programs behind the first choose what is not there.
        return Mistake(result[0], result[1], errors.OutOfBoundsError, "chooses element 32")
    return Mistake(result[0], result[1], errors.OutOfBoundsError, "chooses element")


@kind
def value_beyond_the_bins(choose: Choose) -> Mistake:
    bins = (8, 16)[choose(2)]
    mask = f", mask=m < {bins}"
    wrong, right = (f"w = tl.histogram(m, {bins}{item})  #!" for item in ("", mask))
    lines = (f"tl.store({MINE} + tl.arange(0, {bins}), w)",)
    return Mistake(*swapped((LANES,), wrong, right, lines), errors.OutOfBoundsError, "counts")


@kind
def divided_by_zero(choose: Choose) -> Mistake:
    op = ("//", "%")[choose(2)]
    by = ("tl.load(index + m) * 0", "m - 3", "pid + m * 0", "pid")[choose(4)]
    line = f"w = (m + 1) {op} (tl.maximum({by}, 1))"
    before = (LANES, "") if choose(2) else (LANES,)
    result = swapped(before, f"w = (m + 1) {op} ({by})", line, (f"tl.store({MINE} + m, w)  #!",))
    return Mistake(*result, errors.UndefinedValueError, "by 0")


@kind
def shifted_out_of_the_number(choose: Choose) -> Mistake:
    op = ("<<", ">>")[choose(2)]
    load = "a = tl.minimum(tl.load(index + m), 0)"
    wrong, right = f"w = m {op} (a + {32 + choose(3)})", f"w = m {op} (a + {choose(32)})"
    lines = (f"tl.store({MINE} + m, w)  #!",)
    return Mistake(
        *swapped((LANES, load), wrong, right, lines), errors.UndefinedValueError, "shifts"
    )


@kind
def wrong_multiple(choose: Choose) -> Mistake:
    first = 1 + choose(7)
    of = ("", "tl.load(index + m) * 0 + ")[choose(2)]
    wrong, right = (f"at = tl.multiple_of({of}m + {item}, 8)  #!" for item in (first, 8 * first))
    lines = (f"tl.store({MINE} + m, tl.load(x0 + at))",)
    return Mistake(*swapped((LANES,), wrong, right, lines), errors.WrongHintError, "multiple_of")


@kind
def wrong_run(choose: Choose) -> Mistake:
    wrong, right = (f"at = tl.max_contiguous(m {name}, 32)  #!" for name in ("* 3", "+ 3"))
    if choose(2):
        wrong, right = (f"at = tl.max_constancy(m // {number}, 4)  #!" for number in (2, 4))
    lines = (f"tl.store({MINE} + m, tl.load(x0 + at))",)
    return Mistake(*swapped((LANES,), wrong, right, lines), errors.WrongHintError, "tl.max_con")


@kind
def wrong_assumption(choose: Choose) -> Mistake:
    of = ("pid", "tl.load(index)")[choose(2)]
    wrong, right = f"tl.assume({of} > {5 + choose(9)})  #!", f"tl.assume({of} >= 0)  #!"
    lines = (f"tl.store({MINE} + m, m)",)
    return Mistake(*swapped((LANES,), wrong, right, lines), errors.WrongHintError, "tl.assume")


@kind
def plain_load_beside_atomics(choose: Choose) -> Mistake:
    atomic = "tl.atomic_add(planted + m, 1.0)"
    wrong, right = (f"v = tl.load({place} + m)  #!" for place in ("planted", MINE + " + 64"))
    lines = (f"tl.store({MINE} + 128 + m, v)",)
    return Mistake(*swapped((LANES, atomic), wrong, right, lines), errors.DataRaceError)


@kind
def atomics_of_their_programs(choose: Choose) -> Mistake:
    place = ("planted", "planted + qid * 32")[choose(2)]
    wrong, right = (
        f"tl.atomic_add({place} + m, 1.0, scope={scope!r})  #!" for scope in ("cta", "gpu")
    )
    return Mistake(*swapped((LANES,), wrong, right, ()), errors.DataRaceError, 'scope="cta"')


@kind
def old_value_of_masked_atomics(choose: Choose) -> Mistake:
    most = (11, 31)[choose(2)]
    atomic = f"v = tl.atomic_add({MINE} + m, 1.0, mask=m < {most})"
    wrong, right = "w = v + 1", f"w = tl.where(m < {most}, v, 0.0)"
    lines = (f"tl.store({MINE} + 64 + m, w)  #!",)
    return Mistake(*swapped((LANES, atomic), wrong, right, lines), errors.UndefinedValueError)


@kind
def rows_that_no_descriptor_has(choose: Choose) -> Mistake:
    wrong, right = (
        f"d = tl.make_tensor_descriptor(x0, [8, 16], [tl.num_programs(0) + {item}, 1], [8, 16])  #!"
        for item in (14 + choose(3), 17)
    )
    at = "tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :]"
    lines = (f"tl.store({MINE} + {at}, d.load([0, 0]))",)
    return Mistake(*swapped((LANES,), wrong, right, lines), errors.UsageError, "multiple of 16")


def planted(seed: int, name: str) -> tuple[Kernel, Kernel, Mistake, int]:
    """Return a random kernel with a mistake, its twin, the mistake and the number of its line."""
    choose = random.Random(seed).randrange
    kernel = generate(choose)
    mistake = KINDS[name](choose)
    lines = kernel.source.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("    qid")) + 1
    places = [
        i
        for i in range(first, len(lines) + 1)
        if i == len(lines) or (lines[i].startswith("    ") and lines[i][4] not in " e")
    ]
    at = places[choose(len(places))]
    head = lines.index(next(line for line in lines if line.startswith("def kernel(")))
    lines[head] = lines[head].replace("shared,", "shared, planted, fresh,")
    result = []
    for inserted in (mistake.buggy, mistake.correct):
        text = [*lines[:at], *(f"    {line}" for line in inserted), *lines[at:], ""]
        result.append(Kernel("\n".join(text), GRID, kernel.scalars, kernel.num_slots))
    number = 1 + next(i for i, line in enumerate(result[0].source.splitlines()) if "#!" in line)
    return result[0], result[1], mistake, number


def run_checked(kernel: Kernel, folder: Path) -> list[str]:
    """Run a kernel under the sanitizer; return the warnings, with their categories.

    Raises:
        KernbenchError: What the sanitizer refuses.
    """
    arrays = inputs(20)
    arrays["index"][:2] = 3
    arrays["out"] = np.zeros(max(kernel.num_slots, 1) * 16 * SLOT, np.float32)
    arrays["shared"] = np.zeros(256, np.float32)
    arrays["planted"] = np.zeros(PLANTED, np.float32)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with kernbench.RuntimeContext(check=True) as torch:
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            # Its second half is written.
            fresh = torch.empty(2048, name="fresh")
            fresh[1024:].fill_(1)
            loaded(kernel, folder)[kernel.grid](**tensors, fresh=fresh, **kernel.scalars)
    return [f"{item.category.__name__}: {item.message}" for item in warned]


def missed(seed: int, name: str, folder: Path) -> str:
    """Return what is wrong about a planted mistake and its twin; "" if nothing is."""
    buggy, correct, mistake, line = planted(seed, name)
    try:
        said = " ".join(run_checked(buggy, folder))
    except errors.KernbenchError as error:
        said = f"{type(error).__name__}: {error}"
    for word in (mistake.said.__name__, f"random_kernel.py:{line}", mistake.words):
        if word not in said:
            return f"{name}: {word!r} is not in {said!r}\n{buggy.source}"
    try:
        said = " ".join(run_checked(correct, folder))
    except errors.KernbenchError as error:
        said = f"{type(error).__name__}: {error}"
    return f"{name}: the twin is not silent: {said}\n{correct.source}" if said else ""


def main() -> int:
    """Run a campaign and return how many mistakes were not found as they should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=200, metavar="N")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    options = parser.parse_args()
    unknown = set(options.kinds) - set(KINDS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    kinds = options.kinds or list(KINDS)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="kernbench-planted-") as folder:
        for seed in range(options.first, options.first + options.count):
            name = kinds[seed % len(kinds)]
            try:
                said = missed(seed, name, Path(folder))
            except Exception:
                said = traceback.format_exc()
            if said:
                wrong += 1
                print(f"seed {seed}: {said}")
    count = options.count - wrong
    print(
        f"{count} of {options.count} planted mistakes were found, {len(kinds)} kinds, twins silent"
    )
    return min(wrong, 100)


if __name__ == "__main__":
    raise SystemExit(main())
