"""Change numbers in the text of a machine file, and leave everything else as it was written."""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml

from kernbench.errors import MachineError

_PLAIN = re.compile(r"[A-Za-z0-9_.]+")


def edited(text: str, numbers: Mapping[str, float], sources: Mapping[str, str], origin: str) -> str:
    """Return the text with new numbers, by key path, and new or changed ``sources``.

    Comments, order and layout stay.

    Raises:
        MachineError: A path is not in the text.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    changes: list[tuple[int, int, str]] = []
    for path, number in numbers.items():
        node = _node(root, path)
        if not isinstance(node, yaml.ScalarNode):
            raise MachineError(
                f"{origin}: has no number at {path}; add one that calibration may change"
            )
        changes.append((node.start_mark.index, node.end_mark.index, _text(number)))
    listed = _node(root, "sources")
    added = []
    for path, said in sources.items():
        quoted = '"' + said.replace("\\", "\\\\").replace('"', '\\"') + '"'
        # The path of a source has dots and is one key.
        node = _child(listed, path)
        if isinstance(node, yaml.ScalarNode):
            changes.append((node.start_mark.index, node.end_mark.index, quoted))
        else:
            added.append(f"  {path}: {quoted}\n")
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    if not added:
        return text
    if not text.endswith("\n"):
        text += "\n"
    if listed is None:
        return text + "sources:\n" + "".join(added)
    # Marks before the changes are still valid; the key itself is at its old line or later.
    found = re.search(r"^sources:[ \t]*\n", text, flags=re.MULTILINE)
    if found is None:
        raise MachineError(f"{origin}: sources must be a block of lines, one key each")
    return text[: found.end()] + "".join(added) + text[found.end() :]


def _node(root: yaml.Node | None, path: str) -> yaml.Node | None:
    for part in path.split("."):
        root = _child(root, part)
    return root


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    for name, value in node.value:
        if name.value == key:
            return value  # type: ignore[no-any-return]  # types-pyyaml leaves values open
    return None


def _text(number: float) -> str:
    """Return a number in five digits, without an exponent."""
    digits = f"{number:.5g}"
    return digits if "e" not in digits else f"{float(digits):f}".rstrip("0").rstrip(".")
