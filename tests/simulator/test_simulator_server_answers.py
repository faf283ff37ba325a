"""Answers of a form: calls of tools, JSON of a schema, choices, log probabilities, in every API."""

import base64
import struct
from typing import Any

import orjson
import pytest
from jsonschema import validate

from tests.simulator.face import Face, serving
from tests.simulator.wording import CHAT, COMPLETIONS, HELLO, MESSAGES, RESPONSES

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome", "Zürich"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 7}, "minItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
NAMED = {"type": "function", "function": {"name": "weather"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}


async def chat(face: Face, **fields: Any) -> Any:
    status, answer = await face.post(CHAT, {"messages": HELLO, **fields})
    assert 200 == status, answer
    return answer["choices"][0]


async def stream_chat(face: Face, **fields: Any) -> list[Any]:
    events = await face.events(CHAT, {"messages": HELLO, "stream": True, **fields})
    chunks = [orjson.loads(event.removeprefix("data: ")) for event in events[:-1]]
    return [chunk["choices"][0] for chunk in chunks if chunk["choices"]]


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
async def test_a_demanded_tool_is_called_with_arguments_of_its_schema(choice: object, reason: str) -> None:
    async with serving() as face:
        whole = await chat(face, tools=TOOLS, tool_choice=choice)
        streamed = await stream_chat(face, tools=TOOLS, tool_choice=choice)
    (call,) = whole["message"]["tool_calls"]
    deltas = [delta for one in streamed for delta in one["delta"].get("tool_calls", ())]
    arguments = "".join(delta["function"].get("arguments", "") for delta in deltas)

    validate(orjson.loads(call["function"]["arguments"]), SCHEMA)
    assert ("weather", "") == (call["function"]["name"], whole["message"]["content"])
    assert {"name": "weather"} == deltas[0]["function"]
    assert call["function"]["arguments"] == arguments
    assert reason == whole["finish_reason"] == streamed[-1]["finish_reason"]


async def test_without_demand_the_answer_is_text_and_several_calls_come_if_asked_for() -> None:
    async with serving() as face:
        free = await chat(face, tools=TOOLS, max_tokens=4)
        none = await chat(face, tools=TOOLS, tool_choice="none", max_tokens=4)
        two = await chat(face, tools=TOOLS, tool_choice="required", parallel_tool_calls=True)
        one = await chat(face, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)

    assert [None, None] == [answer["message"].get("tool_calls") for answer in (free, none)]
    assert 4 == len(free["message"]["content"].split())
    assert [2, 1] == [len(answer["message"]["tool_calls"]) for answer in (two, one)]


async def test_an_answer_of_a_form_is_as_long_as_it_needs_or_cut() -> None:
    async with serving() as face:
        _, whole = await face.post(CHAT, {"messages": HELLO, "response_format": FORMAT, "max_tokens": 900})
        _, cut = await face.post(CHAT, {"messages": HELLO, "response_format": FORMAT, "max_tokens": 3})
        call = await chat(face, tools=TOOLS, tool_choice="required", max_tokens=3)
        generated = await face.metric('vllm:generation_tokens_total{engine="0",model_name="tiny"}')
    text = whole["choices"][0]["message"]["content"]
    used = whole["usage"]["completion_tokens"]

    validate(orjson.loads(text), SCHEMA)
    # One token more than the text has: the one that ends it.
    assert -(-len(text) // 4) + 1 == used
    assert ("length", text[:12]) == (
        cut["choices"][0]["finish_reason"],
        cut["choices"][0]["message"]["content"],
    )
    assert ("length", "<tool_call>\n") == (call["finish_reason"], call["message"]["content"])
    assert used + 6 == generated


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO, "response_format": FORMAT}),
        (CHAT, {"messages": HELLO, "structured_outputs": {"json": SCHEMA}}),
        (COMPLETIONS, {"prompt": "hello", "max_tokens": 200, "response_format": FORMAT}),
        (COMPLETIONS, {"prompt": "hello", "max_tokens": 200, "structured_outputs": {"json": SCHEMA}}),
        (
            RESPONSES,
            {"input": "hello", "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}},
        ),
        (
            MESSAGES,
            {
                "model": "tiny",
                "messages": HELLO,
                "max_tokens": 200,
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            },
        ),
    ],
)
async def test_every_api_writes_an_instance_of_a_schema(path: str, body: dict[str, Any]) -> None:
    async with serving() as face:
        status, answer = await face.post(path, body)
    text = {
        CHAT: lambda: answer["choices"][0]["message"]["content"],
        COMPLETIONS: lambda: answer["choices"][0]["text"],
        RESPONSES: lambda: answer["output"][0]["content"][0]["text"],
        MESSAGES: lambda: answer["content"][0]["text"],
    }[path]()

    assert 200 == status
    validate(orjson.loads(text), SCHEMA)


async def test_objects_choices_and_patterns_are_kept_to() -> None:
    async with serving() as face:
        free = await chat(face, response_format={"type": "json_object"})
        choice = await chat(face, structured_outputs={"choice": ["rot 😀", "blau 😀"]})
        pattern = await chat(face, structured_outputs={"regex": "[0-9]{3}-[a-c]+"})
        streamed = await stream_chat(face, structured_outputs={"choice": ["rot 😀", "blau 😀"]})

    assert isinstance(orjson.loads(free["message"]["content"]), dict)
    assert choice["message"]["content"] in {"rot 😀", "blau 😀"}
    assert choice["message"]["content"] == "".join(one["delta"].get("content", "") for one in streamed)
    assert pattern["message"]["content"][:3].isdecimal()


async def test_responses_and_messages_call_tools_too() -> None:
    function = {"type": "function", "name": "weather", "parameters": SCHEMA}
    own = {"name": "weather", "input_schema": SCHEMA}
    async with serving() as face:
        _, response = await face.post(
            RESPONSES, {"input": "hi", "tools": [function], "tool_choice": "required"}
        )
        _, message = await face.post(
            MESSAGES,
            {
                "model": "tiny",
                "messages": HELLO,
                "max_tokens": 300,
                "tools": [own],
                "tool_choice": {"type": "tool", "name": "weather"},
            },
        )

    assert ["function_call"] == [item["type"] for item in response["output"]]
    validate(orjson.loads(response["output"][0]["arguments"]), SCHEMA)
    assert ("tool_use", "tool_use") == (message["content"][0]["type"], message["stop_reason"])
    validate(message["content"][0]["input"], SCHEMA)


async def test_log_probabilities_have_a_place_for_every_token() -> None:
    async with serving() as face:
        whole = await chat(face, logprobs=True, top_logprobs=3, max_tokens=4)
        streamed = await stream_chat(face, logprobs=True, top_logprobs=3, max_tokens=4)
        body = {"prompt": "hello there", "logprobs": 2, "max_tokens": 3, "echo": True}
        _, text = await face.post(COMPLETIONS, body)
        events = await face.events(COMPLETIONS, body | {"stream": True})
        _, prompt = await face.post(COMPLETIONS, {"prompt": "hello there", "prompt_logprobs": 1})
    content = whole["logprobs"]["content"]
    pieces = [one for chunk in streamed for one in (chunk["logprobs"] or {"content": []})["content"]]
    choice = text["choices"][0]
    scores = choice["logprobs"]
    chunks = [orjson.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-1]]

    assert content == pieces
    assert whole["message"]["content"] == "".join(one["token"] for one in content)
    assert [3] * 4 == [len(one["top_logprobs"]) for one in content]
    assert all(one["logprob"] == max(top["logprob"] for top in one["top_logprobs"]) < 0 for one in content)
    assert choice["text"] == "".join(scores["tokens"])
    assert (None, None) == (scores["token_logprobs"][0], scores["top_logprobs"][0])
    assert scores["text_offset"] == [offset for one in chunks for offset in one["logprobs"]["text_offset"]]
    assert [None, 1, 1] == [one and len(one) for one in prompt["choices"][0]["prompt_logprobs"]]


async def test_embeddings_come_as_numbers_or_as_base64_in_the_size_asked_for() -> None:
    async with serving() as face:
        _, plain = await face.post("/v1/embeddings", {"input": "hello", "dimensions": 16})
        _, packed = await face.post(
            "/v1/embeddings", {"input": "hello", "dimensions": 16, "encoding_format": "base64"}
        )
        _, usual = await face.post("/v1/embeddings", {"input": "hello"})
        status, _ = await face.post("/v1/embeddings", {"input": "hello", "dimensions": 0})
    vector = plain["data"][0]["embedding"]
    values = struct.unpack("<16f", base64.b64decode(packed["data"][0]["embedding"]))

    assert pytest.approx(vector, abs=1e-6) == list(values)
    assert pytest.approx(1) == sum(value * value for value in vector)
    assert (64, 400) == (len(usual["data"][0]["embedding"]), status)


async def test_a_response_is_kept_and_gone_on_with() -> None:
    async with serving() as face:
        _, first = await face.post(
            RESPONSES, {"input": "hello", "instructions": "be brief", "max_output_tokens": 40}
        )
        more = {"input": "go on", "max_output_tokens": 2, "previous_response_id": first["id"]}
        _, second = await face.post(RESPONSES, more)
        streamed = await face.events(RESPONSES, {"input": "hello", "max_output_tokens": 2, "stream": True})
        third = orjson.loads(streamed[-1].partition("data: ")[2])["response"]
        _, unkept = await face.post(RESPONSES, {"input": "hello", "max_output_tokens": 2, "store": False})
        found = [await fetch(face, "GET", one["id"]) for one in (first, second, third, unkept)]
        bogus = await face.post(RESPONSES, {"input": "hello", "previous_response_id": "resp_nope"})
        cancelled = await fetch(face, "POST", f"{first['id']}/cancel")
        status, _ = await fetch(face, "DELETE", first["id"])

    assert [(200, first), (200, second), (200, third)] == found[:3]
    assert (404, "invalid_request_error") == (found[3][0], found[3][1]["error"]["type"])
    assert first["id"] == second["previous_response_id"]
    # Question, answer of forty tokens, question; the instructions do not go along.
    assert 40 < second["usage"]["input_tokens"] < 40 + first["usage"]["input_tokens"] + 20
    assert (404, "Response with id 'resp_nope' not found.") == (bogus[0], bogus[1]["error"]["message"])
    assert (400, "Cannot cancel a synchronous response.") == (cancelled[0], cancelled[1]["error"]["message"])
    assert 405 == status


async def fetch(face: Face, method: str, name: str) -> tuple[int, Any]:
    async with face.client.request(method, f"{RESPONSES}/{name}") as answer:
        return answer.status, orjson.loads(await answer.read())


@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        ((), (400, "Disallowed CORS origin", None)),
        (("*",), (200, "OK", "*")),
        (("http://a.b",), (200, "OK", "http://a.b")),
    ],
)
async def test_a_preflight_is_answered_as_the_allowed_origins_say(
    origins: tuple[str, ...], expected: tuple[int, str, str | None]
) -> None:
    asked = {"origin": "http://a.b", "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization"
    async with serving(allowed_origins=origins) as face:
        async with face.client.options(CHAT, headers=asked) as answer:
            preflight = answer.status, await answer.text(), answer.headers.get("access-control-allow-origin")
            allowed = answer.headers["access-control-allow-headers"]
        async with face.client.get("/v1/models", headers={"origin": "http://a.b"}) as plain:
            origin = plain.headers.get("access-control-allow-origin")
        async with face.client.options(CHAT) as bare:
            status = bare.status

    assert expected == preflight
    assert ("authorization", expected[2], 405) == (allowed, origin, status)
