from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernbench.runtime_api import RuntimeContext


@pytest.fixture(scope="module")
def torch() -> Iterator[RuntimeContext]:
    """One run for all tests of a module: Hypothesis then pays for it once."""
    with RuntimeContext(machine="ahbm", ranks=1, seed=0) as run:
        yield run
