"""What is not collected: what needs packages that are not installed."""

from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

collect_ignore_glob = ["tests/libraries/*"]
"""They need libraries that no test does; see ``make test-libraries``."""
collect_ignore_glob.append("src/kernbench/torch_bridge/replaced/stand_ins/flash_attn/*")
"""It is imported as the top-level package that it stands in for, within a run only."""
collect_ignore_glob.append("src/kernbench/plans/programs/*")
"""Programs that other processes run."""
if not find_spec("torch"):
    collect_ignore_glob.append("src/kernbench/torch_bridge/*")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests only in modules whose text has one.

    Every other module would be imported and searched by every worker: half the time of collecting.
    """
    collectors = yield
    if file_path.suffix != ".py" or b">>> " in file_path.read_bytes():
        return collectors
    return [each for each in collectors if not isinstance(each, DoctestModule)]
