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


class LocationTable:
    """Resolves location text against the ``#loc = loc(...)`` lines of one TTIR text."""

    def __init__(self, text: str) -> None:
        self._definitions = dict(_DEFINITION.findall(text))
        self._lines: dict[str, SourceLine] = {}

    def line(self, location: str) -> SourceLine:
        """Return the user's line for the text inside ``loc(...)``."""
        found = self._lines.get(location)
        if found is None:
            frames: list[SourceLine] = []
            self._frames(location, frames, 0)
            found = next((f for f in frames if _LIBRARY not in f.file), None)
            if found is None:
                found = frames[0] if frames else UNKNOWN_LINE
            self._lines[location] = found
        return found

    def _frames(self, location: str, frames: list[SourceLine], depth: int) -> None:
        """Append the frames of a location, innermost first; text that we do not know adds none."""
        location = location.strip()
        if depth > _MAX_DEPTH or not location or location == "unknown":
            return
        if location.startswith("#"):
            self._frames(self._definitions.get(location, ""), frames, depth + 1)
        elif match := _FILE.match(location):
            frames.append(SourceLine(match[1], int(match[2]), int(match[3])))
        elif match := _NAMED.match(location):
            self._frames(location[match.end() : -1], frames, depth + 1)
        elif location.startswith("callsite("):
            callee, _, caller = _split(location[9:-1], " at ")
            self._frames(callee, frames, depth + 1)
            self._frames(caller, frames, depth + 1)
        elif location.startswith("fused"):
            rest = location[location.find("[") + 1 : -1]
            while rest:
                part, _, rest = _split(rest, ",")
                self._frames(part, frames, depth + 1)


def _split(text: str, separator: str) -> tuple[str, str, str]:
    """Partition ``text`` at the first separator outside brackets and strings."""
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
