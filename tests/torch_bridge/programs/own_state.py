"""A module of the programs: what one of its processes keeps in it, no other finds."""

import reprlib

who = "nobody"
count = 0
seen: list[int] = []


def limit_representations(rank):
    reprlib.aRepr.maxtuple = rank + 1


def limit_of_representations():
    return reprlib.aRepr.maxtuple
