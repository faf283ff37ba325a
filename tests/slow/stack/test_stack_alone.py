"""What every shipped Envoy answers by itself, with no service behind it."""

import asyncio
from pathlib import Path

import pytest

from tests.stack.client import chat_about, connect, send
from tests.stack.gateway import Gateway, Tree, edited, find, load
from tests.stack.ports import free_ports

pytestmark = pytest.mark.envoy
OVERLAYS = "../manifests/overlays"


def on_loopback(tree: Tree) -> None:
    for address in find(tree, "socket_address"):
        if address["address"] != "::1":
            address["address"] = "127.0.0.1"
    for cluster in tree["static_resources"]["clusters"]:
        if cluster.get("type") in {"STRICT_DNS", "LOGICAL_DNS"}:
            cluster["type"] = "STATIC"


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
            offer = {"Connection": "Upgrade", "Upgrade": "websocket"}
            answer = await send(session, chat_about("x"), headers=offer)

    assert (answer.status, "RFC 6455" in answer.error["message"]) == (400, True)
