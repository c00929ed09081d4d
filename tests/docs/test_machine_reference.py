"""The reference of machine files says what the models say."""

from kernbench.hardware import MachineSpec
from tools import machine_reference


def test_the_page_is_todays() -> None:
    shown = machine_reference.PAGE.read_text(encoding="utf-8")
    assert shown == machine_reference.page(), "run: python tools/machine_reference.py --write"


def test_a_key_has_its_unit_bounds_default_and_meaning() -> None:
    page = machine_reference.page()
    assert "| `hbm_bandwidth_gbps` | GB/s | number above 0 | **required** | Peak bandwidth" in page
    assert "| `hbm_efficiency` |  | number above 0 to 1 | `1` | Share of the" in page
    assert "| `us_per_rank` | µs | number from 0 | `0` |" in page
    for key in MachineSpec.model_fields:
        assert f"| `{key}` |" in page
