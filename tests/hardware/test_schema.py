"""The JSON schema of machine files, held against another reader of JSON schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from kernbench.errors import MachineError
from kernbench.hardware import known_machines, machine_schema, machine_text, parse_machine
from kernbench.hardware.spec_base import Count, Cycles, NotNegative, Positive, Share


def wrong_keys(data: dict[str, Any]) -> list[str]:
    """Return the message of everything in a machine file that the schema refuses."""
    validator = Draft202012Validator(machine_schema())
    # In JSON, as in an editor, every key is text.
    return [error.message for error in validator.iter_errors(json.loads(json.dumps(data)))]


def preset(name: str) -> dict[str, Any]:
    """Return the description of a preset, as its file has it."""
    text, _ = machine_text(name)
    described: dict[str, Any] = yaml.safe_load(text)
    return described


def test_the_schema_is_one() -> None:
    of_schemas = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    assert [error.message for error in of_schemas.iter_errors(machine_schema())] == []


@pytest.mark.parametrize("name", known_machines())
def test_every_preset_fits_the_schema(name: str) -> None:
    assert wrong_keys(preset(name)) == []


def test_what_the_loader_refuses_by_key_does_not_fit_the_schema() -> None:
    unknown = preset("ahbm")
    unknown["sip"]["cube"]["hbm_bandwith_gbps"] = 900
    missing = preset("ahbm")
    del missing["sip"]["pe"]["tcm_kib"]
    a_dtype = preset("ahbm")
    a_dtype["sip"]["pe"]["gemm"]["flops_per_clock"]["int8"] = 0
    an_override = preset("ahbm")
    an_override["sip_overrides"] = {3: {"cube": {"hbm_bandwith_gbps": 400}}}
    for data, key in (
        (unknown, "hbm_bandwith_gbps"),
        (missing, "tcm_kib"),
        (a_dtype, "less than the minimum of 1"),
        (an_override, "hbm_bandwith_gbps"),
    ):
        [message] = wrong_keys(data)
        assert key in message
        with pytest.raises(MachineError):
            parse_machine(yaml.safe_dump(data), "mine.yaml")


def test_an_override_may_leave_out_what_a_sip_needs() -> None:
    data = preset("ahbm")
    data["sip_overrides"] = {3: {"clock_ghz": 0.75, "cube": {"hbm_bandwidth_gbps": 400}}}
    assert wrong_keys(data) == []
    assert parse_machine(yaml.safe_dump(data), "mine.yaml").num_sips == max(data["sizes"])


class Numbers(BaseModel):
    positive: Positive = 1  # type: ignore[assignment]
    not_negative: NotNegative = 0  # type: ignore[assignment]
    share: Share = 1  # type: ignore[assignment]
    count: Count = 1
    cycles: Cycles = 0


@pytest.mark.parametrize("kind", Numbers.model_fields)
@pytest.mark.parametrize(
    "value", [-1, 0, 2.0**-21, 2.0**-20, 0.5, 1, 1.5, 10**7, 10**7 + 1, True, "1", None, [1]]
)
def test_the_schema_has_the_bounds_of_the_loader(kind: str, value: object) -> None:
    allowed = Draft202012Validator(Numbers.model_json_schema()).is_valid({kind: value})
    try:
        Numbers.model_validate({kind: value})
    except ValidationError:
        assert not allowed
    else:
        assert allowed


def test_every_key_has_a_meaning_and_every_default_is_one_that_loads() -> None:
    schema = machine_schema()
    validator = Draft202012Validator(schema)
    for name, group in schema["$defs"].items():
        assert group["description"], name
        for key, value in group["properties"].items():
            assert value.get("description"), f"{name}.{key} has no text under its field"
            if "default" in value:
                assert validator.evolve(schema={**value, "$defs": schema["$defs"]}).is_valid(
                    value["default"]
                ), f"{name}.{key}"
