"""TLS and mTLS on the gRPC listener, with certificates that change while it runs."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.errors import SettingsError
from extproc.router.budget import Budget
from extproc.router.service.health import Health
from extproc.router.service.transport import bind_transport
from extproc.router.settings.server_settings import ServerSettings, TlsSettings
from extproc.router.stream.names import PROCESS
from tests.router.stream.conversations import headers
from tests.router.stream.wire import write
from tests.stack.fetch import answers
from tests.stack.process import descriptors
from tests.stack.service import Service, pool
from tests.waiting import wait_until

LONG_S = 30.0


class Files:
    """A certificate authority and the files of one server."""

    def __init__(self, directory: Path) -> None:
        self.certificate, self.key, self.ca = (directory / name for name in ("tls.crt", "tls.key", "ca.crt"))

    def issue(self, authority: trustme.CA) -> None:
        issued = authority.issue_cert("localhost")
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.ca.write_bytes(authority.cert_pem.bytes())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(params=["native", pytest.param("grpcio", marks=pytest.mark.slow)])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def running(tls: TlsSettings, transport: str) -> AsyncIterator[int]:
    settings = ServerSettings.model_validate({"listen": "127.0.0.1:0", "tls": tls, "transport": transport})
    health = Health(lambda: True)
    health.update()
    server = await bind_transport(settings, health.routes(), Budget(1 << 20))
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop()


def serving(files: Files, transport: str, *, is_mutual: bool = False) -> AbstractAsyncContextManager[int]:
    client_ca = str(files.ca) if is_mutual else None
    tls = TlsSettings(certificate=str(files.certificate), key=str(files.key), client_ca=client_ca)
    return running(tls, transport)


async def ask(port: int, trusted: trustme.CA, client: trustme.CA | None = None) -> int:
    certificate = client.issue_cert("client") if client else None
    credentials = grpc.ssl_channel_credentials(
        trusted.cert_pem.bytes(),
        certificate.private_key_pem.bytes() if certificate else None,
        certificate.cert_chain_pems[0].bytes() if certificate else None,
    )
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(), timeout=3)).status)


async def test_tls_is_served_with_the_last_good_certificates(files: Files, transport: str) -> None:
    """1. Served. 2. Changed ones serve the next handshake. 3. Those that vanish stay."""
    old, new = trustme.CA(), trustme.CA()
    files.issue(old)
    async with serving(files, transport) as port:
        seen = [await ask(port, old)]
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(port, new)
        files.issue(new)
        seen.append(await ask(port, new))
        files.certificate.unlink()
        seen += [await ask(port, new), await ask(port, new)]

    assert seen == [health_pb2.HealthCheckResponse.SERVING] * 4


async def test_mtls_asks_for_a_certificate_of_the_authority(files: Files, transport: str) -> None:
    authority = trustme.CA()
    files.issue(authority)
    async with serving(files, transport, is_mutual=True) as port:
        assert await ask(port, authority, authority) == health_pb2.HealthCheckResponse.SERVING
        for stranger in (None, trustme.CA()):
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(port, authority, stranger)


async def test_a_certificate_of_our_own_is_served(transport: str) -> None:
    async with running(TlsSettings(self_signed=True), transport) as port:
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        async with proxy(port, shown) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(service="inference-extension"), timeout=3)

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_missing_certificates_are_an_error_that_names_the_file(files: Files, transport: str) -> None:
    with pytest.raises(SettingsError, match=r"server\.tls: .*tls\.crt: No such file"):
        async with serving(files, transport):
            pass


@asynccontextmanager
async def proxy(port: int, shown: str) -> AsyncIterator[grpc.aio.Channel]:
    """Connects as Envoy does, over a connection of its own."""
    options = [("grpc.ssl_target_name_override", "extproc"), ("grpc.use_local_subchannel_pool", 1)]
    credentials = grpc.ssl_channel_credentials(shown.encode())
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        yield channel


async def route(channel: grpc.aio.Channel) -> None:
    """One request, routed."""
    call = channel.stream_stream(PROCESS, None, None)(None, timeout=LONG_S)
    await call.write(write(headers(end=True)))
    assert await call.read() is not grpc.aio.EOF  # type: ignore[attr-defined]  # not in the stubs
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def test_handshakes_that_never_end_leave_descriptors_and_requests_alone(tmp_path: Path) -> None:
    """1. A proxy has its connection, one with 400 descriptors. 2. 900 others connect and say nothing.

    3. The admin port answers, the proxy's requests go on, and so do those of one that comes now.
    """
    service = Service(tmp_path)
    port = service.port
    service.configure([pool(["127.0.0.1:8001"])], tls={"self_signed": True})
    service.command[:0] = ["prlimit", "--nofile=400:400"]
    with service, ExitStack() as flood:
        service.wait_until(lambda: answers(f"{service.admin_url}/readyz"), LONG_S)
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        async with proxy(port, shown) as old:
            await route(old)
            for _ in range(900):
                flood.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LONG_S))

            wait_until(lambda: answers(f"{service.admin_url}/readyz"), limit_s=LONG_S)
            await route(old)
            async with proxy(port, shown) as new:
                await route(new)
            assert descriptors(service.pid) < 300
