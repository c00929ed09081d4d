"""Numbers change in the text of a machine, and nothing else does."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernbench.accuracy.calibration.constants import constants_of, number_at
from kernbench.accuracy.rows.forms import Category
from kernbench.errors import MachineError, UsageError
from kernbench.hardware import edited, known_machines, load_machine, machine_text, parse_machine
from validation.fits.transfer import transferred

TEXT = """\
# A comment that matters.
name: mine
sip:
  clock_ghz: 1.5  # at most
  nested: {share: 0.5, name: x}
sources:
  sip: "a book"
"""


@pytest.mark.adr("0047-D4")
def test_only_the_named_numbers_change() -> None:
    new = edited(TEXT, {"sip.clock_ghz": 2, "sip.nested.share": 0.25}, {}, "mine.yaml")
    assert new == TEXT.replace("1.5", "2").replace("0.5", "0.25")


@pytest.mark.adr("0047-D4")
def test_sources_are_replaced_or_added() -> None:
    new = edited(TEXT, {}, {"sip": 'said "so"', "sip.clock_ghz": "fitted"}, "mine.yaml")
    assert yaml.safe_load(new)["sources"] == {"sip": 'said "so"', "sip.clock_ghz": "fitted"}
    assert new.startswith("# A comment that matters.\n")
    without = TEXT[: TEXT.index("sources:")]
    assert yaml.safe_load(edited(without, {}, {"sip": "x"}, "m"))["sources"] == {"sip": "x"}


@given(st.floats(1e-4, 1e9))
def test_a_number_reads_back_to_five_digits(number: float) -> None:
    new = yaml.safe_load(edited(TEXT, {"sip.clock_ghz": number}, {}, "mine.yaml"))
    assert new["sip"]["clock_ghz"] == pytest.approx(number, rel=1e-4)
    assert isinstance(new["sip"]["clock_ghz"], int | float)


@given(
    st.dictionaries(
        st.sampled_from(
            ["sip.clock_ghz", "sip.cache.mib", "sip.new", "sip.nested.y", "links", "h.a.b"]
        ),
        st.one_of(
            st.floats(0.01, 1e6), st.text("ab: #'{", max_size=5), st.lists(st.integers(0, 9))
        ),
        min_size=1,
    )
)
def test_what_is_added_or_changed_is_read_and_all_else_stays(values: dict[str, object]) -> None:
    text = TEXT.replace("sources:", "  #cache:\n  #  mib: 3\n  #new: 3\n\n# Behind.\nsources:")
    new = edited(text, values, {}, "mine.yaml")
    expected = yaml.safe_load(text)
    for path, value in values.items():
        *groups, last = path.split(".")
        group = expected
        for item in groups:
            group = group.setdefault(item, {})
        group[last] = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
    assert yaml.safe_load(new) == expected
    kept = [line for line in text.splitlines() if line.startswith("#")]
    assert [line for line in new.splitlines() if line.startswith("#")] == kept
    assert ("#new" in new) != ("sip.new" in values)


@pytest.mark.parametrize(
    ("path", "message"),
    [("sip", "sip is a group"), ("name.at.all", "name is no group, so it has no key at")],
)
def test_a_path_that_leads_nowhere_is_named(path: str, message: str) -> None:
    with pytest.raises(MachineError, match=f"mine.yaml: {message}"):
        edited(TEXT, {path: 1}, {}, "mine.yaml")


@pytest.mark.parametrize("name", known_machines())
def test_every_preset_can_be_written_with_its_own_numbers(name: str) -> None:
    text, origin = machine_text(name)
    data = yaml.safe_load(text)
    numbers = {
        constant.key: number_at(data, constant.key)
        for category in Category
        for constant in constants_of(category, data)
    }
    new = edited(text, {k: v for k, v in numbers.items() if v is not None}, {}, origin)
    assert parse_machine(new, origin, 1).spec == load_machine(name, 1).spec


@pytest.mark.adr("0047-D5")
def test_a_device_is_given_the_constants_of_another_and_keeps_its_own_vendors_numbers() -> None:
    new = parse_machine(transferred("a100-sxm-80g", "h200"), "test", 1)
    donor, target = (load_machine(name, 1) for name in ("a100-sxm-80g", "h200"))
    assert new.sip.front_end_us == donor.sip.front_end_us
    assert new.sip.pe.gemm.efficiency == donor.sip.pe.gemm.efficiency
    assert new.sip.cache is not None
    assert donor.sip.cache is not None
    assert new.sip.cache.latency_ns == donor.sip.cache.latency_ns
    assert new.sip.cube.hbm_bandwidth_gbps == target.sip.cube.hbm_bandwidth_gbps
    assert new.spec.devices == target.spec.devices
    assert new.spec.sources["sip.front_end_us"] == "fitted on a100-sxm-80g"


def test_constants_that_only_one_machine_has_are_named() -> None:
    with pytest.raises(UsageError, match=r"only one of them has .*sip\.sustained\.clock_loss"):
        transferred("ahbm", "h200")
