"""Register handlers for the end of all kinds, and end.

python endings.py PATH (ends | exits | raises) says in PATH and the rank what is called.
"""

import atexit
import functools
import os
import sys
import threading
import time
import weakref
from pathlib import Path

import torch  # noqa: F401 # It has finalizers itself, which decides when those of others are called.

out = Path(sys.argv[1] + os.environ.get("RANK", "0"))
out.touch()


at_threads_end = getattr(threading, "_register_atexit")  # noqa: B009


def say(what):
    with out.open("a") as file:
        print(what, file=file)


class Kept:
    pass


kept = Kept()
atexit.register(say, "registered early")
weakref.finalize(kept, say, "finalizer 1")
weakref.finalize(kept, say, "finalizer 2")
weakref.finalize(kept, say, "not at the end").atexit = False
early = Kept()
weakref.finalize(early, say, "as it dies")
del early


@atexit.register
def decorated():
    say("decorated")
    atexit.register(say, "registered meanwhile")


def broken(what):
    raise ValueError(what)


atexit.register(broken, "printed, and no more")
atexit.register(sys.exit, 3)
atexit.register(say, "unregistered")
atexit.register(functools.partial(say, "a partial"))


def unregistered():
    say("never")


atexit.register(unregistered)
atexit.register(unregistered)
atexit.unregister(unregistered)
atexit.register(weakref.finalize(kept, broken, "of a finalizer").detach)
at_threads_end(say, "before threads")
at_threads_end(say, "first of all")


def late():
    time.sleep(0.01)
    say("a thread")


threading.Thread(target=late).start()
say("the end of the program")
END = sys.argv[2]
if END == "exits":
    sys.exit(0)
if END == "raises":
    raise ValueError("the program")
