"""`extproc serve` as a process: how it starts, changes, and ends; and TLS on its gRPC listener."""

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from urllib.error import HTTPError

import grpc
import grpc.aio
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.errors import SettingsError
from extproc.grpc_server.budget import Budget
from extproc.router.service.health import Health
from extproc.router.service.transport import bind_transport
from extproc.router.settings.server_settings import ServerSettings, TlsSettings
from extproc.router.stream.names import PROCESS
from tests.router.stream.conversations import headers
from tests.router.stream.wire import write_request
from tests.stack.fetch import answers, get, get_json
from tests.stack.ports import free_ports
from tests.stack.process import descriptors
from tests.stack.service import Service, health_at, pool
from tests.waiting import wait_until

ADDRESSES = ["127.0.0.1:8001", "127.0.0.1:8002"]


TRANSPORTS = ["native", pytest.param("grpcio", marks=pytest.mark.slow)]
each_transport = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.fixture(params=TRANSPORTS)
def service_process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    service = Service(tmp_path, transport=request.param)
    service.configure([pool(ADDRESSES)], drain_s=60)
    with service:
        service.wait_ready()
        yield service


@each_transport
async def test_before_the_first_list_a_request_is_left_to_the_proxy(
    tmp_path: Path, transport: str
) -> None:
    """Not refused: a proxy that fails open knows endpoints. 1. No list yet. 2. It comes."""
    service = Service(tmp_path, transport=transport)
    listed = tmp_path / "list.yaml"
    service.configure([pool([], endpoints={"file": str(listed)})])
    with service:
        service.wait_until(lambda: "serving on" in service.log.read_text(), 60)
        async with grpc.aio.insecure_channel(service.listen) as channel:
            call = channel.stream_stream(PROCESS, None, None)(None)
            await call.write(write_request(headers(end=True)))
            with pytest.raises(grpc.aio.AioRpcError, match="no list of endpoints yet") as failure:
                await call.read()
            left = service.metric("extproc_stream_errors_total", why="unready")
            listed.write_text("- {name: a, address: 127.0.0.1, port: 8001}\n")
            service.wait_ready()
            (await open_process_stream(service, channel)).cancel()

    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert left == 1


async def open_process_stream(
    service: Service, channel: grpc.aio.Channel
) -> grpc.aio.StreamStreamCall[bytes, bytes]:
    """A request in flight: decided at its headers, its answer not yet ended."""
    call = channel.stream_stream(PROCESS, None, None)(None)
    await call.write(write_request(headers(end=True)))
    await call.read()
    assert service.metric("extproc_streams_open") == 1
    return call


@each_transport
async def test_health_has_a_plain_port_of_its_own_to_the_end(
    tmp_path: Path, transport: str
) -> None:
    """Kubelets cannot ask over TLS.

    1. The service speaks TLS, its health port does not. 2. It serves health and nothing else. 3.
       While the
    service drains the port says so.
    """
    [health_port] = free_ports(1)
    health = f"127.0.0.1:{health_port}"
    service = Service(tmp_path, transport=transport)
    port = service.port
    tls = {"self_signed": True}
    service.configure([pool(ADDRESSES)], health=health, tls=tls, drain_s=60)
    with service:
        service.wait_until(lambda: health_at(health) == "SERVING")
        assert health_at(health, "liveness") == "SERVING"
        assert health_at(service.listen) == "StatusCode.UNAVAILABLE"
        async with grpc.aio.insecure_channel(health) as channel:
            call = channel.stream_stream(PROCESS, None, None)(None)
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        credentials = grpc.ssl_channel_credentials(shown.encode())
        options = [("grpc.ssl_target_name_override", "extproc")]
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            await open_process_stream(service, channel)
            service.send(signal.SIGTERM)
            service.wait_until(lambda: health_at(health) == "NOT_SERVING")
            assert health_at(health, "liveness") == "SERVING"


async def test_a_drain_lets_requests_end_and_refuses_new_streams(service_process: Service) -> None:
    async with grpc.aio.insecure_channel(service_process.listen) as channel:
        held = await open_process_stream(service_process, channel)
        service_process.send(signal.SIGTERM)
        await asyncio.to_thread(wait_until, lambda: service_process.health() != "SERVING")
        late = channel.stream_stream(PROCESS, None, None)(None)

        # grpcio's server cancels a call that comes between its stop and the client's news of it.
        assert await late.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        assert not held.done()

        await held.done_writing()
        assert await asyncio.to_thread(service_process.wait, 60) == 0


@pytest.mark.parametrize(
    ("drain_s", "signals"), [pytest.param(1, 1, marks=pytest.mark.slow), (600, 2)]
)
async def test_a_drain_that_is_cut_says_so(
    service_process: Service, drain_s: int, signals: int
) -> None:
    service_process.apply([pool(ADDRESSES)], drain_s=drain_s)
    async with grpc.aio.insecure_channel(service_process.listen) as channel:
        await open_process_stream(service_process, channel)
        for _ in range(signals):
            assert service_process.is_running
            service_process.send(signal.SIGTERM)
            await asyncio.to_thread(wait_until, lambda: service_process.health() != "SERVING")

        assert await asyncio.to_thread(service_process.wait, 60) == 1


async def test_a_watcher_of_health_does_not_hold_up_the_end(service_process: Service) -> None:
    async with grpc.aio.insecure_channel(service_process.listen) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)(b"")
        assert await watch.read() == b"\x08\x01"

        service_process.send(signal.SIGINT)

        assert await watch.read() == b"\x08\x02"
        assert await watch.code() == grpc.StatusCode.UNAVAILABLE
        assert await asyncio.to_thread(service_process.wait, 60) == 0


def test_a_service_without_endpoints_yet_is_not_serving_and_says_why(
    service_process: Service,
) -> None:
    service_process.configure([{**pool([]), "endpoints": {"file": "missing.yaml"}}])
    service_process.stop()
    service_process.start()

    wait_until(lambda: "file_unreadable" in (readyz(service_process) or ""))
    assert service_process.health("liveness") == "SERVING"
    assert service_process.health() == service_process.health("readiness") == "NOT_SERVING"
    assert readyz(service_process) == (
        f"pool vllm: no list of endpoints yet: file_unreadable: {service_process.config.parent}/missing.yaml: "
        "No such file or directory\n"
    )
    assert service_process.metric("extproc_pool_fault", pool="vllm", why="file_unreadable") == 1
    assert (
        service_process.metric("extproc_watch_restarts_total", pool="vllm", why="file_unreadable")
        == 1
    )


def readyz(service: Service) -> str | None:
    """What a service that is not ready says of it; `None` if it does not answer, or is ready."""
    try:
        get(f"{service.admin_url}/readyz")
    except HTTPError as error:
        return error.read().decode()
    except OSError:
        return None
    return None


@pytest.mark.parametrize("which", ["listen", "admin", "unix"])
def test_an_occupied_address_is_an_error_that_names_it(tmp_path: Path, which: str) -> None:
    listen, services = f"unix:{tmp_path}/socket" if which == "unix" else None, []
    for name in ("first", "second"):
        directory = tmp_path / name
        directory.mkdir()
        services.append(Service(directory, listen=listen))
    first, second = services
    first.configure([pool(ADDRESSES)])
    taken = first.admin if which == "admin" else first.listen
    second.configure([pool(ADDRESSES)], **{"admin" if which == "admin" else "listen": taken})
    with first:
        first.wait_ready()
        second.start()

        assert second.wait(60) == 2
        warning = (
            "socket is in use by another process"
            if listen
            else f".{which}: cannot listen on {taken}"
        )
        assert warning in second.log.read_text()
        assert first.is_ready()
    assert not (tmp_path / "socket").exists(), "it leaves no file behind"


async def test_a_change_keeps_the_requests_in_flight(service_process: Service) -> None:
    def in_flight() -> dict[str, int]:
        pools = get_json(f"{service_process.admin_url}/pools")
        return {endpoint["address"]: endpoint["in_flight"] for endpoint in pools[0]["endpoints"]}

    async with grpc.aio.insecure_channel(service_process.listen) as channel:
        call = await open_process_stream(service_process, channel)
        busy = next(address for address, count in in_flight().items() if count)
        kept = [busy, "127.0.0.1:8009"]
        service_process.configure([pool(kept, {"name": "least_load"})])
        wait_until(lambda: list(in_flight()) == kept)

        assert in_flight() == {busy: 1, "127.0.0.1:8009": 0}

        await call.done_writing()
        wait_until(lambda: in_flight() == {busy: 0, "127.0.0.1:8009": 0})


@pytest.mark.slow
@pytest.mark.parametrize("which", ["admin", "grpc"])
def test_a_flood_leaves_health_its_descriptors_and_the_log_readable(
    tmp_path: Path, which: str
) -> None:
    """1. 64 descriptors. 2. 200 connections to one port, which stay. 3. Health answers new ones."""
    service = Service(tmp_path)
    service.configure([pool(ADDRESSES)])
    service.command[:0] = ["prlimit", "--nofile=64:64"]
    with service, ExitStack() as flood:
        service.wait_ready()
        before, start_s = len(service.log.read_text().splitlines()), monotonic()
        port = int((service.admin if which == "admin" else service.listen).rpartition(":")[2])
        for _ in range(200):
            with suppress(OSError):
                address = ("127.0.0.1", port)
                flood.enter_context(socket.create_connection(address, timeout=5))

        assert service.health() == service.health("liveness") == "SERVING"
        assert which == "admin" or answers(f"{service.admin_url}/healthz")

        flood.close()
        wait_until(service.is_ready)
        lines = len(service.log.read_text().splitlines()) - before
        assert 1 <= lines <= 10 + monotonic() - start_s


LONG_S = 30.0


class Files:
    """A certificate authority and the files of one server."""

    def __init__(self, directory: Path) -> None:
        self.certificate, self.key, self.ca = (
            directory / name for name in ("tls.crt", "tls.key", "ca.crt")
        )

    def issue(self, authority: trustme.CA) -> None:
        issued = authority.issue_cert("localhost")
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.ca.write_bytes(authority.cert_pem.bytes())


@pytest.fixture
def tls_files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(params=["native", pytest.param("grpcio", marks=pytest.mark.slow)])
def server_transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def running_server(tls: TlsSettings, transport: str) -> AsyncIterator[int]:
    settings = ServerSettings.model_validate(
        {"listen": "127.0.0.1:0", "tls": tls, "transport": transport}
    )
    health = Health(lambda: True)
    health.update()
    server = await bind_transport(settings, health.routes(), Budget(1 << 20))
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop()


def serving_tls(
    files: Files, transport: str, *, is_mutual: bool = False
) -> AbstractAsyncContextManager[int]:
    client_ca = str(files.ca) if is_mutual else None
    tls = TlsSettings(certificate=str(files.certificate), key=str(files.key), client_ca=client_ca)
    return running_server(tls, transport)


async def call_over_tls(port: int, trusted: trustme.CA, client: trustme.CA | None = None) -> int:
    certificate = client.issue_cert("client") if client else None
    credentials = grpc.ssl_channel_credentials(
        trusted.cert_pem.bytes(),
        certificate.private_key_pem.bytes() if certificate else None,
        certificate.cert_chain_pems[0].bytes() if certificate else None,
    )
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(), timeout=LONG_S)).status)


async def test_tls_is_served_with_the_last_good_certificates(
    tls_files: Files, server_transport: str
) -> None:
    """1. Served. 2. Changed ones serve the next handshake. 3. Those that vanish stay."""
    old, new = trustme.CA(), trustme.CA()
    tls_files.issue(old)
    async with serving_tls(tls_files, server_transport) as port:
        seen = [await call_over_tls(port, old)]
        with pytest.raises(grpc.aio.AioRpcError):
            await call_over_tls(port, new)
        tls_files.issue(new)
        seen.append(await call_over_tls(port, new))
        tls_files.certificate.unlink()
        seen += [await call_over_tls(port, new), await call_over_tls(port, new)]

    assert seen == [health_pb2.HealthCheckResponse.SERVING] * 4


async def test_mtls_asks_for_a_certificate_of_the_authority(
    tls_files: Files, server_transport: str
) -> None:
    authority = trustme.CA()
    tls_files.issue(authority)
    async with serving_tls(tls_files, server_transport, is_mutual=True) as port:
        assert (
            await call_over_tls(port, authority, authority)
            == health_pb2.HealthCheckResponse.SERVING
        )
        for stranger in (None, trustme.CA()):
            with pytest.raises(grpc.aio.AioRpcError):
                await call_over_tls(port, authority, stranger)


async def test_a_certificate_of_our_own_is_served(server_transport: str) -> None:
    async with running_server(TlsSettings(self_signed=True), server_transport) as port:
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        async with proxy(port, shown) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(
                health_pb2.HealthCheckRequest(service="inference-extension"), timeout=9
            )

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_missing_certificates_are_an_error_that_names_the_file(
    tls_files: Files, server_transport: str
) -> None:
    with pytest.raises(SettingsError, match=r"server\.tls: .*tls\.crt: No such file"):
        async with serving_tls(tls_files, server_transport):
            pass


@asynccontextmanager
async def proxy(port: int, shown: str) -> AsyncIterator[grpc.aio.Channel]:
    """Connects as Envoy does, over a connection of its own."""
    options = [("grpc.ssl_target_name_override", "extproc"), ("grpc.use_local_subchannel_pool", 1)]
    credentials = grpc.ssl_channel_credentials(shown.encode())
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        yield channel


async def route_one(channel: grpc.aio.Channel) -> None:
    """One request, routed."""
    call = channel.stream_stream(PROCESS, None, None)(None, timeout=LONG_S)
    await call.write(write_request(headers(end=True)))
    assert await call.read() is not grpc.aio.EOF  # type: ignore[attr-defined]  # not in the stubs
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def test_handshakes_that_never_end_leave_descriptors_and_requests_alone(
    tmp_path: Path,
) -> None:
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
            await route_one(old)
            for _ in range(900):
                flood.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LONG_S))

            wait_until(lambda: answers(f"{service.admin_url}/readyz"), limit_s=LONG_S)
            await route_one(old)
            async with proxy(port, shown) as new:
                await route_one(new)
            assert descriptors(service.pid) < 300
