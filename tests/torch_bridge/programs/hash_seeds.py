"""What depends on a process's hash seed, and what does not: one JSON of results per rank.

python hash_seeds.py CASE FOLDER [...]
"""

import collections
import copy
import enum
import json
import os
import pickle
import sys
from pathlib import Path

import hash_seeds_module as own

WORDS = [f"name{number}" for number in range(20)]


class Part(enum.Enum):
    ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT, NINE, TEN = range(10)


class Names(set):
    pass


def drained(names):
    return [names.pop() for _ in range(len(names))]


def grouped(words):
    groups = collections.defaultdict(set)
    for word in words:
        groups[len(word)].add(word)
    return [list(group) for group in groups.values()]


def generator_of(words):
    yield from set(words)


CASES = {
    "display": lambda: list({"embed", "norm", "head", "up", "down", "gate", "query", "key"}),
    "comprehension": lambda: list({word + "x" for word in WORDS}),
    "call": lambda: list(set(WORDS)),
    "frozen": lambda: list(frozenset(WORDS)),
    "bytes": lambda: [str(encode) for encode in {word.encode() for word in WORDS}],
    "tuples": lambda: list({(word, 1) for word in WORDS}),
    "tuples of numbers": lambda: list({(number, 1) for number in range(20)}),
    "sets of sets": lambda: [sorted(words) for words in {frozenset([word]) for word in WORDS}],
    "members": lambda: [item.name for item in set(Part)],
    "paths": lambda: [str(path) for path in {Path(word) for word in WORDS}],
    "data classes": lambda: [item.name for item in {own.Named(word) for word in WORDS}],
    "own hashes": lambda: [hashed.name for hashed in {own.Hashed(word) for word in WORDS}],
    "numbers": lambda: list({number * 7 for number in range(20)}),
    "mixed": lambda: [str(item) for item in {1, 2, 3, *WORDS}],
    "or": lambda: list(set(WORDS[:9]) | set(WORDS[9:])),
    "minus": lambda: list(set(WORDS) - {"name3"}),
    "keys": lambda: list(dict.fromkeys(WORDS).keys() & set(WORDS)),
    "lacking keys": lambda: list(dict.fromkeys(WORDS).keys() - {"name1"}),
    "items": lambda: list(dict.fromkeys(WORDS, 1).items() ^ {("more", 1)}),
    "union": lambda: list(set().union(WORDS, ["more"])),
    "copy": lambda: list(copy.deepcopy(set(WORDS))),
    "pop": lambda: drained(set(WORDS)),
    "join": lambda: " ".join(set(WORDS)),
    "unpacked": lambda: [*set(WORDS)],
    "enumerated": lambda: list(enumerate(set(WORDS))),
    "least of equals": lambda: min(set(WORDS), key=lambda word: 0),
    "defaultdict": lambda: grouped(WORDS),
    "subclass": lambda: list(Names(WORDS)),
    "generator": lambda: list(generator_of(WORDS)),
    "repr": lambda: repr(set(WORDS)),
    "hash": lambda: [hash(word) for word in WORDS],
    "hash of a tuple": lambda: hash(("a", 1)),
    "hash of a number": lambda: [hash(1), hash(1.5), hash((1, 2)), hash("")],
    "sorted": lambda: sorted(set(WORDS)),
    "a dictionary": lambda: list(dict.fromkeys(WORDS, 1)),
    "in": lambda: ["name1" in set(WORDS), "no" in {"name1", "name2"}],
    "equal": lambda: [set(WORDS) == set(WORDS), hash(frozenset([1, 2]))],
    "of a module": lambda: own.ORDER,
    "of a module's default": lambda: own.by_default(),
}


def orders(folder):
    results = {name: make() for name, make in CASES.items()}
    assert list(own.NAMES) == own.ORDER
    assert [hash(word) for word in WORDS] == results["hash"]
    write(folder, results)


def write(folder, results, name=None):
    name = os.environ.get("RANK", "0") if name is None else name
    (Path(folder) / f"{name}.json").write_text(json.dumps(results))


def as_python_has_them(folder):
    """Identities and messages, which programs and libraries rely on."""
    names, numbers = set(WORDS), [1, 2]
    assert type(names) is set
    assert type(frozenset(WORDS)) is frozenset
    assert type({*WORDS}) is type({word + "x" for word in WORDS}) is type(names - {"x"}) is set
    assert isinstance(names, set)
    assert not isinstance(names, frozenset)
    assert isinstance(collections.OrderedDict().keys() & [], set)
    assert issubclass(Names, set)
    assert not isinstance(names, Names)
    assert repr(set) == "<class 'set'>"
    assert repr(set()) == "set()"
    assert repr(frozenset([1])) == "frozenset({1})"
    assert repr(Names([1])) == "Names({1})"
    assert pickle.loads(pickle.dumps(names)) == names
    assert pickle.loads(pickle.dumps(Names(WORDS))) == names
    assert type(pickle.loads(pickle.dumps(Names(WORDS)))) is Names
    assert pickle.loads(pickle.dumps(collections.defaultdict(set, {1: {2}}))) == {1: {2}}
    assert type(copy.copy(names)) is type(copy.deepcopy(names)) is set
    assert {frozenset("ab"): 1}[frozenset("ba")] == 1
    assert set.union(*[{1}, {2}]) == {1, 2}
    assert set.__or__({1}, {2}) == {1, 2}
    match numbers, names:
        case [1, 2], set():
            pass
        case _:
            raise AssertionError
    for wrong, says in (
        (lambda: hash(names), "unhashable type: 'set'"),
        (lambda: {[]}, "unhashable type: 'list'"),
        (
            lambda: {*names} + 1,  # type: ignore[operator]
            "unsupported operand type(s) for +: 'set' and 'int'",
        ),
        (lambda: set().pop(), "'pop from an empty set'"),
        (lambda: [names.add(name + "x") for name in names], "Set changed size during iteration"),  # type: ignore[func-returns-value]
    ):
        try:
            wrong()
        except (TypeError, KeyError, RuntimeError) as error:
            said = str(error)
        else:
            said = "nothing"
        assert said == says
    write(folder, [])


def compiled(folder):
    import torch

    names = {"up", "down", "gate", "norm", "head"}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = set(WORDS[:5])

        def forward(self, x):
            for number, part in enumerate(self.parts):
                x = x * 2 + number * len(part) + len(names)
            return x, list(self.parts), hash("text")

    def inside(x, more):
        seen = set()
        seen.add("b")
        seen |= {"c", "d"}
        more.add("e")
        return x + len(list(seen)), seen, more, isinstance(seen, set)

    x = torch.ones(2)
    model = Model()
    results = [torch.compile(model, backend="eager")(x), model(x)]
    results += [torch.compile(inside, backend="eager")(x, {"a"}), inside(x, {"a"})]
    for (value, *others), (expected, *expected_others) in (results[:2], results[2:]):
        assert torch.equal(value, expected)
        assert others == expected_others

    def whole(x):
        kept = set(WORDS[:2])
        kept.add("c")
        return x + len(kept) + len({"d", "e"} | {"d": 1}.keys()), isinstance(kept, set)

    assert torch.compile(whole, backend="eager", fullgraph=True)(x)[0].tolist() == [6, 6]
    write(folder, results[0][1])


def of_rank(rank, folder):
    write(folder, list(set(WORDS)), rank)


def spawned(folder, seed=None):
    import torch.multiprocessing as mp

    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    mp.spawn(of_rank, (folder,), nprocs=2)
    write(folder, list(set(WORDS)), "main")


class OrderedBatches:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return list(set(WORDS))


def workers(folder):
    from torch.utils.data import DataLoader

    loader = DataLoader(OrderedBatches(), batch_size=None, num_workers=1)
    assert list(loader) == [list(set(WORDS))] * 2
    write(folder, list(set(WORDS)))


def host_time(folder):
    import time

    import torch

    torch.ones(1, device="cuda")
    start = time.perf_counter()
    names = set(WORDS)
    for name in names | {"more"}:
        len(name)
    hash("text")
    isinstance(names, set)
    drained(names)
    write(folder, time.perf_counter() - start)


def reductions(folder):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    values = {word: torch.full((1,), float(number)) for number, word in enumerate(WORDS)}
    names = set(WORDS)
    for word in names:
        dist.all_reduce(values[word])
    write(folder, [value.item() for value in values.values()])


def raises(folder):
    names = {"a", "b"}
    return [
        {1} | names,
        ({1, 2} - names).missing,  # type: ignore[attr-defined]
        folder,
    ]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
