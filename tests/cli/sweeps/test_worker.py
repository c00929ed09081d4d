"""Servers that run points for a worker of an engine."""

from __future__ import annotations

import pytest

from kernbench.cli.sweeps.engines import LostPointError, Server


@pytest.mark.adr("0150-D5")
def test_a_server_that_another_thread_has_ended_loses_its_point() -> None:
    server = Server()
    server.end()
    with pytest.raises(LostPointError, match="has ended"):
        server.run({})
