"""Clients that others wrote, against a simulated endpoint: what they make of its answers."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.simulator.face import serving

HELLO: Any = [{"role": "user", "content": "hello"}]


class Trip(BaseModel):
    city: Literal["Oslo", "Rome"]
    days: int
    notes: list[str]


TOOLS: Any = [{"type": "function", "function": {"name": "trip", "parameters": Trip.model_json_schema()}}]


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


def test_openais_client_parses_a_model_from_chat_and_from_responses(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Trip)
    with client.responses.stream(model="tiny", input="hello", text_format=Trip) as stream:
        response = stream.until_done().get_final_response()

    assert isinstance(chat.choices[0].message.parsed, Trip)
    assert isinstance(response.output_parsed, Trip)


def test_openais_client_puts_a_streamed_call_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=HELLO, tools=TOOLS, tool_choice="required"
    ) as stream:
        completion = stream.until_done().get_final_completion()
    (call,) = completion.choices[0].message.tool_calls or [None]  # type: ignore[list-item]

    assert isinstance(Trip.model_validate_json(call.function.arguments), Trip)
    assert "tool_calls" == completion.choices[0].finish_reason


def test_openais_client_goes_on_with_a_response_and_reads_a_missing_one_as_such(
    client: openai.OpenAI,
) -> None:
    first = client.responses.create(model="tiny", input="hello", max_output_tokens=4)
    second = client.responses.create(
        model="tiny", input="go on", max_output_tokens=4, previous_response_id=first.id
    )

    assert first.output_text == client.responses.retrieve(first.id).output_text
    assert first.id == second.previous_response_id
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_nope")


def test_openais_client_reads_embeddings_and_log_probabilities(client: openai.OpenAI) -> None:
    vector = client.embeddings.create(model="tiny", input="hello", dimensions=48).data[0].embedding
    chat = client.chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=3
    )
    scores = chat.choices[0].logprobs

    assert 48 == len(vector)
    assert scores is not None
    assert [2, 2, 2] == [len(one.top_logprobs) for one in scores.content or ()]


def test_anthropics_client_reads_tools_whole_and_streamed(claude: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 400,
        "messages": HELLO,
        "tools": [{"name": "trip", "input_schema": Trip.model_json_schema()}],
        "tool_choice": {"type": "any"},
    }
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()

    for message in (whole, streamed):
        (block,) = message.content
        assert isinstance(block, anthropic.types.ToolUseBlock)
        assert "tool_use" == message.stop_reason
        assert isinstance(Trip.model_validate(block.input), Trip)
    assert whole.content == streamed.content


def test_anthropics_client_reads_text_streamed(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(model="tiny", max_tokens=5, messages=HELLO) as stream:
        texts = list(stream.text_stream)

    assert 5 == len("".join(texts).split())
