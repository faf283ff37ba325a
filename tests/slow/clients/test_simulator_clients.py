"""Clients that others wrote, against a simulated endpoint: what they make of its answers."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any

import anthropic
import openai
import pytest

from tests.simulator.face import serving

HELLO: Any = [{"role": "user", "content": "hello"}]


@contextmanager
def endpoint_elsewhere() -> Iterator[str]:
    """Serves an endpoint in a thread of its own, for clients that block; yields its URL."""
    url: Future[str] = Future()
    ends: Future[Callable[[], object]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        ends.set_result(lambda: loop.call_soon_threadsafe(stop.set))
        async with serving() as face:
            url.set_result(str(face.client._base_url))
            await stop.wait()

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield url.result(20).rstrip("/")
    finally:
        ends.result(20)()
        thread.join()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with endpoint_elsewhere() as found:
        yield found


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as found:
        yield found


def test_openais_client_reads_chat_and_responses_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=HELLO)
    with client.chat.completions.stream(model="tiny", messages=HELLO) as stream:
        streamed = stream.until_done().get_final_completion()
    response = client.responses.create(model="tiny", input="hello")
    with client.responses.stream(model="tiny", input="hello") as events:
        final = events.until_done().get_final_response()

    assert whole.choices[0].message.content == streamed.choices[0].message.content == response.output_text
    assert response.output_text == final.output_text


def test_openais_client_reads_embeddings_and_refusals(client: openai.OpenAI) -> None:
    vector = client.embeddings.create(model="tiny", input="hello", dimensions=48).data[0].embedding

    assert 48 == len(vector)
    with pytest.raises(openai.BadRequestError, match="plain text only"):
        client.chat.completions.create(model="tiny", messages=HELLO, response_format={"type": "json_object"})
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_nope")


def test_anthropics_client_reads_text_whole_and_streamed(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model="tiny", max_tokens=5, messages=HELLO)
    with claude.messages.stream(model="tiny", max_tokens=5, messages=HELLO) as stream:
        texts = list(stream.text_stream)

    (block,) = whole.content
    assert block.type == "text"
    assert block.text == "".join(texts)
    assert 5 == len(block.text.split())
