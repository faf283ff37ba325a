"""Workers without a proxy: how they begin and end, what they listen on, what the parent watches for them."""

import asyncio
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import trustme
import yaml
from envoy_data_plane.envoy.data.accesslog.v3 import HttpAccessLogEntry
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.router.feedback.test_feedback_access_log import STREAM, entry, message
from tests.router.stream.conversations import Went
from tests.router.stream.wire import read
from tests.slow.share.broker import Broker
from tests.slow.share.test_stack_share import ENDPOINTS, SECRET, Proxy, hit_rate
from tests.slow.stack.live import run_cluster, servers, sweep
from tests.stack.client import connect
from tests.stack.fetch import answers
from tests.stack.ports import free_ports
from tests.stack.process import descriptors
from tests.stack.service import PROCESSOR, Service, pool
from tests.stack.stack import eventually
from tests.stack.workers import Workers, is_alive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LONG_S = 60.0
LANES = (0, 1)
PREFIX_CACHE = {"name": "prefix_cache"}


class Crew(Service):
    """A service with workers and endpoints that nobody asks."""

    def __init__(self, directory: Path, count: int = 2, listen: str | None = None, **sections: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2)
        super().__init__(
            directory,
            port=ports[0],
            admin_port=ports[1],
            listen=listen,
            environment={"SECRET": SECRET, "NATS_PASSWORD": "password"},
        )
        self.configure([pool(ENDPOINTS, PREFIX_CACHE, probe=False)], workers=count)
        settings = yaml.safe_load(self.config.read_text())
        settings["server"] |= sections.pop("server", {})
        self.config.write_text(yaml.safe_dump(settings | sections))
        self.workers = Workers(self)

    def wait_all(self) -> None:
        """Until each worker serves and has its endpoints."""
        self.wait_until(lambda: "served" not in self.told() and all(map(self._is_ready, self.lanes)), LONG_S)

    @property
    def lanes(self) -> range:
        return range(yaml.safe_load(self.config.read_text())["server"]["workers"])

    def told(self) -> str:
        return self.log.read_text()

    def _is_ready(self, lane: int) -> bool:
        try:
            return self.workers.get(lane, "/readyz").startswith("ready")
        except (OSError, IndexError):
            return False


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Crew]:
    with Crew(tmp_path / "two") as service:
        service.wait_all()
        yield service


async def test_two_workers_hit_as_often_as_one(tmp_path: Path, two: Crew) -> None:
    """Conversations whose turns go to either worker find their endpoint as often as with one process."""
    proxy = Proxy([two, two])
    await asyncio.to_thread(
        two.wait_until,
        lambda: all(two.workers.metric(lane, "extproc_share_peers", state="prompt") == 1 for lane in LANES),
        LONG_S,
    )
    both = await hit_rate([two, two], 40, 6)
    picks = [two.workers.picks(lane) for lane in LANES]
    with Crew(tmp_path / "one", 1) as one:
        await asyncio.to_thread(one.wait_until, one.is_ready, LONG_S)
        single = await hit_rate([one], 40, 6)
    await proxy.close()

    print(f"hit rate of two {both:.3f}, of one {single:.3f}; picks {picks}")  # noqa: T201
    assert both >= single - 0.02
    assert min(picks) > 60


async def test_what_became_of_a_request_is_told_to_the_worker_that_placed_it(tmp_path: Path) -> None:
    """The log of one worker's requests comes over the other one's connection; each entry counts once."""
    learning = pool(ENDPOINTS, {**PREFIX_CACHE, "learn": True}, probe=False)
    with Crew(tmp_path / "two", pools=[learning]) as crew:
        await asyncio.to_thread(crew.wait_all)

        def samples() -> list[int]:
            return [crew.workers.pools(lane)[0]["learnt"]["samples"] for lane in LANES]

        proxy = Proxy([crew, crew])
        async with proxy.asked(0, ["a question " + "word " * 200]) as placed:
            owner = [crew.workers.picks(lane) for lane in LANES].index(1)
        logged = message(streamed(placed))
        for _ in range(2):
            await proxy.log(1, logged)
        assert await asyncio.to_thread(eventually, lambda: samples()[owner] == 1, LONG_S), samples()
        heard = [crew.workers.metric(lane, "extproc_answers_total") for lane in LANES]
        learnt = samples()
        await proxy.close()

    assert (heard[owner], heard[1 - owner]) == (0, 2)
    assert (learnt[owner], learnt[1 - owner]) == (1, 0)


def streamed(placed: bytes) -> HttpAccessLogEntry:
    """The entry of a stream that was placed so, with its first token after a quarter of a second."""
    address = cast("Went", read(placed)).address
    told = ProcessingResponse.parse(placed).dynamic_metadata
    assert address is not None
    assert told is not None
    extproc = told.fields["extproc"].struct_value
    assert extproc is not None
    ip, _, port = address.rpartition(":")
    return entry(
        "vllm",
        (ip, int(port)),
        headers=STREAM,
        pick=extproc.fields["pick"].string_value,
        first_body_us="250000",
    )


async def test_workers_drain_together(two: Crew) -> None:
    """1. A request is open at each. 2. The service is told to end. 3. Both requests end well, as it does."""
    proxy = Proxy([two, two])
    async with proxy.asking(0, ["one"]), proxy.asking(1, ["two"]):
        two.send(signal.SIGTERM)
        await asyncio.to_thread(two.wait_until, lambda: two.told().count("draining: ") == 2, LONG_S)
        assert two.is_running
    await proxy.close()

    assert await asyncio.to_thread(two.wait, LONG_S) == 0
    assert two.told().count("0 streams cut") == 2


async def test_a_second_signal_cuts_what_is_open(two: Crew) -> None:
    proxy = Proxy([two])
    with suppress(grpc.RpcError):  # the cut one's
        async with proxy.asking(0, ["one"]):
            two.send(signal.SIGTERM)
            await asyncio.to_thread(two.wait_until, lambda: two.told().count("draining: ") == 2, LONG_S)
            two.send(signal.SIGTERM)
            assert await asyncio.to_thread(two.wait, LONG_S) == 1
    assert "1 streams cut" in two.told()
    await proxy.close()


async def test_a_worker_that_hangs_is_replaced(two: Crew) -> None:
    """A process that is stopped answers nothing, and is not there any more when it could go on."""
    stopped = two.workers.told()[0]
    os.kill(stopped, signal.SIGSTOP)

    await asyncio.to_thread(two.wait_until, partial(two.workers.is_replaced, 0, stopped), LONG_S)
    assert not is_alive(stopped)
    assert two.told().count("is killed") == 1


async def test_workers_end_with_their_parent(two: Crew) -> None:
    """Their sockets' directory goes, too, killed as it is."""
    pids, directory = two.workers.pids, two.workers.directory
    assert {*LANES} == pids.keys()
    assert all(map(Path.exists, [directory]))
    two.kill()

    assert await asyncio.to_thread(eventually, lambda: not any(map(is_alive, pids.values())), LONG_S)
    assert await asyncio.to_thread(eventually, lambda: not directory.exists(), LONG_S)


async def test_a_worker_that_cannot_start_ends_the_service_with_the_reason(tmp_path: Path) -> None:
    [taken] = free_ports(1)
    mesh = {"listen": f"127.0.0.1:{taken}", "peers": {"static": [f"127.0.0.1:{taken}"]}}
    share = {"cluster": "llm", "secret": {"env": "SECRET"}, "mesh": mesh}
    with (
        socket.create_server(("127.0.0.1", taken + 1)),
        Crew(tmp_path / "two", share=share) as service,
    ):
        assert await asyncio.to_thread(service.wait, LONG_S) == 2

    assert f"cannot listen on 127.0.0.1:{taken + 1}" in service.told()
    assert "Warning" not in service.told()


def check(target: str, credentials: grpc.ChannelCredentials | None = None) -> int:
    options = [("grpc.ssl_target_name_override", "extproc")]
    channel = (
        grpc.secure_channel(target, credentials, options) if credentials else grpc.insecure_channel(target)
    )
    with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=PROCESSOR), timeout=20).status)


async def test_workers_listen_on_a_unix_socket(tmp_path: Path) -> None:
    with Crew(tmp_path / "two", listen=f"unix:{tmp_path}/x.sock") as service:
        await asyncio.to_thread(service.wait_all)
        target = f"unix:{tmp_path}/x.sock"
        await asyncio.to_thread(service.wait_until, lambda: check(target) == 1, LONG_S)


async def test_workers_serve_tls_and_the_parent_health_in_plain_text(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("extproc")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    [health] = free_ports(1)
    server = {
        "tls": {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")},
        "health": f"127.0.0.1:{health}",
    }
    with Crew(tmp_path / "two", server=server) as service:
        await asyncio.to_thread(service.wait_all)
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        target = f"127.0.0.1:{service.port}"
        await asyncio.to_thread(service.wait_until, lambda: check(target, credentials) == 1, LONG_S)
        await asyncio.to_thread(service.wait_until, lambda: check(f"127.0.0.1:{health}") == 1, LONG_S)


async def test_gateways_of_two_workers_each_share_over_a_mesh(tmp_path: Path) -> None:
    first, _, second, _ = free_ports(4)
    peers = {"static": [f"127.0.0.1:{first}", f"127.0.0.1:{second}"]}
    meshes = [{"listen": f"127.0.0.1:{port}", "peers": peers} for port in (first, second)]
    told = await share_among_four(tmp_path, [{"mesh": mesh} for mesh in meshes])

    assert ["brings no letters" in text for text in told] == [False, False]


async def test_gateways_of_two_workers_each_share_over_nats(tmp_path: Path) -> None:
    """What a worker hears of the one beside it, it hears from the server once more."""
    with Broker(tmp_path, free_ports(1)[0]) as broker:
        broker.wait_ready()
        access = {
            "servers": [f"nats://127.0.0.1:{broker.port}"],
            "user": "gateway",
            "password": {"env": "NATS_PASSWORD"},
        }
        await share_among_four(tmp_path, [{"nats": access}] * 2)


async def share_among_four(directory: Path, carriers: Sequence[dict[str, Any]]) -> list[str]:
    """Two gateways of two workers: each hears of three others, and they place alike. Returns their logs."""
    section = {"cluster": "llm", "secret": {"env": "SECRET"}}
    crews = [
        Crew(directory / f"{number}", share=section | carrier) for number, carrier in enumerate(carriers)
    ]
    with ExitStack() as running:
        for crew in crews:
            running.enter_context(crew)
        for crew in crews:
            await asyncio.to_thread(crew.wait_all)

        def prompt() -> list[float]:
            return [
                crew.workers.metric(lane, "extproc_share_peers", state="prompt")
                for crew in crews
                for lane in LANES
            ]

        assert await asyncio.to_thread(eventually, lambda: prompt() == [3, 3, 3, 3], LONG_S), prompt()
        assert await hit_rate(crews, 20, 5) >= 0.9
        return [crew.told() for crew in crews]


@pytest.mark.envoy
async def test_one_watch_feeds_all_workers_and_their_xds(tmp_path: Path) -> None:
    """An API server is asked once for two workers, and Envoy has the same endpoints from either.

    1. One list, one watch. 2. Pods come and go: both workers know, and Envoy does. 3. The worker that serves
    xDS is killed: the other one goes on with the same, and nothing is refused. 4. The new one knows the list
    although the API server is away.
    """
    async with run_cluster(tmp_path, workers=2) as cluster:
        service, api = cluster.service, cluster.api
        workers = Workers(service)

        def knows(lane: int, count: int) -> bool:
            return lane in workers.told() and len(workers.states(lane)) == count

        for lane in LANES:
            await asyncio.to_thread(service.wait_until, partial(knows, lane, 3), LONG_S)
        assert (1, 1) == (len(api.lists), len(api.watchers))
        cluster.apply(0, 1)
        await cluster.until(0, 1)
        for lane in LANES:
            await asyncio.to_thread(service.wait_until, partial(knows, lane, 2), LONG_S)
        async with connect(cluster.gateway.url) as session, cluster.outage():
            for lane in LANES:
                killed = workers.kill(lane)
                await asyncio.to_thread(
                    service.wait_until, partial(workers.is_replaced, lane, killed), LONG_S
                )
                await asyncio.to_thread(service.wait_until, partial(knows, lane, 2), LONG_S)
            await cluster.until_asked()
            await cluster.until(0, 1)
            assert 2 == len(servers(await sweep(session, 20)))
        assert 0 == sum(workers.metric(lane, "extproc_xds_nacks_total") for lane in LANES)


def share_counts(service: Crew) -> list[float]:
    return [service.workers.metric(lane, "extproc_share_peers", state="prompt") for lane in LANES]


def knock(service: Crew, count: int, stack: ExitStack) -> None:
    """Connects and says nothing."""
    for _ in range(count):
        stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=LONG_S))


def test_connections_that_found_no_descriptor_do_not_count_for_ever(two: Crew) -> None:
    """1. A worker has no descriptor free while connections come. 2. Later it gets its half of new ones."""
    pids = two.workers.told()
    limits = resource.prlimit(pids[0], resource.RLIMIT_NOFILE)
    resource.prlimit(pids[0], resource.RLIMIT_NOFILE, (descriptors(pids[0]) + 1, limits[1]))
    with ExitStack() as stack:
        knock(two, 40, stack)
        two.wait_until(lambda: two.health() == "SERVING", LONG_S)
    resource.prlimit(pids[0], resource.RLIMIT_NOFILE, limits)

    def is_even() -> bool:
        before = [descriptors(pid) for pid in pids.values()]
        with ExitStack() as stack:
            for _ in range(10):
                knock(two, 1, stack)
                time.sleep(0.1)
            grown = [descriptors(pid) - then for pid, then in zip(pids.values(), before, strict=True)]
        return min(grown) >= 3

    two.wait_until(is_even, LONG_S)


def test_a_worker_that_hung_while_another_began_is_linked_with_it(two: Crew) -> None:
    """1. One hangs, and more connections come for it than can wait. 2. The other one is killed, and is back.

    3. The first one goes on: they hear each other.
    """
    pid = two.workers.told()[0]
    two.wait_until(lambda: share_counts(two) == [1, 1], LONG_S)
    with ExitStack() as stack:
        os.kill(pid, signal.SIGSTOP)
        try:
            knock(two, 900, stack)
            killed = two.workers.kill(1)
            two.wait_until(lambda: two.workers.is_replaced(1, killed), LONG_S)
        finally:
            os.kill(pid, signal.SIGCONT)

    two.wait_until(lambda: share_counts(two) == [1, 1], LONG_S)
    assert two.workers.told()[0] == pid


def test_who_hangs_is_not_taken_for_ready(tmp_path: Path) -> None:
    """Long before it is killed for it; when it goes on, it is ready again."""
    health = f"127.0.0.1:{free_ports(1)[0]}"
    with Crew(tmp_path / "hung", server={"health": health}) as service:
        service._health = health
        service.wait_all()
        service.wait_until(lambda: share_counts(service) == [1, 1], LONG_S)
        pids = service.workers.told()
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        try:
            service.wait_until(lambda: service.health() == "NOT_SERVING", 15)
        finally:
            for pid in pids.values():
                os.kill(pid, signal.SIGCONT)
        service.wait_until(lambda: service.health() == "SERVING", LONG_S)

        assert service.workers.told() == pids


def test_handshakes_that_never_end_leave_descriptors_for_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        service = Crew(tmp_path / "tls", server={"tls": {"self_signed": True}})
        service.command = ["prlimit", "--nofile=400:400", *service.command]
        stack.enter_context(service)
        service.wait_all()
        pids = service.workers.told().values()
        knock(service, 900, stack)
        eventually(lambda: min(map(descriptors, pids)) == 400, 5)

        assert eventually(lambda: answers(f"{service.admin_url}/readyz"), 20)
        assert max(map(descriptors, pids)) < 300
