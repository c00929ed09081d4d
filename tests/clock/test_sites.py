from __future__ import annotations

import json
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from kernbench.clock import (
    Rank,
    Simulation,
    is_of_program,
    local_of,
    raised_at,
    user_site,
    wait_line,
)


class Unserializable:
    """What json cannot write, found out by a function of the program's."""


def refuse(value: Any) -> Any:
    raise TypeError(value)


def test_an_error_is_placed_in_the_program_behind_a_generator_of_a_library() -> None:
    # A generator that has ended has no caller any more: only the traceback tells who called it.
    with pytest.raises(TypeError) as caught:
        list(json.JSONEncoder(indent=1).iterencode([Unserializable()]))
    site = raised_at(caught.value)
    assert site.file == __file__
    assert site.line == caught.traceback[0].lineno + 1


def test_an_error_is_placed_at_the_innermost_line_of_the_program() -> None:
    with pytest.raises(TypeError) as caught:
        list(json.JSONEncoder(indent=1, default=refuse).iterencode([Unserializable()]))
    assert str(raised_at(caught.value)) == f"test_sites.py:{refuse.__code__.co_firstlineno + 1}"


def test_what_the_compiler_wrote_is_no_line_of_the_program(tmp_path: Path) -> None:
    written = f"/cache/aj/caj{'x' * 49}.py"
    assert not is_of_program(written)
    assert is_of_program(written.replace("/aj/", "/ak/"))
    calls: dict[str, Any] = {}
    exec(compile("def call(f): return f()", written, "exec"), calls)
    assert calls["call"](user_site).file == __file__


def test_a_rank_that_has_not_had_its_first_turn_says_so() -> None:
    rank = Simulation().start_rank(3, lambda: None, lambda rank: None)
    assert isinstance(rank, Rank)
    assert wait_line(rank) == "  rank 3  has not begun"


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_what_another_environment_has_installed_is_a_library(tmp_path: Path, folder: str) -> None:
    result: dict[str, Any] = {"user_site": user_site}
    path = tmp_path / "lib" / folder / "library.py"
    exec(compile("def asked(): return user_site()", str(path), "exec"), result)
    assert result["asked"]().file == __file__
    own: dict[str, Any] = {"user_site": user_site}
    exec(compile("def asked(): return user_site()", str(tmp_path / "own.py"), "exec"), own)
    assert str(own["asked"]()) == "own.py:1"


def test_a_frame_that_is_looked_at_keeps_nothing_that_its_function_drops() -> None:
    value, other = Unserializable(), "seen"
    seen = weakref.ref(value)
    assert local_of(sys._getframe(), "value") is value
    assert local_of(sys._getframe(), "other") == other
    assert local_of(sys._getframe(), "missing") is None
    del value
    assert seen() is None


def test_what_a_program_holds_of_its_own_locals_stays() -> None:
    value = 3
    own = locals()
    assert local_of(sys._getframe(), "value") == value
    assert own["value"] == value
