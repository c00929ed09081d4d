"""A position in the tokens of a TTIR text, and the small things that can be read from there."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from kernbench.commands import UNKNOWN_LINE, SourceLine
from kernbench.dtypes import DType
from kernbench.errors import KernelParseError
from kernbench.kernel_ir.text.ir import Type
from kernbench.kernel_ir.text.locations import LocationTable
from kernbench.kernel_ir.text.types import parse_type

_NUMBER = re.compile(r"-?(?:0x[0-9A-Fa-f]+|\d+\.?\d*(?:[eE][+-]?\d+)?)|true|false")
_STRING = re.compile(r'"0x([0-9A-Fa-f]*)"$')


def parse_number(text: str) -> int | float:
    """Return an integer for ``12`` and ``0x1F``, else a float."""
    if text.startswith(("0x", "-0x")):
        return int(text, 16)
    try:
        return int(text)
    except ValueError:
        return float(text)


def parse_scalar_array(text: str) -> tuple[int | float | bool, ...] | str:
    """Return the elements of ``array<i32: 1, 0>``; other literals stay text."""
    if not text.startswith("array<"):
        return text
    _, _, body = text[6:-1].partition(":")
    return tuple(
        item == "true" if item in ("true", "false") else parse_number(item)
        for item in _NUMBER.findall(body)
    )


def scalar(text: str, dtype: DType) -> int | float | bool:
    """Return one element as a Python number; hexadecimal text of a float type is its bits."""
    if text in ("true", "false"):
        return text == "true"
    if not dtype.is_floating_point:
        return int(parse_number(text))
    if text.startswith("0x"):
        width = dtype.itemsize
        bits = int(text, 16)
        if bits >> (8 * width):
            raise KernelParseError(f"the bits {text} must fit in {dtype.mlir}")
        return float(np.frombuffer(bits.to_bytes(width, "little"), dtype=dtype.numpy)[0])
    return float(text)


def dense(text: str, dtype: DType, shape: tuple[int, ...]) -> Any:
    """Return ``dense<...>`` as a Python number (a splat) or an array of ``shape``."""
    body = text[6:-1].strip()
    if match := _STRING.match(body):
        raw = bytes.fromhex(match[1])
        storage = np.dtype(np.bool_) if dtype.name == "bool" else dtype.numpy
        values = np.frombuffer(raw, dtype=storage)
        if values.size == 1:
            return values[0].item()
    elif body.startswith("["):
        elements = [scalar(item, dtype) for item in _NUMBER.findall(body)]
        values = np.array(elements).astype(dtype.numpy)
    else:
        return scalar(body, dtype)
    if values.size != int(np.prod(shape)):
        raise KernelParseError(
            f"a dense constant of shape {shape} must have {int(np.prod(shape))} elements, "
            f"but got {values.size}"
        )
    return values.reshape(shape)


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


class Cursor:
    """Reads tokens, types, locations and attributes, one after another."""

    def __init__(self, tokens: Tokens, locations: LocationTable) -> None:
        self.tokens = tokens
        self.kinds = tokens.kinds
        self.texts = tokens.texts
        self.starts_line = frozenset(tokens.line_starts)
        """Tokens before which a line ends."""
        self.locations = locations
        self.aliases: dict[str, Any] = {}
        """Attribute aliases (``#name = ...``) that were defined so far."""
        self.at = 0

    # -- reading tokens -----------------------------------------------------------------------

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        where = self.at if at is None else at
        where = min(where, len(self.kinds) - 1)
        text = self.texts[where] or "the end of the text"
        raise KernelParseError(
            f"TTIR text, line {self.tokens.line_of(where)}: {message}, but got {text[:60]!r}"
        )

    def accept(self, text: str) -> bool:
        if self.texts[self.at] == text and self.kinds[self.at] != "string":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r}")

    def take(self, kind: str) -> str:
        if self.kinds[self.at] != kind:
            self.fail(f"expected a {kind}")
        self.at += 1
        return self.texts[self.at - 1]

    def location(self) -> SourceLine:
        """Read an optional ``loc(...)``."""
        kind = self.kinds[self.at]
        if kind == "loc":
            self.at += 1
            return self.locations.line(self.texts[self.at - 1])
        if kind == "location":
            self.at += 1
            return self.locations.line(self.texts[self.at - 1][1:-1])
        return UNKNOWN_LINE

    def type(self) -> Type:
        kind, text = self.kinds[self.at], self.texts[self.at]
        if text == "<":
            return self._short_type()
        if kind not in ("type", "word"):
            self.fail("expected a type")
        self.at += 1
        return parse_type(text)

    def _short_type(self) -> Type:
        """Read ``<f16>`` (a pointer) or ``<64x32xf16>`` (a descriptor), whose prefix is implied."""
        first = self.at
        while self.texts[self.at] != ">":
            if self.kinds[self.at] == "end":
                self.fail("expected '>'")
            self.at += 1
        self.at += 1
        inner = "".join(self.texts[first + 1 : self.at - 1])
        shaped = inner[:1].isdigit() or inner.startswith("tensor<")
        return parse_type(f"!tt.tensordesc<{inner}>" if shaped else f"!tt.ptr<{inner}>")

    def type_list(self) -> tuple[Type, ...]:
        """Read one type, or several in parentheses."""
        if not self.accept("("):
            return (self.type(),)
        types: list[Type] = []
        while not self.accept(")"):
            types.append(self.type())
            self.accept(",")
        return tuple(types)

    # -- attributes ---------------------------------------------------------------------------

    def attributes(self) -> dict[str, Any]:
        """Read ``{key = value, flag, ...}``; a key without a value is True."""
        closing = "}>" if self.texts[self.at] == "<{" else "}"
        self.at += 1
        attrs: dict[str, Any] = {}
        while not self.accept(closing):
            if self.kinds[self.at] not in ("word", "string"):
                self.fail("expected an attribute's name")
            key = self.texts[self.at].strip('"')
            self.at += 1
            attrs[key] = self.attribute_value() if self.accept("=") else True
            self.accept(",")
        return attrs

    def attribute_value(self) -> Any:
        """Read one attribute value; what has no plain Python form stays text."""
        kind, text = self.kinds[self.at], self.texts[self.at]
        value: Any
        if text in ("[", "(", "<", "{") and kind == "punct":
            first = self.at
            self.skip_balanced(text, {"[": "]", "(": ")", "<": ">", "{": "}"}[text])
            value = "".join(self.texts[first : self.at])
        elif kind == "number":
            self.at += 1
            value = parse_number(text)
        elif kind == "string":
            self.at += 1
            value = text[1:-1]
        elif kind == "literal":
            self.at += 1
            value = parse_scalar_array(text)
        elif kind in ("word", "type", "alias", "symbol", "loc", "location"):
            self.at += 1
            value = {"true": True, "false": False}.get(text, self.aliases.get(text, text))
            if kind == "word" and self.texts[self.at] == "<":
                self.skip_balanced("<", ">")
        else:
            self.fail("expected an attribute's value")
        # `16 : i32`; in `inputPrecision = tf32 : tensor<...>` the colon is the operation's.
        if kind in ("number", "literal") and self.accept(":"):
            self.type()
        return value

    def skip_balanced(self, opening: str, closing: str) -> None:
        depth = 0
        while True:
            text, kind = self.texts[self.at], self.kinds[self.at]
            if kind == "end":
                self.fail(f"expected {closing!r}")
            if kind == "punct":
                depth += (text == opening) - (text == closing)
            self.at += 1
            if depth == 0:
                return
