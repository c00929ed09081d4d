"""Collectives in loops: over sets of strings, whose order differs, and over what has one order.

python set_orders.py CASE
"""

import sys

import torch
import torch.distributed as dist

NAMES = {"embed", "norm", "head"}
WORDS = ["embed", "norm", "out"]


class Model:
    def __init__(self):
        self.parts = {"up", "down"}


def reduce(name):
    dist.all_reduce(torch.full((1,), float(len(name))))


def over_a_set():
    for name in NAMES:
        dist.all_reduce(torch.full((1,), float(len(name))))


def in_a_function():
    for name in NAMES | {"gate"}:
        reduce(name)


def over_a_list_of_it():
    names = list(NAMES)
    for _, name in enumerate(names):
        reduce(name)


def over_an_attribute():
    model = Model()
    for part in model.parts:
        reduce(part)


def in_a_comprehension():
    [reduce(name) for name in {"a", "bc"}]


def over_a_set_of_a_list():
    for word in set(WORDS):
        reduce(word)


def over_a_set_of_a_call():
    for _, word in enumerate(frozenset(dict.fromkeys(WORDS))):
        reduce(word)


def over_a_comprehension_of_sets():
    for word in {word.lower() for word in WORDS}:
        reduce(word)


def over_a_union():
    for word in NAMES.union(WORDS):
        reduce(word)


def over_keys_of_both():
    for word in dict.fromkeys(WORDS).keys() & NAMES:
        reduce(word)


def a_set_of_lengths():
    for length in set(map(len, WORDS)):
        reduce("x" * length)
    for length in {len(word) for word in WORDS}:
        reduce("x" * length)


def sorted_names():
    for name in sorted(NAMES):
        reduce(name)
    names = sorted(NAMES)
    for name in names:
        reduce(name)


def numbers():
    for number in {1, 2, 3}:
        reduce("x" * number)


def a_dictionary():
    for name in {"a": 1, "b": 2}:
        reduce(name)


def before_and_after():
    reduce("before")
    for name in NAMES:
        len(name)
    reduce("after")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
