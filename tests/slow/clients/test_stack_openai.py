"""The `openai` client through Envoy: it works, and our errors are the exceptions its users catch."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest

from tests.stack.client import connect, send_all
from tests.stack.service import pool
from tests.stack.stack import Stack
from tests.stack.upstream import serve

pytestmark = pytest.mark.envoy

MODEL = "simulated"
NEVER_RETRY = 0


@pytest.fixture
def two_model_stack(stack: Stack) -> Stack:
    """Model names are needed here."""
    stack.use(
        pool(stack.addresses[:2], name="simulated", models=[MODEL]),
        pool(stack.addresses[2:], name="other", models=["other"]),
    )
    return stack


@pytest.fixture
async def stack_client(two_model_stack: Stack) -> AsyncGenerator[openai.AsyncOpenAI]:
    async with _connect(two_model_stack) as client:
        yield client


def _connect(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="unused", max_retries=NEVER_RETRY)


async def test_chat(stack_client: openai.AsyncOpenAI) -> None:
    cached = []
    for _ in range(2):
        answer = await stack_client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello " * 50}], max_tokens=5
        )
        assert answer.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)

    # The second one met the first one's prefix.
    assert cached[0] == 0
    assert cached[1] > 0


async def test_streaming_chat(stack_client: openai.AsyncOpenAI) -> None:
    stream = await stack_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


# The request, and what the client raises: of an endpoint's own error too.
REFUSED: list[tuple[dict[str, Any], type[openai.APIStatusError], int, str | None]] = [
    ({"model": "no-such-model", "prompt": "x"}, openai.NotFoundError, 404, "model_not_found"),
    ({"model": 7, "prompt": "x"}, openai.BadRequestError, 400, None),
    ({"model": MODEL, "prompt": "x", "max_tokens": -1}, openai.BadRequestError, 400, None),
    ({"model": MODEL, "prompt": "x" * 52_000_000}, openai.APIStatusError, 413, "body_too_large"),
]


@pytest.mark.parametrize(
    ("asked", "kind", "status", "code"), REFUSED, ids=["model", "7", "endpoint", "size"]
)
async def test_a_refusal_is_the_exception_that_users_catch(
    stack_client: openai.AsyncOpenAI,
    asked: dict[str, Any],
    kind: type[openai.APIStatusError],
    status: int,
    code: str | None,
) -> None:
    with pytest.raises(kind) as caught:
        await stack_client.completions.create(**asked)

    assert caught.value.status_code == status
    if code is not None:
        assert (caught.value.code, caught.value.type) == (code, "invalid_request_error")


async def test_overload_raises_rate_limit_error(stack: Stack) -> None:
    """One request per endpoint in flight is all this pool takes; the fifth gets 429."""
    stack.use(pool(stack.spare, max_in_flight=1, probe=False), endpoints=stack.spare)
    async with (
        serve(stack.spare, holds=b"") as endpoints,
        connect(stack.url) as session,
        _connect(stack) as client,
    ):
        held = send_all(session, "held", 4)
        await endpoints.until_arrived(4)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.completions.create(model=MODEL, prompt="x")
        endpoints.release()
        await asyncio.gather(*held)

    assert caught.value.code == "overloaded"
    assert int(caught.value.response.headers["retry-after"]) >= 1
