"""What every shipped Envoy answers by itself, with no service behind it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.manifests.rendering import MANIFESTS
from tests.slow.stack.shadowed import somebodys_envoy
from tests.stack.client import chat_about, connect, send
from tests.stack.gateway import Gateway, Tree, edited, find, load
from tests.stack.ports import free_ports
from tests.stack.upstream import serve

pytestmark = pytest.mark.envoy
OVERLAYS = "../manifests/overlays"
OFFER = {"Connection": "Upgrade", "Upgrade": "websocket"}


def on_loopback(tree: Tree) -> None:
    for address in find(tree, "socket_address"):
        if address["address"] != "::1":
            address["address"] = "127.0.0.1"
    for cluster in tree["static_resources"]["clusters"]:
        if cluster.get("type") in {"STRICT_DNS", "LOGICAL_DNS"}:
            cluster["type"] = "STATIC"


def put_into(tree: Tree, patches: Sequence[Tree]) -> None:
    """What Istio does with our EnvoyFilter: the first listener is the gateway's."""
    listener, clusters = (
        tree["static_resources"]["listeners"][0],
        tree["static_resources"]["clusters"],
    )
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    for each in patches:
        value = each["patch"]["value"]
        match each["applyTo"], each["patch"]["operation"]:
            case "CLUSTER", "ADD":
                clusters.append(value)
            case "CLUSTER", "MERGE":
                del clusters[0]["lb_policy"]
                clusters[0].update(value)
            case "HTTP_FILTER", "INSERT_BEFORE":
                manager["http_filters"].insert(-1, value)
            case "HTTP_ROUTE", "INSERT_FIRST":
                manager["route_config"]["virtual_hosts"][0]["routes"].insert(0, value)
            case "NETWORK_FILTER", "MERGE":
                manager.update(value["typed_config"])
            case where, "MERGE":
                assert where == "LISTENER"
                listener.update(value)


async def test_in_istios_envoy_it_is_refused_too(tmp_path: Path) -> None:
    """Istio lets any route upgrade to a websocket."""
    [ours] = yaml.safe_load_all((MANIFESTS / "overlays/istio/envoyfilter.yaml").read_text())
    client, *others, admin, nobody, engine = free_ports(6)
    tree = somebodys_envoy([client, *others], admin, nobody, [f"127.0.0.1:{engine}"])
    manager = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    manager["typed_config"]["upgrade_configs"] = [{"upgrade_type": "websocket"}]
    put_into(tree, ours["spec"]["configPatches"])
    for address in find(tree, "socket_address"):
        if address["address"] == "extproc":
            address.update(address="127.0.0.1", port_value=nobody)
    async with serve([f"127.0.0.1:{engine}"]) as engines:
        with Gateway(tmp_path, tree, port=client, admin_port=admin) as gateway:
            await asyncio.to_thread(gateway.wait_ready)
            async with connect(gateway.url) as session:
                usual = await send(session, chat_about("x"))
                answer = await asyncio.wait_for(send(session, chat_about("x"), headers=OFFER), 20)

    assert (usual.status, answer.status, engines.arrived) == (200, 400, 1)
    assert "RFC 6455" in answer.error["message"]


@pytest.mark.parametrize(
    "shipped",
    [
        *("standalone.yaml", "sidecar.yaml", "xds.yaml"),
        *(f"{OVERLAYS}/{name}/envoy.yaml" for name in ("gateway", "sidecar")),
    ],
)
async def test_a_post_that_offers_a_websocket_is_refused_without_the_service(
    shipped: str, tmp_path: Path
) -> None:
    client, admin, *others = free_ports(8)
    ports = dict(zip((8080, 9901, 9002, 9902, 8000, 8001), (client, admin, *others), strict=False))
    tree = edited(load(shipped), ports, [on_loopback])
    with Gateway(tmp_path, tree, port=client, admin_port=admin) as gateway:
        await asyncio.to_thread(gateway.wait_ready)
        async with connect(gateway.url) as session:
            answer = await send(session, chat_about("x"), headers=OFFER)

    assert (answer.status, "RFC 6455" in answer.error["message"]) == (400, True)
