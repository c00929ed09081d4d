"""Wait in an event loop of asyncio for other processes."""

import asyncio
import time


async def wait(seconds, timeout):
    start = time.perf_counter()
    process = await asyncio.create_subprocess_exec("sleep", str(seconds))
    try:
        return await asyncio.wait_for(process.wait(), timeout), time.perf_counter() - start
    except TimeoutError:
        process.kill()
        return await process.wait(), time.perf_counter() - start


async def main():
    code, took = await wait(0.3, 30)
    assert code == 0
    assert 0.1 < took < 5, took
    code, took = await wait(30, 0.1)
    assert code == -9
    assert 0.05 < took < 5, took
    process = await asyncio.create_subprocess_exec("echo", "hello", stdout=-1)
    said, _ = await process.communicate()
    assert said == b"hello\n"


asyncio.run(main())
