"""A simulated endpoint behind HTTP, in the test's own process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import aiohttp
import msgspec

from extproc.simulator.engine.profiles import Profile
from extproc.simulator.http.driver import Clock
from extproc.simulator.http.endpoint import ServerOptions, SimulatedEndpoint
from extproc.simulator.http.publisher import Publisher
from extproc.simulator.http.server import serve_endpoint
from extproc.simulator.http.tokens import FourByteTokenizer

NOON = 1_795_262_400.0
# A step of one millisecond, whatever is in it.
QUICK = Profile(
    name="quick",
    base_ms=1,
    kv_us_per_ctx_token=0,
    prefill_ms_per_token=0,
    kv_tokens=65_536,
    block_size=16,
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    max_model_len=4096,
)
QUICK_OPTIONS = ServerOptions(profile=QUICK, tokenizer=FourByteTokenizer(), models=("tiny",))


@dataclass(frozen=True, slots=True)
class Face:
    """A client of one endpoint's HTTP face, and the endpoint behind it."""

    client: aiohttp.ClientSession
    endpoint: SimulatedEndpoint
    port: int

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        """Returns the status and the JSON value of the answer; `body` is bytes or a JSON value."""
        return await post(self.client, path, body)

    async def chat(self, text: str, **fields: Any) -> Any:
        messages = [{"role": "user", "content": text}]
        status, answer = await self.post("/v1/chat/completions", {"messages": messages, **fields})
        assert status == 200, answer
        return answer

    async def events(self, path: str, body: object) -> list[str]:
        return await events(self.client, path, body)

    async def metric(self, line: str) -> float:
        """Returns the value of the metric that is written like this, labels and all."""
        async with self.client.get("/metrics") as answer:
            text = await answer.text()
        return next(
            float(one.rpartition(" ")[2]) for one in text.splitlines() if one.startswith(f"{line} ")
        )


@asynccontextmanager
async def serving(
    options: ServerOptions = QUICK_OPTIONS,
    *,
    speed: float = 1.0,
    publisher: Publisher | None = None,
    has_sidecar: bool = False,
    **changes: Any,
) -> AsyncIterator[Face]:
    """Serves an endpoint with these options, some of them changed, on a free port."""
    endpoint = SimulatedEndpoint(
        "vllm", replace(options, **changes), Clock(speed), lambda: NOON, publisher
    )
    async with (
        serve_endpoint(endpoint, "127.0.0.1", 0, has_sidecar=has_sidecar) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
    ):
        yield Face(client, endpoint, port)


async def post(client: aiohttp.ClientSession, path: str, body: object) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    async with client.post(
        path, data=BytesIO(data), headers={"content-type": "application/json"}
    ) as answer:
        return answer.status, msgspec.json.decode(await answer.read())


async def events(client: aiohttp.ClientSession, path: str, body: object) -> list[str]:
    """Returns the server-sent events of an answer, as they came."""
    async with client.post(path, json=body) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        text = (await answer.read()).decode()
    *found, rest = text.split("\n\n")
    assert not rest
    return found
