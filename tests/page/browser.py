"""A headless browser, spoken to as W3C WebDriver says; what tests of pages need of it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRIVER = shutil.which("chromedriver")
BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
MISSING = (
    ""
    if DRIVER and BROWSER
    else "no Chromium with its chromedriver here (Debian: apt-get install chromium chromium-driver)"
)
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-dev-shm-usage", "--disable-component-update", "--no-first-run",
    # A page that asked for anything would fail.
    "--host-resolver-rules=MAP * ~NOTFOUND", "--force-color-profile=srgb", "--hide-scrollbars",
)  # fmt: skip
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_CENTRE = "arguments[0].scrollIntoView({ block: 'center' })"
_TIMEOUT_S = 60


class Browser:
    """One window."""

    def __init__(self, address: str, session: str) -> None:
        self._address = f"{address}/session/{session}"

    def _call(self, path: str, **value: Any) -> Any:
        return _post(f"{self._address}/{path}", value)

    def open(self, page: Path) -> None:
        """Load a file, and wait until its scripts have run."""
        self._call("url", url=page.absolute().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function of this body returns; of a promise, what it becomes."""
        body = f"return (async function() {{ {script} }}).apply(null, arguments);"
        return self._call("execute/sync", script=body, args=list(arguments))

    def size(self, width: int, height: int) -> None:
        self._call("window/rect", width=width, height=height)

    def click(self, selector: str) -> None:
        """Click on the middle of an element, which is scrolled to first."""
        result = self._call("element", using="css selector", value=selector)
        # In the middle nothing that sticks to the top covers it.
        self._call("execute/sync", script=_CENTRE, args=[result])
        self._call(f"element/{result[_ELEMENT]}/click")

    def click_at(self, x: float, y: float) -> None:
        """Click on a place of the window."""
        move = {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}
        actions = [move, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        pointer = {"type": "pointer", "id": "mouse", "actions": actions}
        self._call("actions", actions=[pointer])

    def console(self) -> list[str]:
        """Return what the console has said since the last call, warnings and errors."""
        entries = self._call("se/log", type="browser")
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def picture(self) -> bytes:
        """Return what the window shows, as a PNG."""
        with urllib.request.urlopen(f"{self._address}/screenshot", timeout=_TIMEOUT_S) as reply:
            return base64.b64decode(json.load(reply)["value"])


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield a browser that ends with the block."""
    assert DRIVER is not None
    with subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            port = next(
                result[1]
                for line in driver.stdout
                if (result := re.search(r"started successfully on port (\d+)", line))
            )
            address = f"http://127.0.0.1:{port}"
            options = {"binary": BROWSER, "args": [*_FLAGS]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            value = {"capabilities": {"alwaysMatch": wanted}}
            session = _post(f"{address}/session", value)["sessionId"]
            try:
                yield Browser(address, session)
            finally:
                # Without this the browser would outlive its driver.
                end = urllib.request.Request(f"{address}/session/{session}", method="DELETE")
                urllib.request.urlopen(end, timeout=_TIMEOUT_S).close()
        finally:
            driver.terminate()


def _post(address: str, value: Any) -> Any:
    request = urllib.request.Request(address, json.dumps(value).encode())
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
            return json.load(reply)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error)["value"]["message"]) from None
