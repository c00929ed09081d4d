from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench.cli.programs.failures import describe_failure, format_ranks, is_interrupt, is_users
from kernbench.errors import InternalError
from kernbench.report.units import format_ns
from kernbench.runtime_api import SpawnException


def raised(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def fail(error: BaseException) -> None:
    raise error


def test_only_the_users_frames_are_shown_with_their_source() -> None:
    text = describe_failure(raised(lambda: format_ns("three")))  # type: ignore[arg-type]
    assert "TypeError" in text
    assert "test_failures.py" in text
    assert "format_ns" in text
    assert "units.py" not in text.partition("raised at")[0]
    assert "Traceback" not in text


@pytest.mark.adr("0011-D4")
def test_equal_failures_of_several_ranks_are_one_with_their_ranks() -> None:
    errors = {rank: raised(lambda: fail(ValueError("bad luck"))) for rank in (0, 1, 2, 5)}
    errors[3] = raised(lambda: fail(KeyError("x")))
    text = describe_failure(SpawnException(errors))  # type: ignore[arg-type]
    assert text.startswith("error on ranks 0-2, 5: ValueError: bad luck")
    assert "error on rank 3: KeyError: 'x'" in text
    assert text.count("bad luck") == 2, "the message, and the line that raised it"


def test_of_many_different_failures_the_first_are_shown() -> None:
    errors = {rank: ValueError(f"of rank {chr(33 + rank)}") for rank in range(64)}
    text = describe_failure(SpawnException(errors))
    assert "error on rank 3: ValueError: of rank $" in text
    assert text.endswith("and other errors on ranks 4-63; --debug shows all")


def test_failures_that_differ_in_numbers_only_are_told_once_in_the_words_of_the_first() -> None:
    errors = {rank: ValueError(f"rank {rank} cannot send to itself") for rank in (1, 2, 3)}
    text = describe_failure(SpawnException(errors))
    assert text == (
        "error on ranks 1-3 (the words of rank 1): ValueError: rank 1 cannot send to itself"
    )


def test_who_waited_stands_below_the_line_that_failed() -> None:
    error = raised(lambda: fail(ValueError("bad luck")))
    error.add_note("rank 0  all_reduce #1 on group world, waits for rank 2")
    lines = describe_failure(error).splitlines()
    assert lines[0] == "error: ValueError: bad luck"
    assert lines[-1] == "  rank 0  all_reduce #1 on group world, waits for rank 2"


def test_a_cause_that_the_error_quotes_is_not_told_twice() -> None:
    error = ValueError("at 2:41: must be a power of 2")
    error.__cause__ = ValueError("must be a power of 2")
    assert describe_failure(error) == "error: ValueError: at 2:41: must be a power of 2"


def test_a_source_that_is_not_on_this_machine_is_nobodys() -> None:
    assert not is_users("pyarrow/error.pxi")


def test_the_cause_comes_before_what_it_led_to() -> None:
    def chained() -> None:
        try:
            fail(KeyError("first"))
        except KeyError as error:
            raise ValueError("second") from error

    text = describe_failure(raised(chained))
    assert text.index("KeyError: 'first'") < text.index("then:") < text.index("ValueError: second")


def test_a_failed_check_says_what_differed_and_a_bare_assert_shows_its_line() -> None:
    assert "check failed: off by 3" in describe_failure(AssertionError("off by 3"))

    def bare() -> None:
        one = 1
        assert one == 2

    error = raised(bare)
    error.args = ()
    text = describe_failure(error)
    assert "check failed\n" in text
    assert "assert one == 2" in text


def test_deep_calls_are_cut_to_the_innermost() -> None:
    def deep(levels: int) -> None:
        if not levels:
            fail(ValueError("deep"))
        deep(levels - 1)

    text = describe_failure(raised(lambda: deep(30)))
    assert "calls before" in text
    assert len(text.splitlines()) < 20


def test_a_deep_recursion_is_told_at_once() -> None:
    def deep(levels: int) -> None:
        if not levels:
            fail(ValueError("deep"))
        deep(levels - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        error = raised(lambda: deep(20_000))
    finally:
        sys.setrecursionlimit(limit)
    is_users.cache_clear()
    assert "calls before" in describe_failure(error)
    # What the file system is asked for is asked for each file, not for each call.
    assert is_users.cache_info().misses < 10


def test_an_assert_of_a_program_is_no_check_of_a_bench(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("def work():\n    assert False, 'sum is wrong'\n")
    code = compile(path.read_text(), str(path), "exec")
    for name, said in (("__main__", "AssertionError"), ("kernbench_bench_x", "check failed")):
        namespace = {"__name__": name}
        exec(code, namespace)
        text = describe_failure(raised(namespace["work"]))  # type: ignore[arg-type]
        assert text.startswith(f"error: {said}: sum is wrong\n")


def test_a_gpu_that_pytorch_itself_is_asked_for_names_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("PyTorch has a GPU")
    monkeypatch.delitem(sys.modules, "kernbench.torch_bridge.front.programs", raising=False)
    text = describe_failure(raised(torch.cuda.current_device))
    assert "check failed" not in text
    assert "kernbench run FILE runs PyTorch programs on simulated devices" in text
    of_another = describe_failure(raised(lambda: fail(AssertionError("no CUDA here"))))
    assert "torchrun" not in of_another


def test_a_bug_of_ours_says_so() -> None:
    assert "bug in kernbench" in describe_failure(InternalError("oops"))


def test_a_foreign_error_from_inside_kernbench_says_where_it_came_from() -> None:
    text = describe_failure(raised(lambda: format_ns("three")))  # type: ignore[arg-type]
    assert "raised at report/units.py:" in text
    of_the_user = describe_failure(raised(lambda: fail(ValueError("of the user"))))
    assert "of kernbench" not in of_the_user


def test_a_syntax_error_points_at_the_line() -> None:
    text = describe_failure(raised(lambda: compile("x = = 3", "mine.py", "exec")))
    assert "mine.py:1" in text
    assert "x = = 3" in text


def test_a_group_that_a_program_raises_is_told_with_all_that_is_in_it() -> None:
    group = ExceptionGroup("both failed", [ValueError("bad 0"), ValueError("bad 1")])
    text = describe_failure(group)
    assert text.splitlines() == [
        "error: ExceptionGroup: both failed (2 sub-exceptions)",
        "  1. ValueError: bad 0",
        "  2. ValueError: bad 1",
    ]
    many = describe_failure(ExceptionGroup("all", [ValueError(str(i)) for i in range(9)]))
    assert many.splitlines()[-1] == "  and 5 more; --debug shows all"


def test_an_interrupt_is_found_on_any_rank() -> None:
    group = BaseExceptionGroup("ranks", [ValueError(), KeyboardInterrupt()])
    assert is_interrupt(group)
    assert not is_interrupt(ValueError())


def test_benches_that_ship_are_the_users_and_libraries_are_not() -> None:
    import numpy

    import kernbench
    from kernbench.cli.programs.bench_file import shipped_folder

    assert is_users(str(shipped_folder() / "gemm.py"))
    assert is_users(__file__)
    assert not is_users(kernbench.__file__)
    assert not is_users(numpy.__file__)
    assert not is_users(str(Path(pytest.__file__)))
    assert not is_users("<frozen importlib._bootstrap>")


@pytest.mark.parametrize(
    ("ranks", "text"), [([4], "rank 4"), ([1, 0], "ranks 0-1"), ([0, 2, 3, 3], "ranks 0, 2-3")]
)
def test_ranks_are_listed_in_few_words(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


OURS = """
class Pile(list):
    def pop(self, index):
        return super().pop(index)

    def top(self):
        return super().pop(len(self))

    def sort(self):
        raise RuntimeError("a pile stays as it is")

    def clear(self):
        assert not self, "somebody needs it"

    def copy(self):
        return b" " * (1 << 62)

    def index(self, call=list.index):
        return call(self, len(self) + 1)

    def remove(self):
        inner = super().remove
        return (lambda: inner(len(self) + 1))()

    def insert(self):
        inner = super().pop
        return inner(len(self))
"""


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        *(("pop", False), ("top", True), ("sort", False), ("clear", True), ("copy", False)),
        *(("index", False), ("remove", False), ("insert", True)),
    ],
)
def test_only_what_ours_neither_says_nor_hands_on_may_be_a_mistake_of_ours(
    name: str, is_ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kernbench

    path = tmp_path / "kernbench" / "pile.py"
    path.parent.mkdir()
    path.write_text(OURS)
    monkeypatch.setattr(kernbench, "__file__", str(path))
    is_users.cache_clear()
    try:
        namespace: dict[str, Any] = {}
        exec(compile(OURS, str(path), "exec"), namespace)
        pile = namespace["Pile"]([1])
        numbers = [5] if name == "pop" else []
        text = describe_failure(raised(lambda: getattr(pile, name)(*numbers)))
    finally:
        is_users.cache_clear()
    assert ("raised at pile.py:" in text) is is_ours
