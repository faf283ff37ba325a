"""Two real engines and a connector through files: what one computed, the other reads."""

import json
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from extproc.simulator.http.sidecar import PREFILLER, Sidecar
from tests.slow.real.process import needs_vllm, run_vllm
from tests.stack.ports import free_ports

pytestmark = needs_vllm

PROMPT = {"prompt": [number % 1_000 + 10 for number in range(640)], "model": "tiny"}
JSON_BODY = {"content-type": "application/json"}


async def count_external(session: aiohttp.ClientSession, url: str) -> float:
    """Prompt tokens that an engine took from elsewhere, by its own counter."""
    async with session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    name = "vllm:external_prefix_cache_hits_total"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def sidecar_before(session: aiohttp.ClientSession, engine: str) -> web.Application:
    """The simulator's sidecar, before an engine that is none of ours."""

    async def forward(request: web.Request) -> web.Response:
        async with session.post(
            f"{engine}{request.path}", data=await request.read(), headers=JSON_BODY
        ) as answer:
            return web.Response(
                status=answer.status, body=await answer.read(), content_type=answer.content_type
            )

    sidecar = Sidecar()
    app = web.Application(middlewares=[sidecar.handle])
    app.cleanup_ctx.append(sidecar.run)
    app.router.add_post("/v1/completions", forward)
    return app


async def test_an_engine_takes_the_prefix_that_another_one_computed(tmp_path: Path) -> None:
    """Through our sidecar, which a request reaches with the header that the router sets."""
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "kv")},
    }
    options = ("--kv-transfer-config", json.dumps(connector))
    one, two = free_ports(2)
    with (
        run_vllm(one, tmp_path / "prefill.log", *options) as prefill,
        run_vllm(two, tmp_path / "decode.log", *options) as decode,
    ):
        async with (
            aiohttp.ClientSession() as session,
            TestServer(sidecar_before(session, decode)) as sidecar,
        ):
            found = [await count_external(session, decode)]
            async with session.post(
                sidecar.make_url("/v1/completions"),
                json={**PROMPT, "max_tokens": 5},
                headers={PREFILLER: prefill.removeprefix("http://")},
            ) as answer:
                assert answer.status == 200, await answer.text()
                assert (await answer.json())["usage"]["completion_tokens"] == 5
            found.append(await count_external(session, decode))

    assert found[0] == 0
    assert found[1] >= 600
