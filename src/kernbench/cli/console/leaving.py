"""How the command ends after a PyTorch program."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from kernbench.open_files import open_files, write_out, written_files


def leave(status: int) -> None:
    """End the process now if that changes nothing a user can observe; else return.

    Python would first take apart all that PyTorch and Triton have made, which takes a tenth of the
    time of a short program. Functions registered with ``atexit`` run and output is written, as
    always. Other threads, profilers and debuggers are waited for in Python's own way.
    """
    others = [thread for thread in threading.enumerate() if not thread.daemon]
    if len(others) > 1 or sys.getprofile() is not None or sys.gettrace() is not None:
        return
    atexit._run_exitfuncs()
    if written_files():
        write_out(open_files(), is_end=True)
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # somebody reads it
                stream.flush()
    except (OSError, ValueError):  # ValueError: closed
        return
    os._exit(status)
