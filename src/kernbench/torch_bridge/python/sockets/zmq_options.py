"""ZeroMQ's kinds of sockets, flags, options and errors, by their numbers in zmq.h."""

from __future__ import annotations

from typing import Any

PAIR, PUB, SUB, REQ, REP, DEALER, ROUTER, PULL, PUSH, XPUB, XSUB, STREAM = range(12)
NAMES = tuple("PAIR PUB SUB REQ REP DEALER ROUTER PULL PUSH XPUB XSUB".split())  # noqa: SIM905
NOBLOCK, SNDMORE = 1, 2
EFSM, ETERM = 156384763, 156384765
SENDS_TO_ONE = frozenset({PAIR, REQ, DEALER, PUSH})
PUBLISHES = frozenset({PUB, XPUB})
SUBSCRIBES = frozenset({SUB, XSUB})
NEVER_SENDS = frozenset({SUB, PULL})
NEVER_RECEIVES = frozenset({PUB, PUSH})
PEERS = {
    PAIR: {PAIR}, PUB: SUBSCRIBES, XPUB: SUBSCRIBES, SUB: PUBLISHES, XSUB: PUBLISHES,
    REQ: {REP, ROUTER}, REP: {REQ, DEALER}, DEALER: {REP, DEALER, ROUTER},
    ROUTER: {REQ, DEALER, ROUTER}, PULL: {PUSH}, PUSH: {PULL},
}  # fmt: skip
"""Which types talk to which: connections of others are closed."""


class Option:
    """Numbers of options that decide something here (zmq.h)."""

    ROUTING_ID, SUBSCRIBE, UNSUBSCRIBE, RCVMORE, FD, EVENTS, TYPE, LINGER = (
        5,
        6,
        7,
        13,
        14,
        15,
        16,
        17,
    )
    SNDHWM, RCVHWM, RCVTIMEO, SNDTIMEO, LAST_ENDPOINT = 23, 24, 27, 28, 32
    ROUTER_MANDATORY, XPUB_VERBOSE, IMMEDIATE, REQ_RELAXED, ROUTER_HANDOVER = 33, 40, 39, 53, 56
    XPUB_NODROP, CONFLATE = 69, 54


DEFAULTS: dict[int, Any] = {
    4: 0, 5: b"", 8: 100, 9: 10000, 11: -1, 12: -1, 17: -1, 18: 100, 19: 100, 21: 0, 22: -1,
    23: 1000, 24: 1000, 25: 1,
    27: -1, 28: -1, 33: 0, 34: -1, 35: -1, 36: -1, 37: -1, 39: 0, 40: 0, 42: 0,
    53: 0, 54: 0, 56: 0, 57: 0, 66: 30000, 69: 0, 75: 0, 76: 0, 77: -1, 79: 0, 80: 0, 84: -1,
}  # fmt: skip
"""The options that a program may set, with their defaults: those that decide something here, and
those that say only how libzmq reaches another host (buffers, keepalives, intervals, IPv6)."""


class ZmqFailureError(Exception):
    """What libzmq reports by a number; the back end raises it as ``zmq.ZMQError``."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
