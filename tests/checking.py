"""Whether this session of pytest runs kernels under the sanitizer (``pytest --check``)."""

from __future__ import annotations

from contextvars import ContextVar

CHECKED: ContextVar[bool] = ContextVar("checked", default=False)
