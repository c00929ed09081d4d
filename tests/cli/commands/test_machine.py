"""``kernbench machine check``, ``diff`` and ``schema``."""

import json
from pathlib import Path

import pytest
import yaml

from kernbench.cli.commands.machine import check_machine, diff_machines, print_schema
from kernbench.hardware import known_machines, load_machine, machine_schema


@pytest.mark.parametrize("name", known_machines())
def test_every_preset_is_good_and_has_its_sources(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_machine(name) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: good at ")
    assert "no entry in sources" not in out


def test_numbers_without_a_source_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load_machine("ahbm", 1).spec.model_dump(mode="json")
    data["sources"] = {"sip": "assumed", "sizes": "assumed"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    assert check_machine(str(path)) == 0
    assert "links.bandwidth_gbps" in capsys.readouterr().out


def test_an_impossible_machine_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load_machine("ahbm", 1).spec.model_dump(mode="json")
    data["sip"]["cube"]["hbm_bandwidth_gbps"] = 0
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    assert check_machine(str(path)) == 2
    assert "sip.cube.hbm_bandwidth_gbps: must be above 0" in capsys.readouterr().err


def test_machines_are_compared_key_by_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff_machines("h100-sxm", "h200") == 0
    out = capsys.readouterr().out
    assert "sip.cube.hbm_bandwidth_gbps" in out
    assert "3350 -> 4800  x 1.43" in out
    assert "sip.pes_per_cube" not in out
    assert diff_machines("ahbm", "ahbm") == 0
    assert "do not differ" in capsys.readouterr().out
    assert diff_machines("ahbm", "ahmb") == 2
    assert "did you mean ahbm" in capsys.readouterr().err


def test_the_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_schema() == 0
    assert json.loads(capsys.readouterr().out) == machine_schema()
