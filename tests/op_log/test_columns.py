"""A log's columns are those of its objects, and need none."""

from __future__ import annotations

from typing import Any

from kernbench import RuntimeContext, ops
from kernbench.op_log import OpLog, command_columns, host_columns
from tests.op_log.test_log import template


def listed(columns: Any) -> dict[str, list[Any]]:
    return {name: list(getattr(columns, name)) for name in columns.__slots__}


def plain_log() -> OpLog:
    log, result, other = OpLog(), template("x"), template("y")
    log.plain_commands.extend((3, result, (0, 1), (2, 3), (20, 21), (30, 31), "all", (1, -1), ()))
    log.plain_instances.extend(
        (1, (0,), (2,), "sip2", 7, [5, 9], [result, other], [6, 15], [15, 17])
    )
    log.plain_commands.extend((4, other, 1, 3, 31, 32, "sip3", 0, (64, 0)))
    log.plain_spans.extend((0, "launch", "x", 1, 5, 1, "wait", "all", 5, 31))
    return log


def test_plain_values_and_objects_have_the_same_columns() -> None:
    log = plain_log()
    plain, hosts = listed(command_columns(log)), listed(host_columns(log))
    instances, spans = log.instances, log.host_spans
    assert (listed(command_columns(log)), listed(host_columns(log))) == (plain, hosts)
    assert plain["numbers"] == [instance.launch_id for instance in instances] == [1, 2, 3, 4]
    assert plain["ranks"] == [rank for instance in instances for rank in instance.ranks]
    assert plain["ends_ps"] == [time_ps for instance in instances for time_ps in instance.ends_ps]
    assert (plain["num_ranks"], plain["after"]) == ([1, 1, 2, 1], [7, 1, 1, -1, 0])
    assert hosts["ends_ps"] == [span.end_ps for span in spans]


def test_an_empty_log_has_empty_columns() -> None:
    assert not any(listed(command_columns(OpLog())).values())
    assert not any(listed(host_columns(OpLog())).values())


def test_a_report_makes_no_objects_of_commands_and_is_the_same_with_them() -> None:
    with RuntimeContext(machine="ahbm:2", ranks=2, data=False) as torch:

        def worker(rank: int) -> None:
            torch.distributed.init_process_group()
            torch.distributed.all_reduce(ops.relu(torch.zeros((64, 64))))

        torch.multiprocessing.spawn(worker, nprocs=2)
        report = torch.report()
        log = torch.op_log
        assert log.is_plain
        assert log.has_plain_spans
        end_ps = log.end_ps
        ends = [time_ps for instance in log.instances for time_ps in instance.ends_ps]
        assert end_ps == max(*ends, *(host_span.end_ps for host_span in log.host_spans))
        assert {**torch.report(), "wall_s": 0} == {**report, "wall_s": 0}
