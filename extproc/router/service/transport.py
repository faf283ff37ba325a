"""How gRPC is served: our own transport, or grpcio's; where it binds, what certificates it shows."""

import asyncio
import socket
from pathlib import Path
from typing import Final, Protocol

import grpc
import grpc.aio

from extproc.errors import SettingsError
from extproc.grpc_server.accepting import bind
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.calls import Routes
from extproc.grpc_server.certificates import Certificates, Files, Pems, SelfSigned
from extproc.grpc_server.grpcio import add_routes
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.listener import Listener
from extproc.router.settings.server_settings import ServerSettings, TlsSettings

# A message holds a body and its framing.
_FRAMING_BYTES: Final = 1_048_576
# A question of health is the name of a service.
_QUESTION_BYTES: Final = 4_096
_QUESTIONS_BYTES: Final = 1_048_576
# Kubelets, load balancers and their probes from several zones.
_QUESTIONERS: Final = 64
_NEVER_S: Final = 1e6


class Transport(Protocol):
    """Serves gRPC calls on one address, which is bound: started, drained, stopped, in this order.

    `port` is 0 for a unix socket.
    """

    port: int

    async def start(self) -> None: ...

    def drain(self) -> None:
        """Takes no new calls; those that are open go on."""

    async def stop(self) -> None:
        """Cuts what is open."""


async def bind_transport(
    settings: ServerSettings,
    routes: Routes,
    budget: Budget,
    connections: int = 1_024,
    base: Path = Path(),  # immutable
) -> Transport:
    """`connections` is how many there may be at a time; grpcio has no such limit. Paths are from `base`.

    Raises `SettingsError` that names the address where it is taken or cannot be had.
    """
    if settings.transport == "grpcio":
        return GrpcioTransport(settings, routes, base)
    limits = WireLimits(
        message_bytes=settings.max_body_bytes + _FRAMING_BYTES, connections=connections
    )
    listener = Listener(routes, limits=limits, budget=budget)
    tls = build_certificates(settings.tls, base).context() if settings.tls else None
    listener.listen(await bind_address("server.listen", settings.listen), tls)
    return listener


async def bind_health(listen: str, routes: Routes) -> Transport:
    """Health alone and in plain text: kubelets and load balancers cannot probe over TLS."""
    limits = WireLimits(message_bytes=_QUESTION_BYTES, connections=_QUESTIONERS)
    listener = Listener(routes, limits=limits, budget=Budget(_QUESTIONS_BYTES))
    listener.listen(await bind_address("server.health", listen))
    return listener


class GrpcioTransport:
    """The official implementation: the reference, and the way back."""

    def __init__(self, settings: ServerSettings, routes: Routes, base: Path) -> None:
        limit, listen, tls = settings.max_body_bytes + _FRAMING_BYTES, settings.listen, settings.tls
        self._refusing: asyncio.Task[None] | None = None
        self._server = grpc.aio.server(
            options=[
                # Without it a second process would share an occupied port in silence.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", limit),
                # Every request is a stream of a proxy's few connections: pings between them are
                # welcome.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
                # A proxy whose node vanished would be counted for hours.
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
            ]
        )
        add_routes(self._server, routes)
        _refuse_live_socket("server.listen", listen)
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(listen)
            else:
                credentials = _credentials(build_certificates(tls, base), tls)
                self.port = self._server.add_secure_port(listen, credentials)
        except (RuntimeError, OSError) as error:
            raise _cannot_listen("server.listen", listen, error) from error

    async def start(self) -> None:
        await self._server.start()

    def drain(self) -> None:
        # Its own end of grace is put off for good: two stops that cut at the same moment crash
        # grpcio 1.85 (one destroys the server under the other).
        self._refusing = asyncio.create_task(self._server.stop(_NEVER_S))

    async def stop(self) -> None:
        await self._server.stop(0)
        if self._refusing is not None:
            await self._refusing


def build_certificates(tls: TlsSettings, base: Path) -> Certificates:
    if tls.certificate is None or tls.key is None:
        return Certificates(SelfSigned())
    client_ca = base / tls.client_ca if tls.client_ca else None
    return Certificates(Files(base / tls.certificate, base / tls.key, client_ca))


def _credentials(certificates: Certificates, tls: TlsSettings) -> grpc.ServerCredentials:
    """Certificates for grpcio; a handshake after they changed sees the new ones.

    Raises `SettingsError` where they cannot be read now. Later unreadable files leave the last good
    ones.
    """

    def configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(pems.key, pems.certificate)], pems.client_ca
        )

    def changed() -> grpc.ServerCertificateConfiguration | None:
        fresh = certificates.read_if_changed()
        return None if fresh is None else configuration(fresh)

    return grpc.dynamic_ssl_server_credentials(
        configuration(certificates.read()),
        changed,  # type: ignore[arg-type]  # gRPC takes None for "unchanged"
        require_client_authentication=tls.client_ca is not None,
    )


async def bind_address(setting: str, listen: str) -> list[socket.socket]:
    """`setting` is what an operator calls it. Raises `SettingsError`."""
    _refuse_live_socket(setting, listen)
    try:
        return await bind(listen)
    except OSError as error:
        raise _cannot_listen(setting, listen, error) from error


def _cannot_listen(setting: str, listen: str, error: Exception) -> SettingsError:
    why = (
        error.strerror if isinstance(error, OSError) else "is it in use?"
    )  # grpcio keeps the reason
    return SettingsError(f"{setting}: cannot listen on {listen}: {why}")


def _refuse_live_socket(setting: str, listen: str) -> None:
    """A unix socket is unlinked before it is bound, even one that another process serves."""
    if not listen.startswith("unix:"):
        return
    path = listen.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return
    raise SettingsError(f"{setting}: {listen} is in use by another process")
