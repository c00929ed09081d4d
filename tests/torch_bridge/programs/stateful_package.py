"""A module that keeps state in all the ways that modules do: what a test installs in a package."""

import functools
import os
from typing import Any, ClassVar

import torch.distributed as dist

RANK = os.environ.get("RANK", "")
value: Any = None
table: dict[str, Any] = {}
names: list[Any] = []


class Singleton(type):
    made: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *args):
        if cls in Singleton.made:
            raise ValueError(f"{cls.__name__} is there already")
        Singleton.made[cls] = super().__call__(*args)
        return Singleton.made[cls]


class Settings(metaclass=Singleton):
    kept: Any = None
    own: Any


class Tracker:
    def note(self, what):
        self.what = what


tracker = Tracker()


@functools.cache
def rank():
    return dist.get_rank()


def keep(what):
    global value
    value = what
    table["value"] = what
    names.append(what)
    tracker.note(what)
    Settings().own = what
    Settings.kept = what


def kept():
    own = Singleton.made[Settings].own
    return {value, table["value"], *names, tracker.what, own, Settings.kept, rank(), int(RANK)}
