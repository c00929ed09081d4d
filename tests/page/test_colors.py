"""A colour of the page means one thing, wherever it is used."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib import resources

ASSETS = resources.files("kernbench.page") / "assets"
ALIKE = (
    {"links", "collective", "communication"},
    {"copy", "host link"},
    {"launch", "capture", "host launch"},
    {"dispatch", "host operations"},
    {"python", "host Python"},
    {"allocate", "allocator"},
    {"read", "host read"},
    {"idle", "host"},
)
"""Names of one thing: as a resource, a kind of slice, a phase of memory, a part of energy."""


def test_a_color_of_a_page_means_one_thing() -> None:
    meanings: defaultdict[str, set[str]] = defaultdict(set)
    for file in ("colors.js", "memory.js", "energy.js"):
        text = (ASSETS / file).read_text()
        for table in re.findall(r"const \w+_COLORS = \{(.*?)\};", text, re.DOTALL):
            for quoted, plain, color in re.findall(r'(?:"([^"]+)"|(\w+)): "(#[0-9a-f]{6})"', table):
                name = quoted or plain
                one = next((item for item in ALIKE if name in item), {name})
                meanings[color].add(min(one))
        for listed in re.findall(r"const KERNEL_COLORS = \[(.*?)\];", text):
            for place, color in enumerate(re.findall(r"#[0-9a-f]{6}", listed)):
                meanings[color].add(f"kernel {place}")
    assert len(meanings) > 30
    assert {color: names for color, names in meanings.items() if len(names) > 1} == {}
