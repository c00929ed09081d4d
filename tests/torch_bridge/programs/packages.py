"""Imports the packages that a test has installed, and looks at what they keep for whom.

python packages.py CASE [ARGUMENTS]
"""

import importlib
import sys
import threading
import time
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def nothing():
    """Import none."""


def state_of_its_own():
    import kb_stateful_package.state as state
    import kb_user_of_it

    kb_user_of_it.keep(rank)
    dist.barrier()
    assert state.kept() == kb_user_of_it.kept() == {rank}, state.kept()


def sharing(folder, *names):
    """Write which ranks each of the packages has met."""
    met = []
    for name in names:
        package = importlib.import_module(name)
        package.ranks.append(rank)
        dist.barrier()
        met.append(sorted(package.ranks))
    Path(folder, str(rank)).write_text(str(met))


def what_a_shared_one_imports():
    if rank == 1:
        # Whoever is first, and whatever it has imported before.
        import kb_pure_package

        kb_pure_package.kept.append(rank)
        import kb_native_package
    dist.barrier()
    import kb_native_package
    import kb_pure_package

    assert kb_pure_package.rank == str(rank)
    assert kb_pure_package.kept == ([1] if rank == 1 else [])
    assert kb_native_package.known is not kb_pure_package
    assert (kb_native_package.known.rank, kb_native_package.known.kept) == (None, [])


def seen():
    return [module for module in sorted(sys.modules) if module.startswith("kb_")]


def modules_of_some_ranks():
    if rank == 0:
        import kb_one.part

        kb_one.who = "rank 0"
    dist.barrier()
    assert seen() == (["kb_one", "kb_one.part"] if rank == 0 else [])
    if rank == 1:
        import kb_one
        import kb_two

        del sys.modules["kb_one"]
    if rank == 2:
        sys.modules["kb_two"] = None  # type: ignore[assignment]  # what says that there is none
    dist.barrier()
    assert seen() == [["kb_one", "kb_one.part"], ["kb_two"], ["kb_two"]][rank]
    try:
        import kb_two  # noqa: F401

        assert rank != 2
    except ImportError:
        assert rank == 2
    import kb_one

    assert kb_one.who == ("rank 0" if rank == 0 else None)


def import_slow_module():
    import kb_slow_module

    assert kb_slow_module.ended


def imports_that_wait():
    import kb_meeting_package

    assert kb_meeting_package.met
    # All ranks find the one that is being imported by the first.
    import kb_native_package

    assert kb_native_package.ended
    threads = [threading.Thread(target=import_slow_module) for _ in range(3)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for item in threads:
        item.join()
    assert 1 <= time.monotonic() - began < 1.5


globals()[sys.argv[1]](*sys.argv[2:])
