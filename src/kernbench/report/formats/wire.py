"""The wire format of protocol buffers, for the few kinds of fields that timelines have.

Source: "Encoding", protobuf.dev. Written here because formats that are written need no reader of
descriptions: a field is its number, and a library would add a megabyte and a release to agree on
(ADR-0010).
"""

from __future__ import annotations

import struct

_VARINT, _FIXED64, _DELIMITED = 0, 1, 2
_MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Return an integer of 64 bits in groups of seven, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    value &= _MASK
    if value < 0x80:
        return _BYTES[value]
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


_BYTES = [bytes([value]) for value in range(0x80)]


def integer(number: int, value: int) -> bytes:
    """Return a field of type int32, int64, uint64, bool or of an enumeration."""
    return varint(number << 3 | _VARINT) + varint(value)


def fixed64(number: int, value: int) -> bytes:
    """Return a field of type fixed64."""
    return varint(number << 3 | _FIXED64) + struct.pack("<Q", value)


def double(number: int, value: float) -> bytes:
    """Return a field of type double."""
    return varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def message(number: int, value: bytes) -> bytes:
    """Return a field that holds a message, or bytes."""
    return varint(number << 3 | _DELIMITED) + varint(len(value)) + value


def text(number: int, value: str) -> bytes:
    """Return a field of type string."""
    return message(number, value.encode())
