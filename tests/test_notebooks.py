"""The bar in a notebook, in a real kernel: what is displayed while a cell runs, and after it."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench import notebooks
from kernbench.notebooks import notebook, notebook_progress

AT_ONCE = """
import time
from kernbench import RuntimeContext, notebooks
from kernbench.cli.console.progress import progress
notebooks.SHOWN_AFTER_S = notebooks._REFRESH_S = 0.05
"""
A_RUN = """
with RuntimeContext("ahbm:2") as torch:
    x = torch.ones(8) + torch.ones(8)
    time.sleep(0.3)
    print(x.sum().item())
"""
OVER_CELLS = """
context = RuntimeContext("ahbm")
torch = context.__enter__()
time.sleep(0.2)
"""
A_SWEEP = """
with progress(lambda: "3 of 4 <points>", lambda: 0.75):
    time.sleep(0.2)
"""
QUICK = """
notebooks.SHOWN_AFTER_S = 60
with RuntimeContext("ahbm"):
    pass
"""


def displayed(client: Any, code: str) -> tuple[list[str], str]:
    """Run a cell; return what the bar showed, one text after the other, and what was printed."""
    shown: list[str] = []
    printed: list[str] = []

    def see(message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        assert kind != "error", content
        if kind in ("display_data", "update_display_data"):
            shown.append(content["data"]["text/html"])
        elif kind == "stream":
            printed.append(content["text"])

    client.execute_interactive(code, output_hook=see, timeout=60)
    return shown, "".join(printed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the kernel's own packages warn about
def test_a_notebook_shows_a_bar_while_a_cell_runs_and_nothing_afterwards() -> None:
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(kernel_name="python3")
    try:
        displayed(client, AT_ONCE)
        shown, printed = displayed(client, A_RUN)
        assert printed == "16.0\n"
        assert len(shown) > 2
        assert shown[-1] == ""
        assert all("simulated, " in item and "<progress max" in item for item in shown[:-1])
        # A run may go on in other cells; its bar is the first's.
        shown, _ = displayed(client, OVER_CELLS)
        assert len(shown) > 1
        assert shown[-1] == ""
        assert displayed(client, "time.sleep(0.3)") == ([], "")
        assert displayed(client, "context.__exit__(None, None, None)") == ([], "")
        shown, _ = displayed(client, A_SWEEP)
        assert 'value="0.7500"' in shown[0]
        assert "3 of 4 &lt;points&gt;" in shown[0]
        assert shown[-1] == ""
        assert displayed(client, QUICK) == ([], "")
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def test_elsewhere_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notebooks, "SHOWN_AFTER_S", 0.0)
    assert notebook() is None
    with notebook_progress(lambda: pytest.fail("nobody asks")):
        pass
    assert capsys.readouterr() == ("", "")
