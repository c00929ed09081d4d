"""A position in the tokens of a TTIR text, and the small things that can be read from there."""

from __future__ import annotations

from typing import Any, NoReturn

from kernbench.commands import UNKNOWN_LINE, SourceLine
from kernbench.errors import KernelParseError
from kernbench.kernel_ir.text.ir import Type
from kernbench.kernel_ir.text.lexer import Tokens
from kernbench.kernel_ir.text.literals import parse_number, parse_scalar_array
from kernbench.kernel_ir.text.locations import LocationTable
from kernbench.kernel_ir.text.types import parse_type


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
