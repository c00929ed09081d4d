"""Wait in an event loop of asyncio for what takes 100 s each.

python event_loop.py PATH saves in PATH and the rank what clocks have said.
"""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path


def slept():
    time.sleep(100)
    return "done"


async def main():
    said: dict[str, object] = {}
    loop = asyncio.get_running_loop()
    start = time.perf_counter(), loop.time(), time.monotonic()

    def passed():
        return [time.perf_counter() - start[0], loop.time() - start[1], time.monotonic() - start[2]]

    await asyncio.sleep(100)
    said["sleep"] = passed()
    said["gather"] = await asyncio.gather(*[asyncio.sleep((3 - i) * 100, i) for i in range(3)])
    said["gathered"] = passed()
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 100)
    except TimeoutError:
        said["timeout"] = passed()
    said["thread"] = await asyncio.to_thread(slept)
    said["threaded"] = passed()
    called = asyncio.Event()
    threading.Timer(100, loop.call_soon_threadsafe, (called.set,)).start()
    await called.wait()
    said["called"] = passed()
    loop.call_later(100, called.clear)
    while called.is_set():
        await asyncio.sleep(10)
    said["later"] = passed()
    return said


said = asyncio.run(main())
Path(f"{sys.argv[1]}{os.environ['RANK']}.json").write_text(json.dumps(said))
