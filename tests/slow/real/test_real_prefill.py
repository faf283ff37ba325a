"""Two real engines and a connector through files: what one computed, the other reads."""

import json
from pathlib import Path

import aiohttp

from tests.slow.real.process import needs_vllm, run_vllm
from tests.stack.ports import free_ports

pytestmark = needs_vllm

PROMPT = {"prompt": [number % 1_000 + 10 for number in range(640)], "model": "tiny"}


async def count_external(session: aiohttp.ClientSession, url: str) -> float:
    """Prompt tokens that an engine took from elsewhere, by its own counter."""
    async with session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    name = "vllm:external_prefix_cache_hits_total"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def test_an_engine_takes_the_prefix_that_another_one_computed(tmp_path: Path) -> None:
    """The sidecar's two steps: one token at the first, then the answer at the second."""
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
        async with aiohttp.ClientSession() as session:
            found = [await count_external(session, decode)]
            for url, tokens in ((prefill, 1), (decode, 5)):
                async with session.post(
                    f"{url}/v1/completions", json={**PROMPT, "max_tokens": tokens}
                ) as answer:
                    assert answer.status == 200, await answer.text()
            found.append(await count_external(session, decode))

    assert found[0] == 0
    assert found[1] >= 600
