"""The gRPC listener: where it binds, how large its messages are, what certificates it shows."""

import socket
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from extproc.errors import SettingsError
from extproc.settings import ServerSettings, TlsSettings

# A message holds a body and its framing.
_FRAMING_BYTES: Final = 1_048_576


def build_server(settings: ServerSettings) -> grpc.aio.Server:
    limit = settings.max_body_bytes + _FRAMING_BYTES
    return grpc.aio.server(
        options=[
            # Without it a second process would share an occupied port in silence.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", limit),
            # Every request is a stream of a proxy's few connections: pings between them are welcome.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
    )


def bind(server: grpc.aio.Server, settings: ServerSettings) -> int:
    """Binds `server` and returns its port (0 for a unix socket).

    Raises `SettingsError` that names the address where it is taken or cannot be had.
    """
    _refuse_live_socket(settings.listen)
    try:
        if settings.tls is None:
            return server.add_insecure_port(settings.listen)
        return server.add_secure_port(settings.listen, build_credentials(settings.tls))
    except (RuntimeError, OSError) as error:
        raise SettingsError(f"server.listen: cannot listen on {settings.listen}: is it in use?") from error


def build_credentials(tls: TlsSettings) -> grpc.ServerCredentials:
    """Certificates from files; a handshake after they changed sees the new ones.

    Raises `SettingsError` where they cannot be read now. Later unreadable files leave the last good ones.
    """
    reader = CertificateReader(tls)
    return grpc.dynamic_ssl_server_credentials(
        reader.read(),
        reader.read_if_changed,  # type: ignore[arg-type]  # gRPC takes None for "unchanged"
        require_client_authentication=tls.client_ca is not None,
    )


class CertificateReader:
    """Reads the certificate files, and again when one of them has changed."""

    def __init__(self, tls: TlsSettings) -> None:
        self._tls = tls
        self._paths = [Path(path) for path in (tls.certificate, tls.key, tls.client_ca) if path]
        self._seen: list[bytes] = []

    def read(self) -> grpc.ServerCertificateConfiguration:
        try:
            self._seen = [path.read_bytes() for path in self._paths]
        except OSError as error:
            raise SettingsError(f"server.tls: {error.filename}: {error.strerror}") from None
        certificate, key, *client_ca = self._seen
        return grpc.ssl_server_certificate_configuration(
            [(key, certificate)], client_ca[0] if client_ca else None
        )

    def read_if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; `None` keeps what it has."""
        seen = self._seen
        try:
            fresh = self.read()
        except SettingsError:
            self._seen = seen
            return None
        return None if self._seen == seen else fresh


def _refuse_live_socket(listen: str) -> None:
    """GRPC unlinks a unix socket before it binds, even one that another process serves."""
    if not listen.startswith("unix:"):
        return
    path = listen.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return
    raise SettingsError(f"server.listen: {listen} is in use by another process")
