"""What is put into a log as plain values is read as what it stands for, in order."""

from __future__ import annotations

from kernbench import RuntimeContext
from kernbench.op_log import HostSpan, Instance, OpLog, Template


def template(name: str) -> Template:
    return Template(name, "kernel", "", 10, 0, 0, {}, 0, dict)


def test_plain_values_and_objects_are_read_in_the_order_in_which_they_came() -> None:
    log, result = OpLog(), template("x")
    log.plain_instances.extend(
        (1, (0,), (2,), "sip2", 0, [5, 9], [result, result], [5, 15], [15, 17])
    )
    log.append(Instance(result, 3, (0, 1), (2, 3), (20, 21), (30, 31), "collective"))
    log.plain_instances.extend((4, (1,), (3,), "sip3", 3, [30], [result], [40], [50]))
    assert len(log) == 4
    assert [instance.launch_id for instance in log.instances] == [1, 2, 3, 4]
    second = log.instances[1]
    assert (second.template, second.ranks, second.sips) == (result, (0,), (2,))
    assert (second.starts_ps, second.ends_ps, second.stream) == ((15,), (17,), "sip2")
    assert log.end_ps == 50
    assert [instance.after for instance in log.instances] == [(0,), (1,), (), (3,)]


def test_plain_values_may_be_those_of_several_ranks() -> None:
    log, result = OpLog(), template("x")
    log.plain_instances.extend((1, (0,), (2,), "sip2", 0, [5], [result], [5], [15]))
    log.plain_commands.extend(
        (2, result, (0, 1), (2, 3), (20, 21), (30, 31), "collective", (0, 1), ())
    )
    assert [(instance.starts_ps, instance.ends_ps) for instance in log.instances] == [
        ((5,), (15,)),
        ((20, 21), (30, 31)),
    ]
    assert log.end_ps == 31


def test_commands_and_collectives_stay_plain_values_until_they_are_read() -> None:
    with RuntimeContext(machine="ahbm:2", ranks=2) as context:
        log, result = context.op_log, template("x")
        context.run.recorder.in_a_row((0,), (0,), "sip0", 0, [5], [result], [5], [15])
        context.run.recorder.command(result, (0, 1), (0, 1), (20, 21), (30, 31), "collective", 0)
        context.run.recorder.command(result, 1, 1, 22, 23, "sip1", 0, (64, 0))
        context.run.recorder.in_a_row((0,), (0,), "sip0", 0, [40], [result], [40], [50])
        assert (len(log.plain_instances), len(log.plain_commands)) == (2 * 9, 2 * 9)
        assert [instance.launch_id for instance in log.instances] == [1, 2, 3, 4]
        third = log.instances[2]
        assert (third.ranks, third.sips, third.starts_ps, third.ends_ps, third.addresses) == (
            (1,), (1,), (22,), (23,), (64, 0)
        )  # fmt: skip


def test_plain_spans_are_read_between_others() -> None:
    log = OpLog()
    log.plain_spans.extend((0, "launch", "x", 1, 2))
    log.host_spans.append(HostSpan(0, "wait", "y", 2, 3))
    log.plain_spans.extend((1, "launch", "z", 3, 4))
    expected = [(0, "launch", "x", 1, 2), (0, "wait", "y", 2, 3), (1, "launch", "z", 3, 4)]
    assert log.host_spans == [HostSpan(*item) for item in expected]  # type: ignore[arg-type]
    assert log.end_ps == 4
