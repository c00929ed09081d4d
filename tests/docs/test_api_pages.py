"""The API reference shows what is for users, because nothing else is public."""

from __future__ import annotations

import re

from kernbench import RuntimeContext, ops
from tests.adr.trees import ROOT

PAGES = sorted((ROOT / "docs" / "api").glob("*.rst"))
LEFT_OUT = re.compile(r":exclude-members: (.*)")
NAMES = re.compile(r"\w+")


def test_pages_leave_out_only_types_that_have_entries_of_their_own() -> None:
    assert PAGES
    left_out = {
        name
        for page in PAGES
        for names in LEFT_OUT.findall(page.read_text(encoding="utf-8"))
        for name in NAMES.findall(names)
    }
    assert left_out == {"Tensor", "dtype", "device"}
    assert all(isinstance(getattr(RuntimeContext, name), type) for name in left_out)


def test_what_only_times_kernels_is_no_public_operator() -> None:
    probing = {"kernbench.ops.probe"}
    public = {name: getattr(ops, name).__module__ for name in ops.__all__}
    assert public["matmul"] == "kernbench.ops.products.gemm"
    assert not {name: module for name, module in public.items() if module in probing}
