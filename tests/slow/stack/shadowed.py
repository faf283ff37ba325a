"""An Envoy of somebody else's, with a rule of its own, and the three blocks of envoy/shadow.yaml in it."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from tests.manifests.rendering import MANIFESTS
from tests.stack.client import CHAT, chat_about
from tests.stack.gateway import Gateway, Tree, load, move_ports
from tests.stack.ports import free_ports
from tests.stack.service import Service, pool

HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
DESTINATION = "x-gateway-destination-endpoint"
PICKS = {
    "request_header_mode": "SEND",
    "request_body_mode": "BUFFERED",
    "response_header_mode": "SKIP",
    "response_trailer_mode": "SEND",
}
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


class Somebody:
    """An Envoy with a listener as it was, and one with the filter; a service that watches, or does not."""

    def __init__(
        self,
        folder: Path,
        addresses: Sequence[str],
        component: str = "",
        rule: str = "ROUND_ROBIN",
        **options: object,
    ) -> None:
        *clients, admin, port = free_ports(5)
        urls = [f"http://127.0.0.1:{each}{CHAT}" for each in clients]
        self.plain, self.shadowed, self.asking = urls
        self.service = Service(folder, port=port)
        self.pool = pool(addresses, {"name": "prefix_cache", **options}, probe=False, shadow={})
        self.pool["fallbacks"] = 0
        self.service.configure([self.pool])
        tree = somebodys_envoy(clients, admin, port, addresses, rule)
        if component:
            add_component(tree, component, port)
        self.gateway = Gateway(folder, tree, port=clients[0], admin_port=admin)

    def sees_service(self) -> bool:
        return self.gateway.cluster("extproc-shadow", "membership_healthy") > 0

    def cluster(self, counter: str) -> int:
        return self.gateway.cluster("extproc-shadow", counter)


def somebodys_envoy(
    clients: Sequence[int], admin: int, service: int, vllm: Sequence[str], rule: str = "ROUND_ROBIN"
) -> Tree:
    """Listens at three ports: at the first as it was, at the second with the blocks, at the third it asks."""
    blocks = load("shadow.yaml")
    move_ports(blocks, {9002: service})
    pairs = [address.rsplit(":", 1) for address in vllm]
    sockets = [{"socket_address": {"address": ip, "port_value": int(port)}} for ip, port in pairs]
    assignment = {
        "cluster_name": "vllm",
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": each}} for each in sockets]}],
    }
    cluster = {
        "name": "vllm",
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": rule,
        "load_assignment": assignment,
        "circuit_breakers": {
            "thresholds": [
                {"max_connections": 9999, "max_requests": 9999, "max_pending_requests": 9999}
            ]
        },
    }
    picked = {
        "name": "picked",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "1s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
    }
    plain, shadowed, asking = clients
    listeners = [
        _listener(plain, []),
        _listener(shadowed, blocks["http_filters"]),
        _listener(asking, [_asks(blocks["http_filters"][0])], "picked"),
    ]
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}},
        "static_resources": {
            "listeners": listeners,
            "clusters": [cluster, picked, *blocks["clusters"]],
        },
    }


def add_component(tree: Tree, gateway: str, port: int) -> None:
    """What Istio or Envoy Gateway make of our component: patches of the second listener, and a cluster."""
    [shown] = (
        item
        for path in (MANIFESTS / "components/shadow" / gateway).glob("*.yaml")
        for item in yaml.safe_load_all(path.read_text())
        if item["kind"] in {"EnvoyFilter", "EnvoyPatchPolicy"}
    )
    listener, clusters = (
        tree["static_resources"]["listeners"][1],
        tree["static_resources"]["clusters"],
    )
    clusters[:] = [each for each in clusters if each["name"] != "extproc-shadow"]
    [chain] = listener["filter_chains"]
    filters = chain["filters"][0]["typed_config"]["http_filters"]
    if gateway == "envoy-gateway":
        listener["default_filter_chain"] = listener.pop("filter_chains")[0]
    for patch in shown["spec"].get("configPatches", ()):
        value, place = patch["patch"]["value"], patch["patch"]["operation"]
        if patch["applyTo"] == "CLUSTER":
            assert place == "ADD"
            clusters.append(value)
        else:
            assert (patch["applyTo"], place) == ("HTTP_FILTER", "INSERT_BEFORE")
            filters[:] = [value, *filters[-1:]]
    for patch in shown["spec"].get("jsonPatches", ()):
        value, steps = patch["operation"]["value"], patch["operation"]["path"].split("/")[1:]
        if not steps:
            clusters.append(value)
            continue
        at: Any = listener
        for step in steps[:-1]:
            at = at[int(step) if isinstance(at, list) else step]
        at[:] = [value, *at[-1:]]
    address = clusters[-1]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    assert address["address"]["socket_address"]["address"] == "extproc.default.svc.cluster.local"
    address["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}


def _asks(shown: Tree) -> Tree:
    """The same filter without the mode: it waits for the pick."""
    config = {**shown["typed_config"], "processing_mode": PICKS, "message_timeout": "10s"}
    for field in ("observability_mode", "deferred_close_timeout"):
        del config[field]
    return {**shown, "typed_config": config}


def _listener(port: int, filters: Sequence[Tree], cluster: str = "vllm") -> dict[str, Any]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "0s"}}
    manager = {
        "@type": HCM,
        "stat_prefix": f"at_{port}",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}],
            "response_headers_to_add": [
                {"header": {"key": "x-served-by", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
            ],
        },
        "http_filters": [
            *filters,
            {"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}},
        ],
    }
    chain = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        ]
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    return {"name": f"at {port}", "address": address, "filter_chains": [chain]}


LARGE = chat_about("x" * 48_000_000)


@asynccontextmanager
async def sinks(addresses: Sequence[str]) -> AsyncGenerator[None]:
    """Endpoints that read bodies of any size."""

    async def answer(request: web.BaseRequest) -> web.Response:
        async for _ in request.content.iter_any():
            pass
        return web.Response(text="whole")

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    for address in addresses:
        port = int(address.rpartition(":")[2])
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4_096).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def ask_many(url: str, body: bytes, count: int) -> list[tuple[int, float]]:
    """Status and seconds of so many requests at once; one that hangs raises `TimeoutError`."""
    limits, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=limits, timeout=timeout) as session:

        async def ask() -> tuple[int, float]:
            asked_s = monotonic()
            async with session.post(url, data=BytesIO(body)) as response:
                await response.read()
                return response.status, monotonic() - asked_s

        return await asyncio.gather(*(ask() for _ in range(count)))


@asynccontextmanager
async def slowed(service: Service) -> AsyncGenerator[None]:
    """The service runs a fifth of the time, and answers health checks late, but in time."""

    async def hinder() -> None:
        while True:
            for number, seconds in ((signal.SIGSTOP, 0.4), (signal.SIGCONT, 0.1)):
                service.send(number)
                await asyncio.sleep(seconds)

    hindering = asyncio.create_task(hinder())
    try:
        yield
    finally:
        hindering.cancel()
        service.send(signal.SIGCONT)
