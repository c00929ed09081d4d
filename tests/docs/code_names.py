"""The names that kernbench's code defines, read from its source, to see whether a text's exist."""

from __future__ import annotations

import builtins
import functools
import importlib

from tests.adr.trees import ROOT, code, facts

PACKAGE = ROOT / "src" / "kernbench"


class Names:
    """What there is to name: modules, what they define or import, and members of classes."""

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = {}
        """By dotted name, what stands in the module: defined, assigned or imported."""
        self.members: dict[str, set[str]] = {}
        """By the bare name of a class: methods, fields and attributes of all classes so called."""
        self._bases: dict[str, set[str]] = {}
        for path in code("src/kernbench", "validation"):
            base = PACKAGE.parent if path.is_relative_to(PACKAGE) else ROOT
            parts = path.relative_to(base).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            own = facts(path)
            self.modules[module] = own.defined
            for name, _, bases, members in own.classes:
                self.members.setdefault(name, set()).update(members)
                self._bases.setdefault(name, set()).update(bases)
        self.defined = {name for names in self.modules.values() for name in names}

    def has_member(self, owner: str, name: str) -> bool:
        """Return whether a class, or one that it inherits from, has a member."""
        if name in self.members.get(owner, ()):
            return True
        return any(self.has_member(base, name) for base in self._bases.get(owner, ()))

    def has(self, dotted: str) -> bool:
        """Return whether a name leads to something, from ``kernbench``, a module or a class on."""
        head, _, rest = dotted.partition(".")
        if not rest:
            return head in self.defined or head in self.stems or self._is_module(head)
        if head in self.members:
            return "." not in rest and self.has_member(head, rest)
        return self._leads_somewhere(dotted) or is_elsewhere(dotted)

    @functools.cached_property
    def stems(self) -> set[str]:
        """The last parts of the names of modules."""
        return {module.rpartition(".")[2] for module in self.modules}

    def _is_module(self, dotted: str) -> bool:
        return any(module == dotted or module.endswith(f".{dotted}") for module in self.modules)

    def _leads_somewhere(self, dotted: str) -> bool:
        """Return whether a name is a module, of one, or of a class of one."""
        if self._is_module(dotted):
            return True
        *before, last = dotted.split(".")
        place = ".".join(before)
        for module, names in self.modules.items():
            if (module == place or module.endswith(f".{place}")) and last in names:
                return True
        if len(before) > 1 and self._leads_somewhere(place):
            return self.has_member(before[-1], last)
        return False


def is_elsewhere(dotted: str) -> bool:
    """Return whether another library has the name, from its package on, or Python itself has."""
    head, _, rest = dotted.partition(".")
    place = getattr(builtins, head, None)
    if place is None:
        try:
            place = importlib.import_module(head)
        except ImportError:
            return False
    path = head
    for part in rest.split(".") if rest else ():
        path += f".{part}"
        if not hasattr(place, part):
            try:
                importlib.import_module(path)
            except ImportError:
                return False
        place = getattr(place, part)
    return True


@functools.cache
def names() -> Names:
    """Return the names of today's code."""
    return Names()
