"""The packets between the fake driver's library and its server.

One packet a call, one packet an answer, over SOCK_SEQPACKET; a descriptor may ride along.
fake_cuda.cc has the same two layouts.
"""

from __future__ import annotations

import dataclasses
import struct

_REQUEST = struct.Struct("<32s8Q64s")
_ANSWER = struct.Struct("<iI4Q64s")
REQUEST_BYTES = _REQUEST.size


@dataclasses.dataclass
class Request:
    """A driver call. `fd` is the descriptor being imported, or -1."""

    call: str
    args: tuple[int, ...]
    data: bytes
    fd: int = -1


@dataclasses.dataclass
class Answer:
    """A CUresult with what the call gives back. `fd` is sent, not consumed."""

    result: int = 0
    values: tuple[int, ...] = ()
    data: bytes = b""
    fd: int = -1


def parse_request(packet: bytes, fd: int) -> Request:
    """Reads a packet of the library."""
    name, *rest = _REQUEST.unpack(packet)
    return Request(name.rstrip(b"\0").decode(), tuple(rest[:8]), rest[8], fd)


def pack_answer(answer: Answer) -> bytes:
    """Writes a packet for the library."""
    values = (*answer.values, 0, 0, 0, 0)[:4]
    return _ANSWER.pack(answer.result, int(answer.fd >= 0), *values, answer.data)
