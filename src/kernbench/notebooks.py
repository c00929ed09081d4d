"""A bar in a notebook for what takes long, shown by IPython until the work or its cell ends."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from time import perf_counter
from typing import Any

SHOWN_AFTER_S = 1.0
_REFRESH_S = 0.5


def notebook() -> Any:
    """Return the shell of the notebook that this process serves, None if it serves none."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


@contextmanager
def notebook_progress(
    describe: Callable[[], str], share: Callable[[], float] | None = None
) -> Iterator[None]:
    """Show ``describe()`` and the elapsed time in a notebook while the block runs.

    From :data:`SHOWN_AFTER_S` seconds on, and until the cell ends in which it began. Elsewhere
    than in a notebook nothing happens. Both functions are called from another thread: they must
    only look at plain values. ``share`` says which part is done, from 0 to 1; without it the bar
    only moves.
    """
    shell = notebook()
    if shell is None:
        yield
        return
    ended = threading.Event()
    # What is displayed belongs to the cell that the context knows.
    show = contextvars.copy_context().run
    thread = threading.Thread(target=show, args=(_show, describe, share, ended), daemon=True)
    thread.start()

    def end(*of_cell: Any) -> None:
        ended.set()
        thread.join()

    shell.events.register("post_run_cell", end)
    try:
        yield
    finally:
        shell.events.unregister("post_run_cell", end)
        end()


def _show(
    describe: Callable[[], str], share: Callable[[], float] | None, ended: threading.Event
) -> None:
    begun_s = perf_counter()
    if ended.wait(SHOWN_AFTER_S):
        return
    from IPython.display import HTML, display

    def html() -> Any:
        value = "" if share is None else f' value="{share():.4f}"'
        text = escape(f"{perf_counter() - begun_s:.0f} s  {describe()}")
        return HTML(f'<div><progress max="1"{value}></progress> <code>{text}</code></div>')

    shown = display(html(), display_id=True)
    while not ended.wait(_REFRESH_S):
        shown.update(html())
    shown.update(HTML(""))
