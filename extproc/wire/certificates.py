"""TLS for the listener: certificates from files, read again when they change."""

import ssl
from contextlib import suppress
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
        self.read()
        self._context = self._build()
        listening = self._build()
        listening.sni_callback = self._choose
        return listening

    def read(self) -> list[bytes]:
        """Returns certificate, key and, for mTLS, authority. Raises `SettingsError`."""
        paths = [self._certificate, self._key, *([self._client_ca] if self._client_ca else [])]
        try:
            self._seen = [path.read_bytes() for path in paths]
        except OSError as error:
            raise SettingsError(f"server.tls: {error.filename}: {error.strerror}") from None
        return self._seen

    def read_if_changed(self) -> list[bytes] | None:
        """Returns what `read` does, or `None` where nothing new can be read: the last good ones stay."""
        seen = self._seen
        try:
            fresh = self.read()
        except SettingsError:
            return None
        return None if fresh == seen else fresh

    def _choose(self, handshake: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        """Called in each handshake, with a server name or without one."""
        if self.read_if_changed() is not None:
            # A certificate and a key of two generations, half-written, leave the last good ones, too.
            with suppress(SettingsError):
                self._context = self._build()
        if self._context is not None:
            handshake.context = self._context

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
