"""Fitted numbers say that they are fitted."""

import pytest

from kernbench.hardware import load_machine

FITTED = [
    "sip.front_end_us",
    "sip.queued_front_end_us",
    "sip.cube.hbm_short_run_efficiency",
    "sip.cube.hbm_latency_ns",
    "sip.cache.latency_ns",
    "sip.pe.gemm.efficiency",
    "sip.cache.bandwidth_gbps",
    "sip.sustained.clock_loss",
]


@pytest.mark.adr("0028-D7")
@pytest.mark.parametrize("name", ["a100-sxm-80g", "h100-sxm", "h200", "l40s"])
def test_a_preset_names_its_fitted_constants(name: str) -> None:
    sources = load_machine(name, 1).spec.sources
    assert [key for key in FITTED if not sources[key].startswith("fitted")] == []
    others = {key for key, text in sources.items() if text.startswith("fitted to measured bf16")}
    assert others <= set(FITTED)


def test_the_dearer_boards_of_a_family_differ_where_they_should() -> None:
    small, large = (load_machine(name, 1).sip for name in ("a100-sxm-40g", "a100-sxm-80g"))
    assert small.pe == large.pe
    assert small.hbm_gbps < large.hbm_gbps
