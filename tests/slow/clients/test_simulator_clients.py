"""Clients that others wrote, against a simulated endpoint: what they make of its answers."""

from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import openai
import pytest

from tests.simulator.face import serving

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with serving() as simulator:
        yield f"http://127.0.0.1:{simulator.port}"


@pytest.fixture
async def simulator_client(url: str) -> AsyncGenerator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


async def test_openais_client_reads_chat_and_responses_whole_and_streamed(
    simulator_client: openai.AsyncOpenAI,
) -> None:
    whole = await simulator_client.chat.completions.create(model="tiny", messages=HELLO)
    async with simulator_client.chat.completions.stream(model="tiny", messages=HELLO) as stream:
        streamed = await stream.get_final_completion()
    response = await simulator_client.responses.create(model="tiny", input="hello")
    async with simulator_client.responses.stream(model="tiny", input="hello") as events:
        final = await events.get_final_response()

    assert (
        whole.choices[0].message.content
        == streamed.choices[0].message.content
        == response.output_text
    )
    assert response.output_text == final.output_text


async def test_openais_client_reads_embeddings_and_refusals(
    simulator_client: openai.AsyncOpenAI,
) -> None:
    embedded = await simulator_client.embeddings.create(model="tiny", input="hello", dimensions=48)

    assert 48 == len(embedded.data[0].embedding)
    with pytest.raises(openai.BadRequestError, match="plain text only"):
        await simulator_client.chat.completions.create(
            model="tiny", messages=HELLO, response_format={"type": "json_object"}
        )
    with pytest.raises(openai.NotFoundError):
        await simulator_client.responses.retrieve("resp_nope")


async def test_anthropics_client_reads_text_whole_and_streamed(url: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as claude:
        whole = await claude.messages.create(model="tiny", max_tokens=5, messages=HELLO)
        async with claude.messages.stream(model="tiny", max_tokens=5, messages=HELLO) as stream:
            texts = [text async for text in stream.text_stream]

    (block,) = whole.content
    assert block.type == "text"
    assert block.text == "".join(texts)
    assert 5 == len(block.text.split())
