"""A loop over a set of strings has another order in each process; the report says where."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.torch_bridge.running import PROGRAMS, simulated

PROGRAM = "set_orders.py"
LINES = (PROGRAMS / PROGRAM).read_text().splitlines()


def remarks(case: str) -> list[str]:
    context = simulated(PROGRAM, case, nprocs=2)
    return [item for make in context.run.remarks for item in make() if "order of a set" in item]


@pytest.mark.parametrize(
    ("case", "loop"),
    [
        ("over_a_set", "for name in NAMES:"),
        ("in_a_function", 'for name in NAMES | {"gate"}:'),
        ("over_a_list_of_it", "for _, name in enumerate(names):"),
        ("over_an_attribute", "for part in model.parts:"),
        ("over_a_set_of_a_list", "for word in set(WORDS):"),
        ("over_a_set_of_a_call", "for _, word in enumerate(frozenset(dict.fromkeys(WORDS))):"),
        ("over_a_comprehension_of_sets", "for word in {word.lower() for word in WORDS}:"),
        ("over_a_union", "for word in NAMES.union(WORDS):"),
        ("over_keys_of_both", "for word in dict.fromkeys(WORDS).keys() & NAMES:"),
        ("in_a_comprehension", '[reduce(name) for name in {"a", "bc"}]'),
    ],
)
def test_a_loop_over_a_set_of_strings_is_named(case: str, loop: str) -> None:
    line = next(number for number, line in enumerate(LINES, 1) if line.strip() == loop)
    (remark,) = remarks(case)
    assert f"at {PROGRAM}:{line}: ranks have one order" in remark


@pytest.mark.parametrize(
    "case", ["sorted_names", "numbers", "a_set_of_lengths", "a_dictionary", "before_and_after"]
)
def test_what_has_one_order_is_not(case: str) -> None:
    assert not remarks(case)
