"""Simple mode, without xDS: envoy/sidecar.yaml, where Envoy knows the pods by a headless Service's name."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.router.cluster.dns_server import DnsServer, serving_dns
from tests.slow.stack.live import IPS, LiveCluster, run_cluster, sweep
from tests.stack.client import connect, send_all, servers
from tests.stack.fetch import answers, get
from tests.stack.gateway import Edit, Tree, cluster_named, find
from tests.waiting import until

pytestmark = pytest.mark.envoy

# Envoy's file has the short name; the Pod's search domains, here c-ares' variable for them, make it
# this one.
DOMAIN = "llm.svc.cluster.local"
NAME = f"vllm-headless.{DOMAIN}."
CARES = "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig"


@pytest.fixture(autouse=True)
def search_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDOMAIN", DOMAIN)


def asks(port: int, socket: Path) -> Edit:
    """Lets Envoy ask the test's DNS server, and find the service at this socket."""

    def edit(tree: Tree) -> None:
        server = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
        resolver = {"@type": CARES, "resolvers": [server]}
        cluster_named(tree, "vllm")["cluster_type"]["typed_config"]["typed_dns_resolver_config"] = {
            "name": "envoy.network.dns_resolver.cares",
            "typed_config": resolver,
        }
        for pipe in find(tree, "pipe"):
            pipe["path"] = str(socket)

    return edit


@asynccontextmanager
async def run_sidecar(directory: Path) -> AsyncGenerator[tuple[LiveCluster, DnsServer]]:
    socket = directory / "ext_proc.sock"
    async with (
        serving_dns(DnsServer({(NAME, "A"): IPS[:3]}, ttl_s=1)) as dns,
        run_cluster(
            directory, "sidecar.yaml", edits=[asks(dns.port, socket)], listen=f"unix:{socket}"
        ) as running,
    ):
        await until_resolved(running, 0, 1, 2)
        yield running, dns


async def until_resolved(running: LiveCluster, *numbers: int) -> None:
    wanted = {running.address(number) for number in numbers}
    await until(lambda: running.gateway.hosts("vllm").keys() == wanted)


async def test_a_pod_that_envoy_has_not_resolved_yet_costs_no_request(tmp_path: Path) -> None:
    """The service knows it first: its picks fall to the next of the list until DNS has it."""
    async with run_sidecar(tmp_path) as (running, dns), connect(running.gateway.url) as session:
        running.apply(0, 1, 2, 3)
        await until(lambda: len(running.service.pools()[0]["endpoints"]) == 4)
        before = servers(await sweep(session, 30))

        dns.records[NAME, "A"] = IPS
        await until_resolved(running, 0, 1, 2, 3)
        after = servers(await sweep(session, 60))

    assert running.address(3) not in before
    assert running.address(3) in after


async def test_a_pod_that_leaves_dns_finishes_its_streams(tmp_path: Path) -> None:
    async with run_sidecar(tmp_path) as (running, dns), connect(running.gateway.url) as session:
        streams = send_all(session, "held", 30)
        await until(lambda: running.pods.held == 30)

        running.apply(0, 1, 2, draining=frozenset({1}))
        dns.records[NAME, "A"] = [IPS[0], IPS[2]]
        await until_resolved(running, 0, 2)
        later = servers(await sweep(session, 30))
        running.pods.release()
        answers = await asyncio.gather(*streams)

    assert running.address(1) not in later
    assert running.address(1) in servers(answers)
    assert Counter(answer.body for answer in answers) == {b"first last": 30}


async def test_prompts_keep_their_pods_and_a_pod_opens_no_more_than_it_must(tmp_path: Path) -> None:
    """Two paths for Prometheus, not Envoy's admin port; a socket that nobody else may write to."""
    async with run_sidecar(tmp_path) as (running, _), connect(running.gateway.url) as session:
        first = [answer.served_by for answer in await sweep(session, 30)]
        again = [answer.served_by for answer in await sweep(session, 30)]
        url = f"http://127.0.0.1:{running.metrics_port}"
        metrics = await asyncio.to_thread(get, f"{url}/stats/prometheus")
        paths = ("/ready", "/config_dump", "/quitquitquit")
        open_ = [await asyncio.to_thread(answers, f"{url}{path}") for path in paths]
        mode = (tmp_path / "ext_proc.sock").stat().st_mode

    assert again == first
    assert len(set(first)) == 3
    assert "envoy_cluster_upstream_rq_total" in metrics
    assert open_ == [True, False, False]
    assert mode & 0o022 == 0
