"""Change values in the text of a machine file, and leave everything else as it was written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from kernbench.errors import MachineError


def edited(text: str, values: Mapping[str, Any], sources: Mapping[str, str], origin: str) -> str:
    """Return the text with new values, by key path, and new or changed ``sources``.

    Comments, order and layout stay. A key that the text does not have is written where it stands
    as ``#key: ...``, else at the end of its group, with the groups that it needs.

    Raises:
        MachineError: A path leads through what is no group, or to a group.
    """
    asked = {
        tuple(path.split(".")): _text(value) if isinstance(value, float) else yaml_text(value)
        for path, value in values.items()
    }
    for path, said in sources.items():
        # The path of a source has dots and is one key.
        asked["sources", path] = '"' + said.replace("\\", "\\\\").replace('"', '\\"') + '"'
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    there = {parts: _scalar(root, parts) for parts in asked}
    places = [(node, asked[parts]) for parts, node in there.items() if node is not None]
    for node, new in sorted(places, key=lambda place: -place[0].start_mark.index):
        text = text[: node.start_mark.index] + new + text[node.end_mark.index :]
    for parts in (parts for parts, node in there.items() if node is None):
        text = _with(text, list(parts), asked[parts], origin)
    return text


def yaml_text(value: Any) -> str:
    """Return a value as YAML on one line, that may also stand inside brackets."""
    # In a list, so that texts are quoted as they must be there.
    text: str = yaml.safe_dump([value], default_flow_style=True, width=1 << 30, allow_unicode=True)
    return text.strip()[1:-1]


def _scalar(node: yaml.Node | None, parts: tuple[str, ...]) -> yaml.ScalarNode | None:
    """Return the value at a path if it is a single one that is written out."""
    for part in parts:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for key, value in node.value if key.value == part), None)
    return node if isinstance(node, yaml.ScalarNode) and node.value else None


def _with(text: str, parts: list[str], new: str, origin: str) -> str:
    """Return the text with one value changed or added."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        raise MachineError(f"{origin}: must be a mapping of keys")
    for depth, part in enumerate(parts):
        result = next((pair for pair in node.value if pair[0].value == part), None)
        if result is None:
            return _added(text, node, parts[depth:], new)
        key, value = result
        path = ".".join(parts[: depth + 1])
        if depth == len(parts) - 1:
            if isinstance(value, yaml.MappingNode):
                raise MachineError(f"{origin}: {path} is a group; name a key in it")
            start, end = value.start_mark.index, _end(value)
            gap = " " if start == key.end_mark.index + 1 else ""
            return text[:start] + gap + new + text[end:]
        if isinstance(value, yaml.ScalarNode) and not value.value:
            # A group of which every key is commented out.
            inner = _nested(parts[depth + 1 :], new, " " * (key.start_mark.column + 2))
            at = key.end_mark.index + 1
            return text[:at] + "\n" + inner.rstrip("\n") + text[at:]
        if not isinstance(value, yaml.MappingNode):
            raise MachineError(f"{origin}: {path} is no group, so it has no key {parts[depth + 1]}")
        node = value
    raise AssertionError("a path has parts")


def _added(text: str, node: yaml.MappingNode, parts: list[str], new: str) -> str:
    """Return the text with a key more in a group, perhaps with groups around it."""
    if node.flow_style:
        whole = _flow(parts, new)
        at = _end(node) - 1
        return text[:at].rstrip() + (", " if node.value else "") + whole + text[at:]
    indent = " " * node.value[0][0].start_mark.column
    lines = _nested(parts, new, indent)
    if len(parts) == 1:
        span = node.start_mark.index - len(indent), node.end_mark.index
        stands = re.compile(rf"^(?:{indent}#|#{indent}){re.escape(parts[0])}:.*\n?", re.MULTILINE)
        there = stands.search(text, *span)
        if there is not None:
            return text[: there.start()] + lines + text[there.end() :]
    at = text.find("\n", max(map(_end, _leaves(node))))
    if at < 0:
        return f"{text}\n{lines}"
    return text[: at + 1] + lines + text[at + 1 :]


def _nested(parts: list[str], new: str, indent: str) -> str:
    *groups, last = parts
    lines = [f"{indent}{'  ' * depth}{name}:" for depth, name in enumerate(groups)]
    return "\n".join([*lines, f"{indent}{'  ' * len(groups)}{last}: {new}"]) + "\n"


def _flow(parts: list[str], new: str) -> str:
    name, *rest = parts
    return f"{name}: {{{_flow(rest, new)}}}" if rest else f"{name}: {new}"


def _leaves(node: yaml.Node) -> Iterator[yaml.Node]:
    """Yield the last values of a group, which end where its lines do."""
    yield node if not isinstance(node, yaml.MappingNode) or node.flow_style else node.value[-1][0]
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        yield from _leaves(node.value[-1][1])


def _end(node: yaml.Node) -> int:
    """Return where the text of a value ends; PyYAML takes blanks behind a block for its own."""
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return _end(node.value[-1])
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        return max(map(_end, _leaves(node)))
    return int(node.end_mark.index)


def _text(number: float) -> str:
    """Return a number in five digits, without an exponent."""
    digits = f"{number:.5g}"
    return digits if "e" not in digits else f"{float(digits):f}".rstrip("0").rstrip(".")
