"""The script that runs before an Envoy container gets its signal to end, with a real Envoy."""

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.manifests.rendering import MANIFESTS
from tests.stack.client import connect, send
from tests.stack.fetch import answers
from tests.stack.gateway import Gateway, Tree, cluster_named, edited, load
from tests.stack.ports import free_ports
from tests.stack.upstream import HELD, Endpoints, serve
from tests.waiting import until, wait_until

pytestmark = pytest.mark.envoy

SCRIPT = MANIFESTS / "components" / "drain" / "drain.sh"


def run_script(
    admin_port: int, *, limit_s: int = 20
) -> "asyncio.Task[subprocess.CompletedProcess[bytes]]":
    settings = {"ENVOY_ADMIN_PORT": str(admin_port), "SETTLE_S": "1", "LIMIT_S": str(limit_s)}
    environment = {**os.environ, **settings}
    run = asyncio.to_thread(
        subprocess.run,
        ["bash", str(SCRIPT)],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return asyncio.create_task(run)


def without_pools(tree: Tree) -> None:
    """Envoy without the service and with one endpoint: what drains is Envoy."""
    manager = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0][
        "typed_config"
    ]
    manager["http_filters"] = manager["http_filters"][-1:]
    del cluster_named(tree, "vllm")["load_assignment"]["endpoints"][0]["lb_endpoints"][1:]


@asynccontextmanager
async def run_draining_envoy(directory: Path) -> AsyncGenerator[tuple[Gateway, Endpoints, int]]:
    """Yields an Envoy, its one pod and Envoy's admin port."""
    client, admin, service, pod = free_ports(4)
    tree = edited(
        load("standalone.yaml"),
        {8080: client, 9901: admin, 9002: service, 8001: pod},
        [without_pools],
    )
    async with serve([f"127.0.0.1:{pod}"]) as pods:
        with Gateway(directory, tree, port=client, admin_port=admin) as gateway:
            await asyncio.to_thread(gateway.wait_ready)
            yield gateway, pods, admin


async def test_draining_waits_for_open_answers_and_takes_no_new_connection(tmp_path: Path) -> None:
    """What a client sees of a Pod that goes.

    1. Answers are open. 2. The script runs: Envoy is not ready at once, then takes no new
       connection.
    3. The answers end as they should. 4. The script ends, and Envoy may.
    """
    async with (
        run_draining_envoy(tmp_path) as (gateway, pods, admin),
        connect(gateway.url) as session,
    ):
        streams = [asyncio.create_task(send(session, HELD)) for _ in range(4)]
        await until(lambda: pods.held == 4)

        script = run_script(admin)
        await asyncio.to_thread(wait_until, lambda: not answers(f"{gateway.admin_url}/ready"))
        await asyncio.to_thread(wait_until, lambda: not answers(f"{gateway.url}/health"))
        is_waiting = not script.done()
        pods.release()
        ended = [(answer.status, answer.body) for answer in await asyncio.gather(*streams)]
        result = await script

    assert is_waiting
    assert ended == [(200, b"first last")] * 4
    assert (result.returncode, result.stderr) == (0, b"")


async def test_draining_ends_at_its_limit(tmp_path: Path) -> None:
    async with (
        run_draining_envoy(tmp_path) as (gateway, pods, admin),
        connect(gateway.url) as session,
    ):
        stream = asyncio.create_task(send(session, HELD))
        await until(lambda: pods.held)
        result = await run_script(admin, limit_s=2)
        still_open = not stream.done()
        pods.release()
        await stream

    assert result.returncode == 0
    assert still_open
