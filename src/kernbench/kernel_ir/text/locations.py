"""``loc(...)`` of TTIR to the line of the user's kernel.

MLIR locations are trees: a file position, a name with a child, a call site (callee *at* caller) or
several fused ones. An op that was inlined has a chain of frames, innermost first. The line that
helps a user is the innermost frame that is not in Triton's own language library.
"""

from __future__ import annotations

import re

from kernbench.commands import UNKNOWN_LINE, SourceLine

_DEFINITION = re.compile(r"^(#loc\w*)\s*=\s*loc\((.*)\)[ \t]*$", re.MULTILINE)
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_NAMED = re.compile(r'"(?:[^"\\]|\\.)*"\s*\(')
_LIBRARY = "triton/language/"
_MAX_DEPTH = 200

_Found = tuple[SourceLine | None, SourceLine | None]
"""The innermost frame of a location, and the innermost that is not in the library."""
_NOTHING: _Found = (None, None)
_BRACKETS = re.compile(r'["(\[<]')


class LocationTable:
    """Resolves location text against the ``#loc = loc(...)`` lines of one TTIR text."""

    def __init__(self, text: str) -> None:
        self._definitions = dict(_DEFINITION.findall(text))
        self._known: dict[str, _Found] = {}

    def line(self, location: str) -> SourceLine:
        """Return the user's line for the text inside ``loc(...)``."""
        frame, user_frame = self._find(location, 0)
        return user_frame or frame or UNKNOWN_LINE

    def _find(self, location: str, depth: int) -> _Found:
        pair = self._known.get(location)
        if pair is None:
            if depth > _MAX_DEPTH:
                return _NOTHING
            pair = self._known[location] = self._read(location.strip(), depth + 1)
        return pair

    def _read(self, location: str, depth: int) -> _Found:
        """Return what a location's text leads to; text that we do not know leads nowhere."""
        if location.startswith("#"):
            return self._find(self._definitions.get(location, ""), depth)
        if match := _FILE.match(location):
            frame = SourceLine(match[1], int(match[2]), int(match[3]))
            return frame, None if _LIBRARY in frame.file else frame
        if match := _NAMED.match(location):
            return self._find(location[match.end() : -1], depth)
        pair = _NOTHING
        if location.startswith("callsite("):
            callee, _, caller = _split(location[9:-1], " at ")
            pair = _either(self._find(callee, depth), self._find(caller, depth))
        elif location.startswith("fused"):
            rest = location[location.find("[") + 1 : -1]
            while rest:
                part, _, rest = _split(rest, ",")
                pair = _either(pair, self._find(part, depth))
        return pair


def _either(inner: _Found, outer: _Found) -> _Found:
    return inner[0] or outer[0], inner[1] or outer[1]


def _split(text: str, separator: str) -> tuple[str, str, str]:
    """Partition ``text`` at the first separator outside brackets and strings."""
    if not _BRACKETS.search(text):
        return text.partition(separator)
    depth = 0
    quoted = False
    for index, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif not quoted:
            if char in "([<":
                depth += 1
            elif char in ")]>":
                depth -= 1
            elif depth == 0 and text.startswith(separator, index):
                return text[:index], separator, text[index + len(separator) :]
    return text, "", ""
