"""Imports of what runs programs."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from kernbench.cli.programs.importing import import_to_stay


@pytest.mark.adr("0275-D3")
def test_the_collector_rests_while_a_module_is_imported_and_passes_over_it_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays.py").write_text("import gc\nwas_enabled = gc.isenabled()\nkept = [[]]\n")
    monkeypatch.syspath_prepend(tmp_path)
    gc.unfreeze()
    try:
        import_to_stay("stays")
        assert not sys.modules["stays"].was_enabled
        assert gc.isenabled()
        assert gc.get_freeze_count() > 1000
        gc.unfreeze()
        import_to_stay("stays")
        assert gc.get_freeze_count() == 0, "what is imported already needs none"
    finally:
        sys.modules.pop("stays", None)
        gc.freeze()


def test_nothing_stays_where_a_module_cannot_be_imported() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_to_stay("no_such_module_of_kernbench")
    assert gc.isenabled()
