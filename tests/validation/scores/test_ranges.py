"""Ranges of measured times: of rows that had no part in fits, and not of those scored."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernbench.hardware import load_machine
from kernbench.report import ELSEWHERE, HOST, likenesses, range_of
from kernbench.report.accuracy import range_line
from validation.scores.fits import numbers_fitted, numbers_for
from validation.scores.ranges import Observation, coverage_of, ranges_of

H100, L40S, MI300X = (likenesses(load_machine(name)) for name in ("h100-sxm", "l40s", "mi300x"))


def seen(source: str, ratios: list[float], kind: str = "norms") -> list[Observation]:
    """Rows of one machine, each a program of its own, in five folds."""
    return [
        Observation(source, index, H100, {kind: 1.0}, ratio) for index, ratio in enumerate(ratios)
    ]


@pytest.mark.adr("0250-D1")
def test_four_of_five_rows_of_a_known_spread_are_inside() -> None:
    draws = np.random.default_rng(1).lognormal(0.3, 0.25, 4000).tolist()
    (result,) = coverage_of([*seen("one", draws[:2000]), *seen("another", draws[2000:])])
    assert result.rows == 4000
    assert result.inside / result.rows == pytest.approx(0.8, abs=0.02)
    # The tenth and the ninetieth percentile of a normal law are 1.2816 deviations from its mean.
    assert result.width == pytest.approx(np.exp(2 * 1.2816 * 0.25), rel=0.05)


@pytest.mark.adr("0250-D1")
def test_a_source_has_no_part_in_the_range_that_it_is_scored_by() -> None:
    one, another = seen("one", [1.0] * 40), seen("another", [3.0] * 40)
    (result,) = coverage_of([*one, *another])
    assert (result.rows, result.inside) == (80, 0)


@pytest.mark.adr("0250-D1")
def test_a_source_alone_is_scored_by_its_other_programs() -> None:
    fold = [Observation("one", 5 * index, H100, {"norms": 1.0}, 2.0) for index in range(30)]
    others = [Observation("one", 5 * index + 1, H100, {"norms": 1.0}, 1.0) for index in range(70)]
    (result,) = coverage_of([*fold, *others])
    assert (result.rows, result.inside) == (100, 0)


@pytest.mark.adr("0287-D1")
def test_rows_of_one_program_are_one() -> None:
    """Of a hundred rows ninety are of one program, and it takes nine programs for a range."""
    programs = seen("one", [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8])
    alike = [Observation("one", 0, H100, {"norms": 1.0}, 1.0) for _ in range(90)]
    rows, *ends = ranges_of([*programs, *alike])["h100-sxm"]["norms"]
    assert (rows, ends) == (99, [1.0, 1.8])
    assert "norms" not in ranges_of([*programs[:8], *alike]).get("h100-sxm", {})


@pytest.mark.adr("0287-D2")
@pytest.mark.parametrize(("machines", "programs"), [(1, 30), (24, 6)])
def test_four_of_five_rows_of_a_new_source_or_machine_are_inside(
    machines: int, programs: int
) -> None:
    """What is new is off by itself, as far as others are, however many rows each of them has."""
    rng = np.random.default_rng(2)
    rows = [
        Observation(f"{number}", number * 40 + index, (f"chip{number % machines}", "sm*", "*"),
                    {"norms": 1.0}, float(np.exp(shift + 0.1 * rng.normal())))
        for number, shift in enumerate(0.3 * rng.normal(size=24))
        for index in range(programs)
    ]  # fmt: skip
    results = coverage_of(rows)
    inside = sum(it.inside for it in results) / sum(it.rows for it in results)
    assert inside == pytest.approx(0.8, abs=0.05)


@pytest.mark.adr("0287-D2")
def test_what_is_unlike_all_rows_has_a_wider_range() -> None:
    ratios = np.exp(np.random.default_rng(3).normal(0.0, 0.1, (4, 40)))
    rows = [
        Observation("one", index, like, {kind: 1.0}, ratio * np.exp(shift))
        for values, shift, like, kind in zip(
            ratios, (-0.4, -0.1, 0.1, 0.4), (H100, L40S) * 2, ("norms",) * 2 + ("scans",) * 2,
            strict=True,
        )
        for index, ratio in enumerate(values)
    ]  # fmt: skip
    ranges = ranges_of(rows)
    widths = []
    other_chip = likenesses(load_machine("t4"))
    for kind, like in (("norms", H100), ("norms", other_chip), ("by bytes alone", H100)):
        result = range_of(1.0, {kind: 1.0}, like, ranges)
        assert result is not None
        widths.append(result["high_ns"] / result["low_ns"])
    assert widths[0] < widths[1] < widths[2]


@pytest.mark.adr("0287-D4")
def test_a_kind_that_fits_alone_have_seen_has_its_spread_and_all_that_sources_differ_by() -> None:
    rng = np.random.default_rng(4)
    unseen = [
        Observation(f"{number}", 50 * number + index, H100, {"norms": 1.0}, float(ratio))
        for number, shift in enumerate(0.2 * rng.normal(size=12))
        for index, ratio in enumerate(np.exp(shift + 0.05 * rng.normal(size=20)))
    ]
    fitted = [
        Observation("fitted", index, H100, {kind: 1.0}, float(ratio), seen=True)
        for kind in ("norms", "moe")
        for index, ratio in enumerate(np.exp(0.05 * rng.normal(size=60)))
    ]
    ranges = ranges_of([*unseen, *fitted])
    assert ranges["h100-sxm"]["norms"] == ranges_of(unseen)["h100-sxm"]["norms"]
    for name in ("h100-sxm", "sm*", ELSEWHERE):
        _, low, high = ranges[name]["moe"]
        # Of the law that sources follow, whose shifts were no part of these rows.
        assert math.log(high / low) == pytest.approx(2 * 1.2816 * math.hypot(0.2, 0.05), rel=0.35)
    (result,) = coverage_of([*unseen, *fitted])
    assert (result.kind, result.rows) == ("norms", 240)


@pytest.mark.adr("0287-D3")
def test_what_is_like_no_chip_that_was_measured_has_no_range_of_theirs() -> None:
    chip = likenesses(load_machine("wormhole-like"))
    assert chip == ("wormhole-like",)
    ranges = ranges_of(seen("one", [1.0] * 40))
    result = range_of(1.0, {"norms": 1.0}, chip, ranges)
    assert result is not None
    assert (result["low_ns"], result["high_ns"]) == (0.5, 2.0)
    assert range_line(result).endswith("norms -50 to +100 % (100 % of the time; assumed)")
    own = [Observation("two", index, chip, {"norms": 1.0}, 3.0) for index in range(40)]
    result = range_of(1.0, {"norms": 1.0}, chip, ranges_of(own))
    assert result is not None
    assert result["high_ns"] == 3.0


@pytest.mark.adr("0250-D4")
def test_the_host_of_one_source_is_no_range_of_a_boards_hosts() -> None:
    one = seen("one", [1.0] * 40, HOST)
    elsewhere = [
        Observation("another", index, L40S, {HOST: 1.0}, ratio)
        for index, ratio in enumerate((0.5, 2.0) * 20)
    ]
    alone = ranges_of([*one, *elsewhere])
    assert HOST not in alone.get("h100-sxm", {})
    result = range_of(100.0, {HOST: 1.0}, H100, alone)
    assert result is not None
    assert (result["low_ns"], result["high_ns"]) == pytest.approx((50.0, 200.0))
    several = ranges_of([*one, *seen("another", [1.2] * 40, HOST), *elsewhere])
    rows, low, high = several["h100-sxm"][HOST]
    assert rows == 80
    assert 0.8 < low < 1.0 < 1.2 < high < 1.5


@pytest.mark.adr("0250-D3")
def test_kinds_add_up_by_their_shares_of_the_time() -> None:
    ranges = {ELSEWHERE: {ELSEWHERE: (30, 0.5, 2.0), "gemm": (30, 0.9, 1.1)}}
    result = range_of(200.0, {"gemm": 3.0, "scans": 1.0}, H100, ranges)
    assert result is not None
    assert result["low_ns"] == pytest.approx(200 * (0.75 * 0.9 + 0.25 * 0.5))
    assert result["high_ns"] == pytest.approx(200 * (0.75 * 1.1 + 0.25 * 2.0))
    assert [(item["kind"], item["share"]) for item in result["kinds"]] == [
        ("gemm", 0.75),
        ("scans", 0.25),
    ]


@pytest.mark.adr("0251-D1")
def test_sources_that_numbers_name_have_had_a_part() -> None:
    h200, l40s = load_machine("h200"), load_machine("l40s")
    assert numbers_for("aic-gemm", h200)
    assert numbers_for("aic-gemm", l40s) >= 3
    assert numbers_for("aic-nccl", h200), "its files name the table"
    assert not numbers_for("kernelbench", load_machine("h100-sxm"))
    assert numbers_for("kernelbench", l40s), "its host and its clock are"
    assert not numbers_for("aic", l40s), "a part of a name is none"
    assert numbers_fitted("kernelbench", "any", "sm89"), "a family of kernels by itself"


@pytest.mark.adr("0287-D2")
def test_machines_count_alike_however_many_rows_they_have() -> None:
    """Nine rows of ten are of one machine, and half of the range is of the other."""
    few = [Observation("one", index, L40S, {"norms": 1.0}, 3.0) for index in range(20)]
    many = [Observation("one", 20 + index, H100, {"norms": 1.0}, 1.0) for index in range(180)]
    rows, low, high = ranges_of([*few, *many])["sm*"]["norms"]
    assert rows == 200
    assert low <= 1.0 < 3.0 <= high
    alone = ranges_of([*few[:5], *many])["h100-sxm"]["norms"]
    assert alone == (180, 1.0, 1.0)


@pytest.mark.adr("0287-D2")
def test_a_machine_without_rows_is_like_its_makers_before_it_is_like_all() -> None:
    """Of 20 rows of NVIDIA's and 20 of AMD's, each other machine has those of its own maker."""
    rows = [
        Observation("one", index, like, {"norms": 1.0}, ratio)
        for like, ratio in ((L40S, 1.5), (MI300X, 9.0))
        for index in range(20)
    ]
    ranges = ranges_of(rows)
    for like, ratio in ((H100, 1.5), (likenesses(load_machine("mi210")), 9.0)):
        result = range_of(1.0, {"norms": 1.0}, like, ranges)
        assert result is not None
        assert result["kinds"][0]["rows"] == 20
        assert math.sqrt(result["low_ns"] * result["high_ns"]) == pytest.approx(ratio, rel=0.01)
    result = range_of(1.0, {"norms": 1.0}, ("another", "xe*", ELSEWHERE), ranges)
    assert result is not None
    assert result["low_ns"] < 1.5 < 9.0 < result["high_ns"]
