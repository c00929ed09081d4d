"""Peer-to-peer all-reduces of serving stacks: kernels that store into their peers' memory.

A stack has its own kernel up to some size, in one shot or in two, and passes larger messages to the
vendor's library. A source says which stack it measured in its column ``impl``, and whether a graph
launched it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")
_ANY = 0
"""Number of ranks: for all others."""

# By stack, machine and number of ranks: keys of the machine under collectives.peer. The machines'
# own numbers are those of vLLM's. Fitted to rows of graphs; a kernel of two ranks takes one round.
PEERS: dict[tuple[str, str, int], dict[str, float]] = {
    ("trtllm", "a100-sxm-80g", _ANY): {
        "launch_us": 3.69, "launch_per_rank_us": 0.17, "round_us": 9.4, "bandwidth_share": 0.427,
    },
    ("trtllm", "h100-sxm", _ANY): {
        "launch_us": 2.3, "launch_per_rank_us": 0.17, "bandwidth_share": 0.669,
    },
    ("trtllm", "h200", _ANY): {
        "launch_us": 2.3, "launch_per_rank_us": 0.17, "bandwidth_share": 0.698,
    },
    ("trtllm", "b200", 2): {"launch_us": 4.38, "bandwidth_share": 0.859},
    ("trtllm", "b200", _ANY): {"launch_us": 4.31, "round_us": 32.9, "bandwidth_share": 0.812},
    ("vllm", "b200", 2): {"bandwidth_share": 0.198},
    ("sglang", "b200", 2): {"bandwidth_share": 0.191},
    ("sglang", "b200", _ANY): {"launch_us": 6.24, "round_us": 6.07, "bandwidth_share": 0.241},
    ("trtllm", "gb200", _ANY): {"launch_us": 4.02, "round_us": 33.1, "bandwidth_share": 0.767},
    ("sglang", "gb200", _ANY): {"launch_us": 5.65, "round_us": 6.24, "bandwidth_share": 0.353},
    ("trtllm", "rtx-pro-6000", _ANY): {
        "launch_us": 6.9, "ramp.us": 6.85, "bandwidth_share": 0.684,
    },
}  # fmt: skip

_MIB = 2**20
_LIMIT_BYTES = 8 * _MIB
_LIMITS: dict[tuple[str, str, int], float] = {
    ("vllm", "b200", 4): 32 * _MIB,
    ("trtllm", "b200", 4): 32 * _MIB,
    ("sglang", "b200", _ANY): 16 * _MIB,
    **{(stack, "gb200", _ANY): 32 * _MIB for stack in ("vllm", "sglang", "trtllm")},
    # One straight line from 64 KiB to 1 GiB, over PCI Express.
    **{(stack, "rtx-pro-6000", _ANY): math.inf for stack in ("vllm", "sglang", "trtllm")},
}
"""By stack, machine and number of ranks: the size from which the library does it, where another
than ``_LIMIT_BYTES``; read off where the times of growing messages fall or jump."""

_ONE_SHOT = {2: math.inf, 4: 512 * 1024, 8: 256 * 1024}
"""Of vLLM's kernel, by the most ranks: messages from that size on take two shots.
Source: vLLM, csrc/custom_all_reduce.cuh, which SGLang's is."""
_OF_VLLM = ("vllm", "sglang")

# All-reduces that were measured without a graph: the least time of a launch, medians of messages up
# to 64 KiB, by stack, machine and number of ranks.
_HOSTS: dict[tuple[str, str, int], float] = {
    ("vllm", "b200", _ANY): 20.5,
    ("sglang", "b200", 4): 40,
    ("sglang", "b200", _ANY): 21.5,
    ("vllm", "gb200", _ANY): 44,
    ("sglang", "gb200", _ANY): 51,
    ("vllm", "rtx-pro-6000", _ANY): 21.2,
    ("sglang", "rtx-pro-6000", _ANY): 20.7,
}


@dataclass(frozen=True, slots=True)
class PeerKernel:
    """A stack's all-reduce on a machine."""

    impl: str
    """What the source says of it: the stack first."""
    machine: str
    num_ranks: int

    @property
    def stack(self) -> str:
        return self.impl.partition(" ")[0]

    def algorithms(self, num_bytes: int) -> tuple[str, ...]:
        """Return the algorithms of which it takes the fastest."""
        if num_bytes >= (_of_ranks(_LIMITS, self) or _LIMIT_BYTES):
            return ("auto",)
        if self.stack not in _OF_VLLM:
            return ("one_shot", "two_shot")
        limits = [most for ranks, most in _ONE_SHOT.items() if self.num_ranks <= ranks]
        return ("one_shot",) if limits and num_bytes < limits[0] else ("two_shot",)

    def host_us(self) -> float:
        """Return how long the stack's host takes to launch it, 0 where a graph does."""
        if not self.impl.endswith("_eager"):
            return 0.0
        return _of_ranks(_HOSTS, self) or 0.0

    def changes(self) -> dict[str, float]:
        """Return the machine's keys that differ for this kernel, with their values."""
        found = _of_ranks(PEERS, self) or {}
        return {f"collectives.peer.{name}": value for name, value in found.items()}


def _of_ranks(known: Mapping[tuple[str, str, int], _T], kernel: PeerKernel) -> _T | None:
    own = known.get((kernel.stack, kernel.machine, kernel.num_ranks))
    return own if own is not None else known.get((kernel.stack, kernel.machine, _ANY))
