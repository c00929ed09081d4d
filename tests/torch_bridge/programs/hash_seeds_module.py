"""A module of a program's own that takes orders of sets when it is imported."""

from dataclasses import dataclass

NAMES = {f"name{number}" for number in range(20)}
ORDER = list(NAMES)


def by_default(names=frozenset({"embed", "norm", "head", "up", "down", "gate", "query", "key"})):
    return list(names)


@dataclass(frozen=True)
class Named:
    name: str


class Hashed:
    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return self.name == other.name
