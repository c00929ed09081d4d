"""TTIR text to SSA.

Most operations print as ``%results = name <operands, attributes, words> : <types>``, so one
tolerant rule reads them all: values before the colon are operands, in order; result types follow
``->`` or ``to``, or are told by the operation (:data:`_RESULT_RULES`). Only operations with regions
and branches have a rule of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kernbench.kernel_ir.text.cursor import Cursor, Tokens, parse_number, tokenize
from kernbench.kernel_ir.text.ir import (
    Block,
    Function,
    Module,
    Op,
    Parameter,
    Region,
    Successor,
    Type,
    Value,
)
from kernbench.kernel_ir.text.locations import LocationTable
from kernbench.kernel_ir.text.types import bool_like, element_of, parse_type, pointee

_LOCATION_LINE = re.compile(r"^#loc\w*[ \t]*=[ \t]*loc\(.*$", re.MULTILINE)
_MAX_NESTING = 64
_MAX_RESULTS = 4096
_UNTYPED = Type("?", (), None)
_ENDS = frozenset({"end", "loc", "location"})
"""What comes after the last type of an operation."""

_RESULT_RULES: dict[str, Callable[[list[Type]], Type]] = {
    "arith.cmpi": lambda types: bool_like(types[0]),
    "arith.cmpf": lambda types: bool_like(types[0]),
    "tt.load": lambda types: pointee(types[0]),
    "tt.unsplat": lambda types: element_of(types[0]),
    "arith.select": lambda types: types[-1],
    "tt.make_tensor_ptr": lambda types: types[-1],
    "tt.make_tensor_descriptor": lambda types: types[-1],
}
"""Result type from the listed types, for operations that print no arrow; others have the first."""


def parse_unverified(text: str) -> Module:
    """Return the functions of a TTIR module, which nothing has verified yet.

    Raises:
        KernelParseError: The text is not TTIR that we can read; names the line of the text.
    """
    locations = LocationTable(text)
    # Blank, not gone: line numbers of the text must not move.
    return _Parser(tokenize(_LOCATION_LINE.sub("", text)), locations, text).module()


class _Parser(Cursor):
    def __init__(self, tokens: Tokens, locations: LocationTable, text: str) -> None:
        super().__init__(tokens, locations)
        self.text = text
        self.nesting = 0
        self.scope: dict[str, Value] = {}

    def use(self, name: str) -> Value:
        """Return the value that ``%name`` or ``%name#2`` refers to."""
        value = self.scope.get(name) or self.scope.get(f"{name}#0")
        if value is None:
            self.fail(f"expected a value that was defined before, {name} was not", self.at - 1)
        return value

    def define(self, name: str, type_: Type) -> Value:
        value = Value(name, type_)
        self.scope[name] = value
        return value

    # -- structure ----------------------------------------------------------------------------

    def module(self) -> Module:
        functions: dict[str, Function] = {}
        in_module = False
        while self.kinds[self.at] != "end":
            text, kind = self.texts[self.at], self.kinds[self.at]
            if kind == "alias":
                self.at += 1
                self.expect("=")
                self.aliases[text] = self.attribute_value()
            elif text in ("module", "builtin.module"):
                self.at += 1
                in_module = True
                self._skip_to_body()
            elif text in ("tt.func", "func.func"):
                function = self._function()
                if function.name in functions:
                    self.fail(f"expected one function named {function.name}")
                functions[function.name] = function
            elif text == "}" and in_module:
                self.at += 1
                in_module = False
                self.location()
            elif text == "{-#":
                break
            else:
                self.fail("expected a function")
        if in_module or not functions:
            self.fail("expected a function" if not functions else "expected '}'")
        return Module(functions, self.text)

    def _skip_to_body(self) -> None:
        """Read a module's name and attributes, up to its opening brace."""
        if self.kinds[self.at] == "symbol":
            self.at += 1
        if self.accept("attributes"):
            self.attributes()
        self.expect("{")

    def _function(self) -> Function:
        first = self.at
        self.at += 1
        is_public = True
        while self.kinds[self.at] == "word":
            is_public = self.texts[self.at] != "private"
            self.at += 1
        name = self.take("symbol")[1:].strip('"')
        self.scope = {}
        self.expect("(")
        params: list[Parameter] = []
        while not self.accept(")"):
            param = self.take("value")
            self.expect(":")
            type_ = self.type()
            attrs = self.attributes() if self.texts[self.at] == "{" else {}
            self.location()
            value = self.define(param, type_)
            if type_.is_descriptor and type_.text.startswith("!tt.tensordesc") and type_.dtype:
                # What is passed is the tensor that the descriptor is of.
                type_ = parse_type(f"!tt.ptr<{type_.dtype.mlir}>")
            params.append(Parameter(len(params), param[1:], type_, value, attrs))
            self.accept(",")
        results: tuple[Type, ...] = ()
        if self.accept("->"):
            results = self.type_list()
        attrs = self.attributes() if self.accept("attributes") else {}
        if self.texts[self.at] != "{":
            self.fail(f"expected the body of {name}", first)
        body = self.region(tuple(param.value for param in params))
        line = self.location()
        return Function(name, tuple(params), results, body, is_public, attrs, line)

    def region(self, entry_args: tuple[Value, ...] = ()) -> Region:
        """Read ``{ ... }``, blocks with labels included. Names defined inside end with it."""
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            self.fail(f"expected at most {_MAX_NESTING} nested regions")
        outer, self.scope = self.scope, dict(self.scope)
        self.expect("{")
        blocks: list[Block] = []
        label, args = "", entry_args
        ops: list[Op] = []
        while True:
            if self.kinds[self.at] == "label":
                if ops or blocks:
                    blocks.append(Block(label, args, tuple(ops)))
                    ops = []
                label, args = self._block_head()
            elif self.accept("}"):
                break
            else:
                ops.append(self.op())
        blocks.append(Block(label, args, tuple(ops)))
        self.scope = outer
        self.nesting -= 1
        return Region(tuple(blocks))

    def _block_head(self) -> tuple[str, tuple[Value, ...]]:
        label = self.take("label")
        args: list[Value] = []
        if self.accept("("):
            while not self.accept(")"):
                name = self.take("value")
                self.expect(":")
                type_ = self.type()
                self.location()
                args.append(self.define(name, type_))
                self.accept(",")
        self.expect(":")
        return label, tuple(args)

    # -- operations ---------------------------------------------------------------------------

    def op(self) -> Op:
        first = self.at
        names: list[tuple[str, int]] = []
        while self.kinds[self.at] == "value":
            name = self.take("value")
            count = int(parse_number(self.take("number"))) if self.accept(":") else 1
            names.append((name, count))
            if not self.accept(","):
                break
        if names:
            self.expect("=")
        if self.kinds[self.at] == "string":
            return self._generic(first, names)
        name = self.take("word")
        rule = getattr(self, "_op_" + name.replace(".", "_"), None)
        if rule is not None:
            op: Op = rule(first, names, name)
            return op
        return self._plain(first, names, name)

    def build(
        self,
        first: int,
        names: list[tuple[str, int]],
        name: str,
        operands: list[Value],
        types: tuple[Type, ...],
        attrs: dict[str, Any],
        regions: tuple[Region, ...] = (),
        successors: tuple[Successor, ...] = (),
    ) -> Op:
        """Read the op's location and define its results."""
        line = self.location()
        for _, count in names:
            if not 0 < count <= _MAX_RESULTS:
                self.fail(f"expected a sound number of results, {count} is not", first)
        num_results = sum(count for _, count in names)
        if len(types) < num_results:
            # `%a, %b = tt.split %x : ... -> T` names the type that both results have.
            types += (types[-1] if types else _UNTYPED,) * (num_results - len(types))
        results: list[Value] = []
        for result, count in names:
            for index in range(count):
                type_ = types[len(results)]
                results.append(self.define(result if count == 1 else f"{result}#{index}", type_))
        return Op(
            name,
            tuple(operands),
            tuple(results),
            attrs,
            regions,
            line,
            self.tokens.line_of(first),
            successors,
        )

    def _plain(self, first: int, names: list[tuple[str, int]], name: str) -> Op:
        operands: list[Value] = []
        attrs: dict[str, Any] = {}
        words: list[str] = []
        literals: list[Any] = []
        types: tuple[Type, ...] = ()
        kinds, texts, starts_line = self.kinds, self.texts, self.starts_line
        while True:
            at = self.at
            kind, text = kinds[at], texts[at]
            if kind in _ENDS or (at in starts_line and at > first):
                break
            self.at += 1
            if kind == "value":
                operands.append(self.use(text))
            elif kind == "word":
                self._word(text, attrs, words, len(operands))
            elif text in ("{", "<{"):
                self.at = at
                attrs.update(self.attributes())
            elif text == ":":
                types = self._result_types(name)
            elif text in ("}", "}>") or kind == "label":
                self.fail("expected the end of the operation", at)
            elif kind != "punct":
                literals.append(self._literal(kind, text))
        if words:
            attrs["words"] = tuple(words)
        if literals:
            attrs["literals"] = tuple(literals)
        if not types and name == "arith.constant":
            # `arith.constant true` prints no type.
            types = (parse_type("i1"),)
        return self.build(first, names, name, operands, types, attrs)

    def _word(self, word: str, attrs: dict[str, Any], words: list[str], place: int) -> None:
        """Read ``key = value``, ``flags<...>`` or a bare word, before operand ``place``."""
        if word == "scale":
            # Of `tt.dot_scaled`: which operands are scales.
            attrs["scales"] = (*attrs.get("scales", ()), place)
        elif self.accept("="):
            attrs[word] = self.attribute_value()
        elif self.texts[self.at] == "<":
            first = self.at
            self.skip_balanced("<", ">")
            attrs[word] = "".join(self.texts[first + 1 : self.at - 1])
        else:
            words.append(word)

    def _result_types(self, name: str) -> tuple[Type, ...]:
        """Read the types after the colon and return those of the results."""
        listed: list[Type] = []
        results: list[Type] | None = None
        kinds, texts, starts_line = self.kinds, self.texts, self.starts_line
        while True:
            at = self.at
            kind, text = kinds[at], texts[at]
            if kind in _ENDS or at in starts_line:
                break
            if text in ("->", "to") and results is None:
                results = []
                self.at += 1
            elif kind in ("type", "word") or text == "<":
                (listed if results is None else results).append(self.type())
            elif text in (",", "*", "(", ")", "into"):
                self.at += 1
            else:
                self.fail(f"expected a type of {name}")
        if results is not None:
            return tuple(results)
        if not listed:
            self.fail(f"expected the types of {name}")
        rule = _RESULT_RULES.get(name)
        if rule is not None:
            return (rule(listed),)
        return (listed[0],)

    def _literal(self, kind: str, text: str) -> Any:
        if kind == "number" and not text.startswith("0x"):
            return parse_number(text)
        if kind == "string":
            return text[1:-1]
        # Hexadecimal stays text: it is the bits of a float, whose type comes later in the line.
        return text

    def _generic(self, first: int, names: list[tuple[str, int]]) -> Op:
        """Read ``"name"(operands) <{properties}> ({regions}) {attributes} : (types) -> types``."""
        name = self.take("string")[1:-1]
        self.expect("(")
        operands: list[Value] = []
        while not self.accept(")"):
            operands.append(self.use(self.take("value")))
            self.accept(",")
        successors: list[Successor] = []
        if self.accept("["):
            while not self.accept("]"):
                successors.append(self._successor())
                self.accept(",")
        attrs: dict[str, Any] = self.attributes() if self.texts[self.at] == "<{" else {}
        regions: list[Region] = []
        if self.accept("("):
            while not self.accept(")"):
                regions.append(self.region())
                self.accept(",")
        if self.texts[self.at] == "{":
            attrs.update(self.attributes())
        self.expect(":")
        self.type_list()
        self.expect("->")
        types = self.type_list()
        return self.build(
            first, names, name, operands, types, attrs, tuple(regions), tuple(successors)
        )

    def _op_scf_for(self, first: int, names: list[tuple[str, int]], name: str) -> Op:
        attrs: dict[str, Any] = {}
        if self.accept("unsigned"):
            attrs["unsigned"] = True
        induction = self.take("value")
        operands = []
        for separator in ("=", "to", "step"):
            self.expect(separator)
            operands.append(self.use(self.take("value")))
        carried: list[str] = []
        types: tuple[Type, ...] = ()
        if self.accept("iter_args"):
            carried = self._bindings(operands)
            self.expect("->")
            types = self.type_list()
        # The bounds' type is printed unless it is index.
        bound_type = self.type() if self.accept(":") else parse_type("index")
        if len(types) != len(carried):
            self.fail(f"expected {len(carried)} carried types", first)
        outer, self.scope = self.scope, dict(self.scope)
        args = (
            self.define(induction, bound_type),
            *(self.define(arg, type_) for arg, type_ in zip(carried, types, strict=True)),
        )
        body = self.region(args)
        self.scope = outer
        if self.texts[self.at] == "{":
            attrs.update(self.attributes())
        return self.build(first, names, name, operands, types, attrs, (body,))

    def _bindings(self, operands: list[Value]) -> list[str]:
        """Read ``(%arg = %init, ...)``: append the inits, return the names of the arguments."""
        self.expect("(")
        args: list[str] = []
        while not self.accept(")"):
            args.append(self.take("value"))
            self.expect("=")
            operands.append(self.use(self.take("value")))
            self.accept(",")
        return args

    def _op_scf_if(self, first: int, names: list[tuple[str, int]], name: str) -> Op:
        condition = self.use(self.take("value"))
        types = self.type_list() if self.accept("->") else ()
        regions = [self.region()]
        if self.accept("else"):
            regions.append(self.region())
        attrs = self.attributes() if self.texts[self.at] == "{" else {}
        return self.build(first, names, name, [condition], types, attrs, tuple(regions))

    def _op_scf_while(self, first: int, names: list[tuple[str, int]], name: str) -> Op:
        operands: list[Value] = []
        carried = self._bindings(operands) if self.texts[self.at] == "(" else []
        self.expect(":")
        arg_types = self.type_list()
        self.expect("->")
        types = self.type_list()
        if len(arg_types) != len(carried):
            self.fail(f"expected {len(carried)} carried types", first)
        outer, self.scope = self.scope, dict(self.scope)
        args = tuple(self.define(arg, type_) for arg, type_ in zip(carried, arg_types, strict=True))
        before = self.region(args)
        self.scope = outer
        self.expect("do")
        after = self.region()
        attrs: dict[str, Any] = {}
        if self.accept("attributes") or self.texts[self.at] == "{":
            attrs = self.attributes()
        return self.build(first, names, name, operands, types, attrs, (before, after))

    def _op_ttg_warp_specialize(self, first: int, names: list[tuple[str, int]], name: str) -> Op:
        """Read the partitions of a kernel's warps, which are not evaluated, as one operation."""
        operands: list[Value] = []
        self.expect("(")
        while not self.accept(")"):
            operands.append(self.use(self.take("value")))
            self.accept(",")
        if self.accept("attributes"):
            self.attributes()
        while self.kinds[self.at] == "word":
            self.at += 1
            while self.texts[self.at] != "{":
                if self.kinds[self.at] == "end":
                    self.fail("expected the body of a partition", first)
                self.at += 1
            self.skip_balanced("{", "}")
        self.expect(":")
        self.type_list()
        self.expect("->")
        return self.build(first, names, name, operands, self.type_list(), {})

    def _op_tt_print(self, first: int, names: list[tuple[str, int]], name: str) -> Op:
        literals = (self._literal("string", self.take("string")),)
        attrs = {**self.attributes(), "literals": literals}
        operands: list[Value] = []
        if self.accept(":"):
            while True:
                operands.append(self.use(self.take("value")))
                if not self.accept(","):
                    break
            self.expect(":")
            self._result_types(name)
        return self.build(first, names, name, operands, (), attrs)

    def _op_cf_br(self, first: int, names: list[tuple[str, int]], name: str) -> Op:
        return self.build(first, names, name, [], (), {}, (), (self._successor(),))

    def _op_cf_cond_br(self, first: int, names: list[tuple[str, int]], name: str) -> Op:
        condition = self.use(self.take("value"))
        self.expect(",")
        then = self._successor()
        self.expect(",")
        return self.build(first, names, name, [condition], (), {}, (), (then, self._successor()))

    def _successor(self) -> Successor:
        label = self.take("label")
        operands: list[Value] = []
        if self.accept("("):
            while self.kinds[self.at] == "value":
                operands.append(self.use(self.take("value")))
                self.accept(",")
            self.expect(":")
            while not self.accept(")"):
                self.type()
                self.accept(",")
        return Successor(label, tuple(operands))
