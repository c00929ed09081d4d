"""Ask where threads are, while others start and end and garbage with finalizers dies.

python asked_frames.py SECONDS
"""

import gc
import sys
import threading
import time

from kernbench.interrupts import frame_of

END = time.monotonic() + float(sys.argv[1])


class Dying:
    """Garbage that only a collection finds, and whose finalizer lets other threads run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(300):
            pass


def litter(depth: int = 30) -> None:
    """Make garbage below as many frames as can be asked for."""
    if depth:
        litter(depth - 1)
        return
    while time.monotonic() < END:
        Dying()


def start_threads() -> None:
    while time.monotonic() < END:
        thread = threading.Thread(target=Dying)
        thread.start()
        thread.join()


sys.setswitchinterval(1e-5)
gc.set_threshold(5)
threads = [
    threading.Thread(target=item, daemon=True)
    for item in (litter, litter, start_threads, start_threads)
]
for thread in threads:
    thread.start()
while time.monotonic() < END:
    frame = frame_of(threads[0].ident)
    assert frame is None or frame.f_code.co_filename
    Dying()
assert gc.isenabled()
gc.disable()
frame_of(threads[0].ident)
assert not gc.isenabled()
