"""``tl.device_print`` and ``tl.device_assert`` from the kernel's text to what the user sees."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton
import triton.language as tl

from kernbench import RuntimeContext
from kernbench.cli.programs.failures import describe_failure
from kernbench.errors import DeviceAssertError


@triton.jit
def tell(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < n, other=0.0)
    tl.device_print("value", value, offsets)
    tl.store(x + offsets, value + 1, mask=offsets < n)


@triton.jit
def tell_in_a_loop(out, n):
    program = tl.program_id(0) * 2 + tl.program_id(1)
    total = 0
    for i in range(n):
        total += i
        tl.device_print("i", i)
    if program == 2:
        print("two")
    tl.store(out + program, total)


@triton.jit
def tell_types(bits, small, wide, halves, flags):
    tl.device_print("hex", tl.load(bits), hex=True)
    tl.device_print("unsigned", tl.load(bits))
    tl.device_print("signed", tl.load(bits).to(tl.int32, bitcast=True))
    tl.device_print("small", tl.load(small), hex=True)
    tl.device_print("wide", tl.load(wide))
    tl.device_print("half", tl.load(halves))
    tl.device_print("flag", tl.load(flags) > 0)
    tl.device_print("pointer", wide + 2)


@triton.jit
def demand(x, limit, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets)
    tl.device_assert(value < limit, "value is too large")
    tl.static_assert(BLOCK < 64, "blocks of 64 and more are for others")
    tl.static_print("compiling for", BLOCK)
    tl.store(x + offsets, value * 2)


@triton.jit
def demand_of_index(x, n):
    program = tl.program_id(0)
    tl.device_assert(program < n)
    tl.store(x + program, program)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.adr("0051-D1")
def test_programs_print_in_order_and_each_its_statements_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with RuntimeContext() as torch:
        x = torch.tensor([0.5, 1.5, 2.5])
        tell[(2,)](x, 3, BLOCK=2)
        assert x.tolist() == [1.5, 2.5, 3.5]
    values = [0.5, 1.5, 2.5, 0.0]
    expected = []
    for program in range(2):
        own = range(2 * program, 2 * program + 2)
        for operand, texts in enumerate([[f"{values[i]:f}" for i in own], [str(i) for i in own]]):
            expected += [
                f"pid ({program}, 0, 0) idx ({i}) value: (operand {operand}) {text}"
                for i, text in enumerate(texts)
            ]
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.adr("0051-D1")
def test_loops_print_in_each_iteration_and_groups_of_programs_do_not_mix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with RuntimeContext() as torch:
        out = torch.zeros(4, dtype=torch.int32)
        tell_in_a_loop[(2, 2)](out, 3)
    lines = capsys.readouterr().out.splitlines()
    order = [(0, 0), (1, 0), (0, 1), (1, 1)]
    expected = []
    for x, y in order:
        expected += [f"pid ({x}, {y}, 0) idx () i: {i}" for i in range(3)]
        expected += [f"pid ({x}, {y}, 0) two"] * (2 * x + y == 2)
    assert lines == expected


def test_elements_are_printed_as_triton_prints_their_types(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with RuntimeContext() as torch:
        wide = torch.tensor([-5], dtype=torch.int64)
        tell_types[(1,)](
            torch.tensor([4294967295], dtype=torch.uint32),
            torch.tensor([-1], dtype=torch.int8),
            wide,
            torch.tensor([1.5], dtype=torch.float16),
            torch.tensor([1], dtype=torch.int32),
        )
        pointer = f"{wide.data_ptr() + 16:#x}"
    texts = [line.split(") ", 2)[2] for line in capsys.readouterr().out.splitlines()]
    assert texts == [
        "hex: 0xffffffff",
        "unsigned: 4294967295",
        "signed: -1",
        "small: 0xff",
        "wide: -5",
        "half: 1.500000",
        "flag: 1",
        f"pointer: {pointer}",
    ]


def test_indices_are_padded_to_the_widest(capsys: pytest.CaptureFixture[str]) -> None:
    with RuntimeContext() as torch:
        tell[(1,)](torch.zeros(16), 16, BLOCK=16)
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "pid (0, 0, 0) idx ( 3) value: (operand 0) 0.000000"
    assert lines[12] == "pid (0, 0, 0) idx (12) value: (operand 0) 0.000000"


@pytest.mark.adr("0051-D2")
@pytest.mark.parametrize("when", ["end", "synchronize"])
def test_a_launch_prints_though_nobody_reads_its_data(
    capsys: pytest.CaptureFixture[str], when: str
) -> None:
    with RuntimeContext() as torch:
        x = torch.zeros(2)
        tell[(1,)](x, 2, BLOCK=2)
        if when == "synchronize":
            torch.ahbm.synchronize()
            assert capsys.readouterr().out.count("\n") == 4
    assert capsys.readouterr().out.count("\n") == (4 if when == "end" else 0)


def test_nothing_is_printed_when_there_is_no_data_or_only_time_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with RuntimeContext(data=False) as torch:
        tell[(1,)](torch.zeros(2), 2, BLOCK=2)
    with RuntimeContext() as torch:
        x = torch.zeros(2)
        assert triton.testing.do_bench(lambda: tell[(1,)](x, 2, BLOCK=2)) > 0
    assert capsys.readouterr().out == ""


@triton.jit
def maybe_tell(x, TELLS: tl.constexpr):
    value = tl.load(x + tl.arange(0, 32))
    if TELLS:
        tl.device_print("value", value)
        tl.device_assert(value > 0, "must be positive")
    tl.store(x + tl.arange(0, 32), tl.where(value > 0, value, 1.0))


@pytest.mark.adr("0051-D4")
def test_diagnostics_take_no_modeled_time() -> None:
    times = []
    for tells in (False, True):
        with RuntimeContext() as torch:
            maybe_tell[(1,)](torch.ones(32), tells, debug=True)
            times.append(torch.report()["kernels"][0]["time_ns"])
    assert times[0] == times[1] > 0


@pytest.mark.adr("0051-D3")
@pytest.mark.parametrize("turned_on", ["launch", "environment", "off"])
def test_a_failed_assertion_names_line_program_and_element(
    turned_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if turned_on == "environment":
        # Triton reads TRITON_DEBUG once, when it is imported.
        monkeypatch.setattr(triton.knobs.runtime, "debug", True)
    options = {"debug": True} if turned_on == "launch" else {}
    with RuntimeContext() as torch:
        x = torch.arange(16, dtype=torch.float32)
        demand[(2,)](x, 13.0, BLOCK=8, **options)
        if turned_on == "off":
            assert x.tolist() == [2.0 * i for i in range(16)]
        else:
            with pytest.raises(DeviceAssertError) as caught:
                x.tolist()
            line = demand.starting_line_number + 4
            assert str(caught.value) == (
                f"value is too large: tl.device_assert at test_diagnostics.py:{line} of kernel "
                "demand does not hold in program (1, 0, 0), element (5,)"
            )
            assert "DeviceAssertError: value is too large" in describe_failure(caught.value)
            torch.run.replay_queue._failed = None


def test_an_assertion_about_indices_is_checked_and_without_a_message_says_so() -> None:
    with RuntimeContext() as torch:
        x = torch.zeros(4, dtype=torch.int32)
        demand_of_index[(4,)](x, 4, debug=True)
        assert x.tolist() == [0, 1, 2, 3]
        demand_of_index[(4,)](x, 3, debug=True)
        with pytest.raises(DeviceAssertError, match=r"^assertion failed: .* program \(3, 0, 0\)"):
            torch.ahbm.synchronize()
        torch.run.replay_queue._failed = None


def test_what_was_printed_before_an_assertion_failed_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @triton.jit
    def both(x):
        tl.device_print("before", tl.load(x))
        tl.device_assert(tl.load(x) > 0, "negative")
        tl.device_print("after", tl.load(x))
        tl.store(x, 0.0)

    with pytest.raises(DeviceAssertError, match="negative"), RuntimeContext() as torch:
        both[(1,)](torch.tensor([-2.0]), debug=True)
    assert capsys.readouterr().out == "pid (0, 0, 0) idx () before: -2.000000\n"


def test_a_static_print_passes_through_when_the_kernel_is_compiled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with RuntimeContext() as torch:
        demand[(1,)](torch.zeros(4), 1.0, BLOCK=4)
    assert capsys.readouterr().out == "compiling for 4\n"


def test_a_static_assertion_is_an_error_of_triton_with_its_line() -> None:
    with RuntimeContext() as torch:
        x = torch.zeros(64)
        with pytest.raises(triton.CompilationError, match="blocks of 64 and more are for others"):
            demand[(1,)](x, 1.0, BLOCK=64)


def test_integer_overflow_is_asserted_in_debug_as_triton_does() -> None:
    @triton.jit
    def overflow(x, big):
        tl.store(x, big + big)

    detected = "int32 overflow detected for operation add"
    with pytest.raises(DeviceAssertError, match=detected), RuntimeContext() as torch:
        overflow[(1,)](torch.zeros(1, dtype=torch.int32), 2**31 - 2, debug=True)
