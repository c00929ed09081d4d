"""The JSON schema of a machine file, by which editors complete, explain and check its keys."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from copy import deepcopy
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from kernbench.hardware.spec_base import LEAST, MOST, plain
from kernbench.hardware.specs import MachineSpec, SipSpec

_CHANGES = "Changes"
_UNITS = {
    "gbps": "GB/s",
    "ghz": "GHz",
    "ns": "ns",
    "us": "µs",
    "cycles": "cycles",
    "bytes": "bytes",
    "kib": "KiB",
    "mib": "MiB",
    "gib": "GiB",
    "w": "W",
    "mm2": "mm²",
}
"""By the last word of a key that ends with its unit."""


@cache
def machine_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a machine file, with the meaning of every key.

    What only several keys together decide, such as a ``shape`` that fits the number of SIPs, a
    schema cannot say; ``kernbench machine check`` does.

    A file with a ``base`` may leave out what that has.

    >>> machine_schema()["$defs"]["MachineSpec"]["required"]
    ['name', 'sizes', 'sip']
    """
    schema = MachineSpec.model_json_schema()
    groups = schema["$defs"]
    for model in _models(MachineSpec):
        group = schema if model is MachineSpec else groups[model.__name__]
        group["description"] = inspect.cleandoc(model.__doc__ or "")
        for key, text in _attribute_docstrings(model).items():
            group["properties"][key]["description"] = text
        for key, field in model.model_fields.items():
            if isinstance(field.default, Fraction):
                group["properties"][key]["default"] = plain(field.default)
    groups[MachineSpec.__name__] = schema
    schema.pop("$defs")
    _let_be_partial(groups, MachineSpec)
    schema["properties"]["sip_overrides"]["additionalProperties"] = _reference(SipSpec, _CHANGES)
    groups[f"{MachineSpec.__name__}{_CHANGES}"]["required"] = ["name", "base"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": schema["title"],
        "type": "object",
        "if": {"required": ["base"]},
        "then": _reference(MachineSpec, _CHANGES),
        "else": _reference(MachineSpec),
        "$defs": groups,
    }


def _reference(model: type[BaseModel], kind: str = "") -> dict[str, str]:
    return {"$ref": f"#/$defs/{model.__name__}{kind}"}


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a model and those of the groups inside it."""
    yield model
    for field in model.model_fields.values():
        yield from _models_in(field.annotation)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _models(annotation)
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)


def _attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the text under each field of a model.

    Pydantic's ``use_attribute_docstrings`` reads them too, but whenever the models are imported,
    which makes every command a seventh slower to start.
    """
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    attribute_docstrings = {}
    for field, text in pairwise(definition.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            attribute_docstrings[field.target.id] = " ".join(str(text.value.value).split())
    return attribute_docstrings


def _let_be_partial(groups: dict[str, Any], whole: type[BaseModel]) -> None:
    """Add descriptions of a model and its groups of which every key may be missing."""
    names = {model.__name__ for model in _models(whole)}

    def renamed(part: Any) -> Any:
        if isinstance(part, list):
            return [renamed(item) for item in part]
        if not isinstance(part, dict):
            return part
        result = {key: renamed(value) for key, value in part.items()}
        if result.get("$ref", "").rpartition("/")[2] in names:
            result["$ref"] += _CHANGES
        return result

    for name in names:
        changes = renamed(deepcopy(groups[name]))
        changes.pop("required", None)
        changes["title"] = f"{name}{_CHANGES}"
        groups[f"{name}{_CHANGES}"] = changes


def choices_of(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a key may be, but null: that is the same as leaving it out."""
    return [item for item in value.get("anyOf", [value]) if item.get("type") != "null"]


def group_of(value: dict[str, Any]) -> str | None:
    """Return the name of the group that a key holds, or a list or a mapping of such groups."""
    for choice in choices_of(value):
        inner = choice.get("items", choice.get("additionalProperties", choice))
        if isinstance(inner, dict) and "$ref" in inner:
            name = str(inner["$ref"]).rpartition("/")[2]
            return None if name.endswith("Changes") else name
    return None


def unit_of(key: str) -> str:
    """Return the unit of a key, which its name ends or begins with; empty for a plain number."""
    last = key.rpartition("_")[2]
    if "_pj_per_" in key:
        return "pJ"
    if last in _UNITS:
        return _UNITS[last]
    # us_per_rank
    return _UNITS.get(key.partition("_")[0], "")


def bounds_text(value: dict[str, Any]) -> str:
    """Return in words what a key of a schema may be."""
    return " or ".join(_bounds_of(choice) for choice in choices_of(value))


def _bounds_of(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return "a group"
    if "enum" in value:
        return ", ".join(f"`{item}`" for item in value["enum"])
    kind = value.get("type")
    if kind == "array":
        if "prefixItems" in value.get("items", {}):
            return "list of pairs"
        return f"list of {_plural(_bounds_of(value['items']))}"
    if kind == "object":
        inner = value.get("additionalProperties")
        if isinstance(inner, dict) and "$ref" not in inner:
            return f"mapping to {_bounds_of(inner)}"
        return "mapping to groups"
    if kind in ("number", "integer"):
        return _number(value)
    return {"boolean": "`true`, `false`", "string": "text"}[str(kind)]


def _plural(text: str) -> str:
    return "groups" if text == "a group" else text.replace("integer", "integers", 1)


def _number(value: dict[str, Any]) -> str:
    word = "integer" if value["type"] == "integer" else "number"
    least = value.get("exclusiveMinimum", value.get("minimum"))
    most = value.get("maximum")
    if least is None:
        return word
    above = "exclusiveMinimum" in value or Fraction(least) == LEAST
    text = f"{word} above 0" if above else f"{word} from {least:g}"
    return text if most in (None, MOST) else f"{text} to {most:g}"


def default_text(value: Any) -> str:
    """Return a default as Markdown."""
    if value in (None, [], {}, ""):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
