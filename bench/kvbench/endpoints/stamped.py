"""What the transport hands to whoever decodes an answer: stamped body bytes, the times of the exchange, the fault."""

from __future__ import annotations

from typing import Literal, NamedTuple

import httpx

FaultKind = Literal[
    "refused",
    "dns",
    "tls",
    "connect_timeout",
    "idle_timeout",
    "total_timeout",
    "reset",
    "truncated",
    "protocol_error",
    "oversize",
    "local",
]
"""local: this machine could not (no file descriptor or port left). truncated: the server closed before the end."""


class TransportFault(httpx.TransportError):
    """The network, the server or this machine ended an exchange; what had arrived by then is kept in the body sink."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind
        self.timing: Timing | None = None
        """Times of the exchange up to the fault; None when no connection was made."""


class Read(NamedTuple):
    """One read of the socket that yielded body bytes. Times are ns since the run's start."""

    parts_end: int
    """How many items of `StampedBody.parts` had arrived when this read was done."""
    stamp_ns: int
    """Arrival of the last byte of this read: the kernel's stamp, or read_ns where there is none."""
    floor_ns: int
    """No byte of this read arrived before this time."""
    read_ns: int
    """When the client took the bytes from the kernel."""
    exact: bool
    """stamp_ns is a kernel stamp and the read holds nothing after its last body byte (but that HTTP chunk's CRLF)."""


class StampedBody:
    """Sink of one answer's body: `parts` in order, and `reads` that date them. Only appended to while it streams."""

    __slots__ = ("parts", "reads")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.reads: list[Read] = []

    def content(self) -> bytes:
        return b"".join(self.parts)


class Timing:
    """Times of one exchange, ns since the run's start; None = did not happen."""

    __slots__ = (
        "connect_ns",
        "end_ns",
        "first_byte_ns",
        "headers_ns",
        "retried_stale",
        "sent_ns",
        "stamp",
        "stamps_missing",
        "uncertainty_ns",
        "upload_start_ns",
    )

    def __init__(self, stamp: Literal["kernel", "loop"], uncertainty_ns: int) -> None:
        self.connect_ns: int | None = None
        """Duration of name lookup, TCP connect and TLS handshake; None: a kept-alive connection was used."""
        self.upload_start_ns: int | None = None
        """Just before the first byte was handed to the kernel."""
        self.sent_ns: int | None = None
        """Start of the send() call that handed the last byte to the kernel."""
        self.first_byte_ns: int | None = None
        self.headers_ns: int | None = None
        self.end_ns: int | None = None
        """Arrival of the end of the message, or the time of the fault."""
        self.stamp: Literal["kernel", "loop"] = stamp
        self.stamps_missing = 0
        """Reads that came without a believable kernel stamp and were dated when they were read."""
        self.uncertainty_ns = uncertainty_ns
        """Error of the realtime mapping, to be added to every bound."""
        self.retried_stale = False
        """The first connection was a kept-alive one that the server had closed; sent again on a fresh one."""
