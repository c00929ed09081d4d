"""Fitted numbers say that they are fitted, and are counted."""

import pytest

from kernbench.hardware import fitted_constants, known_machines, leaves, load_machine, source_of
from tests.cli.command_line import kernbench

GEMM = {
    "sip.front_end_us",
    "sip.queued_front_end_us",
    "sip.cube.hbm_short_run_efficiency",
    "sip.cube.hbm_latency_ns",
    "sip.pe.gemm.efficiency",
    "sip.cache.bandwidth_gbps",
    "sip.sustained.clock_loss",
}


@pytest.mark.parametrize("name", ["a100-sxm-80g", "h100-sxm", "h200", "l40s"])
def test_a_preset_names_its_fitted_constants(name: str) -> None:
    spec = load_machine(name, 1).spec
    fitted = set(fitted_constants(spec))
    assert fitted >= GEMM
    # What vendors state is never fitted.
    stated = {"sip.clock_ghz", "sip.pes_per_cube", "sip.cube.hbm_bandwidth_gbps",
              "sip.cache.capacity_mib", "links.bandwidth_gbps"}  # fmt: skip
    assert not fitted & stated
    # Where rows do not tell it from HBM's, it is not counted beside it.
    latency = "sip.cache.latency_ns"
    is_tied = source_of(spec, latency) == "tied to sip.cube.hbm_latency_ns"
    assert is_tied is (name == "l40s")
    assert (latency in fitted) is not is_tied


@pytest.mark.parametrize("name", known_machines())
def test_the_count_that_is_printed_is_that_of_numbers_whose_source_says_fitted(
    name: str,
) -> None:
    spec = load_machine(name, 1).spec
    described = dict(leaves(spec.model_dump(mode="json", exclude_defaults=True)))

    def nearest_source(key: str) -> str:
        """The longest entry that the key starts with, found the other way round."""
        fitting = [source for source in spec.sources if f"{key}.".startswith(f"{source}.")]
        return spec.sources[max(fitting, key=len)]

    marked = {
        key
        for key, value in described.items()
        if not isinstance(value, str | list | bool)
        and not key.startswith("devices")
        and nearest_source(key).startswith("fitted")
    }
    assert set(fitted_constants(spec)) == marked
    shown = kernbench("machine", "show", name).output
    said = [line for line in shown.splitlines() if "fitted to meas" in line]
    expected = f"#   {len(marked)} numbers were fitted to measurements; sources says to which"
    assert said == ([expected] if marked else [])


def test_the_dearer_boards_of_a_family_differ_where_they_should() -> None:
    small, large = (load_machine(name, 1).sip for name in ("a100-sxm-40g", "a100-sxm-80g"))
    assert small.pe == large.pe
    assert small.hbm_gbps < large.hbm_gbps


@pytest.mark.parametrize(("name", "older"), [("b300", "b200"), ("gb300", "gb200")])
def test_a_board_that_may_draw_more_runs_the_same_engines_as_fast_as_it_may(
    name: str, older: str
) -> None:
    """The oracle: power that grows with the clock and the square of its voltage."""
    clocks, swings = [], []
    for item in (older, name):
        sip = load_machine(item, 1).spec.sip
        assert sip.power is not None
        assert sip.sustained is not None
        clock = 1 / (1 + float(sip.sustained.clock_loss))
        clocks.append(clock)
        on_clock_w = float(sip.power.board_w - sip.power.idle_w - sip.power.standby_w)
        swings.append(on_clock_w / (clock * sip.power.voltage_at(clock) ** 2))
    assert clocks[0] < clocks[1] < 1
    assert swings[1] == pytest.approx(swings[0], rel=0.01)
