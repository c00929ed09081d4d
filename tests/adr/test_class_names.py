"""A class has a name of its own, so that who looks for it finds one."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from tests.adr.trees import ROOT, code, facts

WORDS = {
    "Event": "a point of a device's stream, as in PyTorch's API",
    "Stream": "an in-order queue of a device's commands, as in PyTorch's API",
}
"""Words of the field that several classes have as their name, with the one meaning of each."""


@cache
def classes() -> dict[str, list[str]]:
    """Return where classes are, by name; those inside of functions and classes too."""
    texts: dict[str, list[str]] = defaultdict(list)
    for path in code("src/kernbench"):
        for name, line, *_ in facts(path).classes:
            texts[name].append(f"{path.relative_to(ROOT)}:{line}")
    return texts


def test_no_class_has_the_name_of_another() -> None:
    several = {name: places for name, places in classes().items() if len(places) > 1}
    unknown = {name: places for name, places in several.items() if name not in WORDS}
    assert not unknown, "name each after what it is, as TileLoad and TileOrigins are"


def test_variables_have_nouns() -> None:
    """Words that fit any variable say nothing of one."""
    vague = {"each", "found", "given", "made"}
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in code("src", "validation")
        for name, line in facts(path).variables
        if name in vague
    ]
    # What saved runs call a column stays, and programs whose kept answers are of their texts.
    kept = ("saved/described.py", "validation/programs/loops/")
    others = [place for place in places if not any(name in place for name in kept)]
    assert not others, "name it after what it holds"


def test_words_that_are_listed_are_names_of_several_classes() -> None:
    result = classes()
    assert {name for name in WORDS if len(result[name]) > 1} == set(WORDS)
