"""TLS on bytes that somebody else reads and writes, so that the stamp of each read is kept."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from kvbench.errors import ConfigError

_RECORD_HEADER_BYTES = 5
_PLAINTEXT_READ_BYTES = 65536


def tls_context(ca_file: Path | str | None = None) -> ssl.SSLContext:
    """Verifying client context: the system's store, or the one CA file given instead of it.

    Raises ConfigError when the CA file cannot be used. There is no way to turn verification off.
    """
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{ca_file}: not a usable CA file ({error})", hint="give a PEM file with the certificate of the signing CA"
        ) from error
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsLayer:
    """One TLS client session over memory buffers. Errors are ssl.SSLError."""

    __slots__ = ("_header", "_incoming", "_outgoing", "_record_left", "_session", "closed_by_peer")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.closed_by_peer = False
        """close_notify came: an end of file after it is a true end, not a cut."""
        self._record_left = 0
        self._header = b""

    def handshake(self, data: bytes) -> bool:
        """Take ciphertext; True when the handshake is done. `take_outgoing` then holds what must be sent."""
        self._receive(data)
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """Take ciphertext; return the plaintext it completed, and whether it ends at the end of a TLS record.

        If it does not, the stamp of the read belongs to bytes that come after the plaintext returned.
        """
        self._receive(data)
        plaintext = []
        try:
            while not self.closed_by_peer:
                piece = self._session.read(_PLAINTEXT_READ_BYTES)
                if piece:
                    plaintext.append(piece)
                else:
                    self.closed_by_peer = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.closed_by_peer = True
        ends_record = self._record_left == 0 and not self._header
        return plaintext[0] if len(plaintext) == 1 else b"".join(plaintext), ends_record

    def encrypt(self, data: bytes) -> bytes:
        self._session.write(data)
        return self._outgoing.read()

    def take_outgoing(self) -> bytes:
        """Ciphertext the session itself wants sent (handshake, key update, alert)."""
        return self._outgoing.read()

    def close_notify(self) -> bytes:
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._session.unwrap()
        return self._outgoing.read()

    def _receive(self, data: bytes) -> None:
        self._incoming.write(data)
        offset, end = 0, len(data)
        while offset < end:
            if self._record_left:
                step = min(self._record_left, end - offset)
                self._record_left -= step
                offset += step
                continue
            needed = _RECORD_HEADER_BYTES - len(self._header)
            self._header += data[offset : offset + needed]
            offset += needed
            if len(self._header) == _RECORD_HEADER_BYTES:
                self._record_left = int.from_bytes(self._header[3:], "big")
                self._header = b""
