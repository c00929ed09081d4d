"""Ranks that wait, with timeouts of 30 seconds, by simulated clocks.

python timeouts.py BACKEND CASE
"""

import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

backend = sys.argv[1]
dist.init_process_group(backend, timeout=timedelta(seconds=30))
rank, x = dist.get_rank(), torch.ones(4)
store = dist.distributed_c10d._get_default_store()
if backend == "nccl":
    torch.cuda.set_device(rank)
    x = x.cuda()


def now():
    return time.monotonic() - 86400


def in_time():
    if rank == 0:
        time.sleep(29)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        time.sleep(0.5)
    assert x.tolist() == [3] * 4
    assert 29 <= now() < 30
    dist.barrier()


def group_of_its_own():
    group = dist.new_group(timeout=timedelta(seconds=100))
    if rank == 0:
        time.sleep(99)
    dist.barrier(group)
    if rank == 0:
        time.sleep(101)
    dist.all_reduce(x, group=group)


def waits_that_are_given_up():
    def timed(call, *args):
        begun = now()
        try:
            call(*args)
        except RuntimeError as error:
            return round(now() - begun, 3), type(error), str(error)
        raise AssertionError("no timeout")

    took, kind, said = timed(store.wait, ["never"], timedelta(seconds=3))
    assert took == 3
    assert issubclass(kind, dist.DistStoreError)
    assert "not set:" in said
    if rank:
        took, kind, said = timed(dist.all_reduce(x, async_op=True).wait, timedelta(seconds=5))
        assert took == 5
        assert "without rank 0" in said
        assert "rank 0  time.sleep" in said
    else:
        time.sleep(20)
        # It timed out for all.
        assert timed(dist.all_reduce, x)[0] == 0
    if dist.get_backend() == "gloo":
        seven = timedelta(seconds=7)

        def late():
            time.sleep(50)
            dist.barrier()

        if rank:
            took, kind, said = timed(lambda: dist.monitored_barrier(timeout=seven))
        else:
            took, kind, said = timed(late)
        assert took in (7, 50)
        assert "barrier #2 on group world timed out" in said


def waits_that_end_in_time():
    if rank == 0:
        time.sleep(2)
        store.set("late", "1")
    store.wait(["late"], timedelta(seconds=3))
    time.sleep(2 if rank == 0 else 0)
    assert dist.all_reduce(x, async_op=True).wait(timedelta(seconds=3))
    dist.monitored_barrier(timeout=timedelta(seconds=3))
    assert 4 <= now() < 4.001
    assert x.tolist() == [3] * 4


def looks():
    event = threading.Event()

    def work():
        time.sleep(1)
        event.set()
        time.sleep(1)

    thread = threading.Thread(target=work)
    thread.start()
    while not event.is_set():
        pass
    assert 1 <= now() < 1.01
    while thread.is_alive():
        pass
    assert 2 <= now() < 2.02
    if rank == 0:
        time.sleep(1)
        store.set("key", "1")
    while not store.check(["key"]):
        pass
    assert 3 <= now() < 3.03


def own_deadline():
    if rank == 0:
        while not store.check(["never"]):
            if now() > 20:
                break
    dist.barrier()
    assert 20 <= now() < 20.1


def a_poll():
    work: Any = dist.all_reduce(x, async_op=True) if rank else None
    while rank and not work.is_completed():
        pass


def a_poll_that_sleeps():
    work: Any = dist.all_reduce(x, async_op=True) if rank else None
    while rank and not work.is_completed():
        time.sleep(0.01)


def a_sleep():
    while rank == 0:
        time.sleep(1)
    dist.barrier()


def a_look_at_a_key():
    while rank == 0 and not store.check(["never"]):
        pass
    dist.barrier()


def a_look_at_a_clock():
    while rank == 0 and time.monotonic() < 10**6:
        pass
    dist.barrier()


def a_receive():
    while rank == 0:
        time.sleep(1)
    if rank == 1:
        dist.recv(x, 0)


def a_late_rank():
    if rank == 0:
        torch.cuda.synchronize()
        time.sleep(31)
    dist.barrier()


def looks_at_an_event_for_ever():
    event = threading.Event()
    while rank == 0 and not event.is_set():
        pass


def looks_at_a_key_for_ever():
    while rank == 0 and not store.check(["never"]):
        pass


def sleeps_for_ever():
    while rank == 0:
        time.sleep(0.1)


def meeting_without_rank_0():
    if rank:
        dist.barrier()


if __name__ == "__main__":
    globals()[sys.argv[2]]()
