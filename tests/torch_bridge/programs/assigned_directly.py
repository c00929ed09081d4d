"""Rank 0 changes what its libraries have in containers and in C; what does each rank find?

python assigned_directly.py FOLDER
"""

import copy
import encodings.aliases as aliases
import errno
import fractions
import gc
import html.entities as entities
import json
import pickle
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

Kind = tuple[Callable[[], object], Callable[[], object]]
KINDS: dict[str, Kind] = {
    "a number in a list": (
        lambda: cast(Any, random.__all__).append(7),
        lambda: 7 in cast(Any, random.__all__),
    ),
    "a number by a name": (
        lambda: entities.name2codepoint.update(kb=5),
        lambda: entities.name2codepoint.get("kb"),
    ),
    "a name by a number": (
        lambda: cast(Any, errno.errorcode).update({99999: "EKB"}),
        lambda: errno.errorcode.get(99999),
    ),
    "of what ranks run by": (
        lambda: aliases.aliases.update(kb="utf_8"),
        lambda: aliases.aliases.get("kb"),
    ),
    "a class in a set": (
        lambda: torch._storage_classes.add(fractions.Fraction),
        lambda: fractions.Fraction in torch._storage_classes,
    ),
    "a set that a function puts in place": (
        lambda: torch.serialization.add_safe_globals([fractions.Fraction]),
        lambda: fractions.Fraction in torch.serialization.get_safe_globals(),
    ),
    "by a class": (
        lambda: cast(Any, copy)._deepcopy_dispatch.update({memoryview: print}),
        lambda: memoryview in cast(Any, copy)._deepcopy_dispatch,
    ),
    "by a class, of a class": (
        lambda: cast(Any, pickle)._Pickler.dispatch.update({memoryview: print}),
        lambda: memoryview in cast(Any, pickle)._Pickler.dispatch,
    ),
    "a table of names": (
        lambda: signal.Signals._value2member_map_.update({999: signal.SIGINT}),
        lambda: 999 in signal.Signals._value2member_map_,
    ),
    "a finder": (
        lambda: cast(Any, sys.meta_path).append(object),
        lambda: object in cast(Any, sys.meta_path),
    ),
    "collections": (lambda: gc.disable() if gc.isenabled() else gc.enable(), gc.isenabled),
}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for change, _ in KINDS.values():
        if rank == 0:
            change()
        dist.barrier()
    result: dict[str, Any] = {name: see() for name, (_, see) in KINDS.items()}
    (folder / f"rank{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
