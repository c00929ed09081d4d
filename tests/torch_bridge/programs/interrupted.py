"""A thread of a rank that Ctrl-C interrupts while the rank waits for it.

python interrupted.py thread|pool
"""

import _signal  # Ctrl-C is not of the rank, whose alarms are those of ``signal`` (ADR-0214)
import sys
import threading
from concurrent.futures import ThreadPoolExecutor


def work():
    _signal.setitimer(_signal.ITIMER_REAL, 0.1, 5)  # again, as a user would
    while True:
        pass


if sys.argv[1] == "thread":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work)  # who asks for no result hears of no error
print("went on")
