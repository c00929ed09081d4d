"""The program of ``kernbench run --beside``: commands as processes of one run.

Each is started as ``multiprocessing`` starts processes anew. When those beside the first have
ended, it is told to end (SIGTERM); if it fails before, they are. The exit status is the first that
is not 0.
"""

import json
import multiprocessing
import runpy
import sys

POLL_S = 0.1


def run(module: str, argv: list[str]) -> None:
    """Run a file, or a module as ``python -m`` would, with its arguments."""
    sys.argv = argv
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    first, *others = (context.Process(target=run, args=item) for item in json.loads(sys.argv[1]))
    first.start()
    for process in others:
        process.start()
    while any(process.is_alive() for process in others) and not first.exitcode:
        for process in others:
            process.join(POLL_S)
    ended = next((item.exitcode for item in (first, *others) if item.exitcode), 0)
    for process in (first, *others):
        process.terminate()
        process.join()
    sys.exit(ended)
