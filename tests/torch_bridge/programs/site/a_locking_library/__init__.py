"""A library with locks, which starts threads and timers as it is imported."""

import threading
import time

locks = threading.Lock(), threading.RLock()
seen: list[str] = []
event = threading.Event()
event.set()
thread = threading.Thread(target=lambda: seen.append("thread"))
thread.start()
thread.join()
cancelled = threading.Timer(5, lambda: seen.append("never"))
cancelled.start()
cancelled.cancel()
threading.Timer(0.5, lambda: seen.append("timer")).start()


def forever() -> None:
    """Sleep as long as the process lives."""
    while True:
        time.sleep(1)


threading.Thread(target=forever, daemon=True).start()
