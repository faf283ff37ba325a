"""TLS for the listener: certificates from files, read again when they change."""

import ssl
from pathlib import Path
from typing import Final

from extproc.errors import SettingsError

_PROTOCOLS: Final = ["h2"]  # RFC 9113 §3.2


class Certificates:
    """A server's certificate, key and, for mTLS, the authority that clients are signed by."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._seen: list[bytes] = []
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Returns what to listen with; every handshake on it sees the newest files that can be read.

        Raises `SettingsError` where they cannot be read now.
        """
        self._seen = self._read()
        self._context = self._build()
        listening = self._build()
        listening.sni_callback = self._choose
        return listening

    def _choose(self, handshake: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        """Called in each handshake, with a server name or without one."""
        try:
            seen = self._read()
            if seen != self._seen:
                self._context, self._seen = self._build(), seen
        except SettingsError:
            # A half-written or missing file leaves the last good ones.
            pass
        if self._context is not None:
            handshake.context = self._context

    def _read(self) -> list[bytes]:
        paths = [self._certificate, self._key, *([self._client_ca] if self._client_ca else [])]
        try:
            return [path.read_bytes() for path in paths]
        except OSError as error:
            raise SettingsError(f"server.tls: {error.filename}: {error.strerror}") from None

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(_PROTOCOLS)
        try:
            context.load_cert_chain(self._certificate, self._key)
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (ssl.SSLError, OSError) as error:
            raise SettingsError(f"server.tls: {self._certificate}: {error}") from None
        return context
