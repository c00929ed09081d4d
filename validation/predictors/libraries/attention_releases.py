"""What the releases behind a row of attention did otherwise than the row says.

A row is the median over the releases of a stack that the source measured, and says how many there
were: of one it is that release's time, of two their mean, and of three mostly that of the one
between. Which release measured what was inferred from rows.

The newest release of SGLang measured with the window that its setup left in the layer, whatever the
row asks (on B200 prompts alone): its rows of head sizes that no other release has are faster than
the device's peak allows without a window, and where others have them, releases differ by as much.
An older one turned queries, keys and values into fp8 by operations of their own, as one of vLLM's
on GB200 did with keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LEFT_WINDOW = 128
"""Keys that the setup left: what fits long prompts, whose time grows with their tokens alone."""
_LEFT = frozenset({("b200", "sglang", "trtllm_mha"), ("l40s", "sglang", "flash_attention")})
_CONVERTED = frozenset({("b200", "sglang", "trtllm_mha"), ("gb200", "sglang", "trtllm_mha")})
_KEYS_CONVERTED = frozenset({("gb200", "vllm", "vllm_flashinfer")})
_OF_NEWEST = frozenset({"64", "192"})
"""Head sizes of which the newest release alone measured prompts without a window."""


@dataclass(frozen=True, slots=True)
class Release:
    """How a release measured."""

    left_window: bool = False
    """Whether it had a window that the row does not name."""
    converts: str = ""
    """What it brought into the format of the kernel before: ``keys`` (and values), or ``all``."""


_AS_SAID = (Release(),)


def releases(fields: Mapping[str, str], machine: str) -> tuple[Release, ...]:
    """Return the releases whose mean a row's time is."""
    stack = (machine, fields.get("framework", ""), fields.get("kernel", ""))
    if stack in _KEYS_CONVERTED and _is_of_two_kinds(fields):
        return (Release(), Release(converts="keys"))
    if stack not in _LEFT | _CONVERTED:
        return _AS_SAID
    is_prompt = fields.get("op") == "attention_prefill"
    has_window = fields.get("window", "0") not in ("", "0")
    has_newest = stack in _LEFT and (is_prompt or stack not in _CONVERTED)
    newest = Release(left_window=has_newest and not has_window)
    narrow = fields.get("attn_dtype" if is_prompt else "kv_dtype") == "fp8"
    older = Release(converts="all" if narrow and stack in _CONVERTED else "")
    count = fields.get("n_releases", "")
    if count == "1":
        is_newest = has_window or not is_prompt or fields.get("head_dim") in _OF_NEWEST
        return (newest,) if has_newest and is_newest else (older,)
    return (older, newest) if count == "2" else _AS_SAID


def _is_of_two_kinds(fields: Mapping[str, str]) -> bool:
    is_prompt = fields.get("op") == "attention_prefill" and fields.get("head_dim") == "128"
    return is_prompt and fields.get("kv_dtype") == "fp8" and fields.get("n_releases") == "2"
