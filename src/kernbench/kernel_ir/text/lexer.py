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

_PATTERNS = {
    "value": r"%(?:[\w$.]|-(?!>))+(?:\#\d+)?",
    "loc": r"loc\(\#\w+\)",
    "location": rf"loc{_PARENS}",
    "type": rf"(?:tensor|memref|vector){_ANGLES}|![\w.$]+(?:{_ANGLES})?",
    "literal": rf"(?:dense|array){_ANGLES}",
    "string": r'"(?:[^"\\]|\\.)*"',
    "number": r"-?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)",
    "label": r"\^\w+",
    "symbol": r'@(?:[\w$.\-]+|"(?:[^"\\]|\\.)*")',
    "alias": rf"\#[\w.$\-]+(?:{_ANGLES})?",
    "word": r"[A-Za-z_][\w.$]*",
    "comment": r"//[^\n]*+",
    "punct": r"->|<\{|\}>|::|[(){}\[\]<>,:=*+?/|-]",
}
_PIECE = re.compile("|".join([r"\n", *_PATTERNS.values(), r"[^ \t\r]"]))
"""A token, the end of a line, or one character that starts no token."""
_KIND = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _PATTERNS.items()))


@dataclass(slots=True)
class Tokens:
    """The tokens of a text, as parallel lists that end with kind ``"end"``."""

    kinds: list[str]
    texts: list[str]
    line_starts: list[int]
    """Per line of the text after the first, the index of the first token that begins after it."""

    def line_of(self, index: int) -> int:
        """Return the line of the text, from 1, that token ``index`` begins on."""
        return 1 + bisect.bisect_right(self.line_starts, index)


def tokenize(text: str) -> Tokens:
    """Return the tokens of ``text``.

    Raises:
        KernelParseError: A character starts no token; names the line.
    """
    kinds: list[str] = []
    texts: list[str] = []
    line_starts: list[int] = []
    # Most tokens of a text occur in it many times, so each is looked at once.
    known: dict[str, tuple[str, str, int]] = {}
    for piece in _PIECE.findall(text):
        if piece == "\n":
            line_starts.append(len(kinds))
            continue
        triple = known.get(piece)
        if triple is None:
            triple = known[piece] = _read(piece, text)
        kind, token, num_breaks = triple
        if kind != "comment":
            kinds.append(kind)
            texts.append(token)
            if num_breaks:
                line_starts += [len(kinds)] * num_breaks
    line_starts.append(len(kinds))
    kinds.append("end")
    texts.append("")
    return Tokens(kinds, texts, line_starts)


def _read(piece: str, text: str) -> tuple[str, str, int]:
    """Return the kind of a token, what the parser sees of it, and the lines that end inside it."""
    match = _KIND.fullmatch(piece)
    if match is None:
        raise _unreadable(text)
    kind = match.lastgroup
    assert kind is not None
    token = piece[4:-1] if kind == "loc" else piece[3:] if kind == "location" else piece
    return kind, token, piece.count("\n")


def _unreadable(text: str) -> KernelParseError:
    """Return the error for the first piece of the text that is no token."""
    pieces = (match for match in _PIECE.finditer(text) if match[0] != "\n")
    start = next(match.start() for match in pieces if not _KIND.fullmatch(match[0]))
    line = 1 + text.count("\n", 0, start)
    excerpt = text[start:].partition("\n")[0][:40]
    return KernelParseError(f"TTIR text, line {line}: cannot read {excerpt!r}")
