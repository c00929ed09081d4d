"""TTIR text to tokens.

A type, a location or a dense literal is one token, so that the parser stays small.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

from kernbench.errors import KernelParseError


def _nested(opening: str, closing: str, depth: int) -> str:
    """Return a pattern for balanced brackets, strings skipped, up to ``depth`` levels."""
    plain = rf'[^{opening}{closing}"]|"(?:[^"\\]|\\.)*"'
    pattern = plain
    for _ in range(depth):
        pattern = rf"{plain}|{opening}(?:{pattern})*+{closing}"
    return rf"{opening}(?:{pattern})*+{closing}"


_ANGLES = _nested("<", ">", 4)
_PARENS = _nested(r"\(", r"\)", 8)

_TOKEN = re.compile(
    rf"""(?P<space>[ \t\r\n]*+(?://[^\n]*+[ \t\r\n]*+)*+)(?:
      (?P<value>%(?:[\w$.]|-(?!>))+(?:\#\d+)?)
    | loc\((?P<loc>\#\w+)\)
    | loc(?P<location>{_PARENS})
    | (?P<type>(?:tensor|memref|vector){_ANGLES}|![\w.$]+(?:{_ANGLES})?)
    | (?P<literal>(?:dense|array){_ANGLES})
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<number>-?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?))
    | (?P<label>\^\w+)
    | (?P<symbol>@(?:[\w$.\-]+|"(?:[^"\\]|\\.)*"))
    | (?P<alias>\#[\w.$\-]+(?:{_ANGLES})?)
    | (?P<word>[A-Za-z_][\w.$]*)
    | (?P<punct>->|<\{{|\}}>|::|[(){{}}\[\]<>,:=*+?/|-])
    )""",
    re.VERBOSE,
)


@dataclass(slots=True)
class Tokens:
    """The tokens of a text, as parallel lists that end with kind ``"end"``."""

    kinds: list[str]
    texts: list[str]
    starts: list[int]
    starts_line: list[bool]
    """Whether a token is the first on its line."""
    source: str
    line_starts: list[int]

    def line_of(self, index: int) -> int:
        """Return the line of the text, from 1, that token ``index`` is on."""
        return bisect.bisect_right(self.line_starts, self.starts[index])


def tokenize(text: str) -> Tokens:
    """Return the tokens of ``text``.

    Raises:
        KernelParseError: A character starts no token; names the line.
    """
    kinds: list[str] = []
    texts: list[str] = []
    starts: list[int] = []
    fresh: list[bool] = []
    line_starts = [0]
    line_starts += [match.end() for match in re.finditer("\n", text)]
    position, end = 0, len(text)
    match_at = _TOKEN.match
    while position < end:
        match = match_at(text, position)
        if match is None:
            rest = text[position:].lstrip()
            if not rest:
                break
            where = bisect.bisect_right(line_starts, end - len(rest))
            excerpt = rest.partition("\n")[0][:40]
            raise KernelParseError(f"TTIR text, line {where}: cannot read {excerpt!r}")
        kind = match.lastgroup
        assert kind is not None
        token_start = match.end("space")
        kinds.append(kind)
        texts.append(match[kind])
        starts.append(token_start)
        fresh.append(token_start != position and "\n" in match["space"])
        position = match.end()
    kinds.append("end")
    texts.append("")
    starts.append(end)
    fresh.append(True)
    return Tokens(kinds, texts, starts, fresh, text, line_starts)
