"""Log in three ranks: simulated ones meet, real ones (whose rank is an argument) only log.

python loggers.py FOLDER [RANK]
"""

import logging
import os
import sys
from pathlib import Path

import torch.distributed as dist

IS_SIMULATED = len(sys.argv) == 2
RANK = int(os.environ["RANK"] if IS_SIMULATED else sys.argv[2])


def meet() -> None:
    if IS_SIMULATED:
        dist.barrier()


if IS_SIMULATED:
    dist.init_process_group("gloo")
place = Path(sys.argv[1], f"{'simulated' if IS_SIMULATED else 'real'} {RANK}")
with place.open("w") as said:
    logging.basicConfig(
        stream=said,
        force=True,
        level=logging.INFO if RANK == 0 else logging.ERROR,
        format=f"{RANK} %(levelname)s %(name)s %(message)s",
    )
    log, other = logging.getLogger("of.the.program"), logging.getLogger("another")
    for level in range(3):
        log.info("first %d", level)
        log.error("second %d", level)
        meet()
    other.propagate = RANK == 1
    other.addFilter(lambda record: RANK < 2)
    log.setLevel(logging.ERROR if RANK == 0 else logging.DEBUG)
    meet()
    for item in (log, other):
        item.debug("third")
        item.info("fourth")
        item.error("fifth %s", item.isEnabledFor(20))
    meet()
    if RANK == 2:
        logging.disable(logging.ERROR)
    meet()
    log.error("sixth")
    log.disabled = RANK == 1
    meet()
    log.critical("seventh")
    meet()
    logging.getLogger().handlers.clear()
