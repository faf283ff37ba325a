"""Answers of a form beside a real vLLM's: the same fields, and refusals in the same words.

What a real model of random weights writes is not compared, but for its types.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from extproc.simulator.http.endpoint import Options
from extproc.simulator.http.tokens import FileTokenizer
from tests.simulator.face import QUICK, events, post, serving
from tests.simulator.wording import CHAT, COMPLETIONS, HELLO, MESSAGES, RESPONSES, as_stream
from tests.slow.real.process import run_vllm
from tests.stack.ports import free_ports

DIRECTORY = os.environ.get("REAL_VLLM")
pytestmark = [
    pytest.mark.real_vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not DIRECTORY, reason="REAL_VLLM names no vLLM: run `make test-vllm`"),
]
# One text alone is an instance, so that a model of random weights comes to an end, too.
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
NAMED = {"type": "function", "function": {"name": "weather"}}
FUNCTIONS = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
OWN_TOOLS = [{"name": "weather", "input_schema": SCHEMA}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
TEXT_FORMAT = {"format": {"type": "json_schema", "name": "trip", "schema": SCHEMA}}
SCORED = {"input": "hello", "include": ["message.output_text.logprobs"], "top_logprobs": 2}

Case = tuple[str, dict[str, Any]]
# What a value may be: kinds, and of lists and dicts what is in them.
Shape = dict[str, "Shape"]


def chat(**fields: Any) -> Case:
    return CHAT, {"messages": HELLO, "temperature": 0, "max_tokens": 100, **fields}


def complete(**fields: Any) -> Case:
    return COMPLETIONS, {"prompt": "hello there", "temperature": 0, "max_tokens": 24, **fields}


def respond(**fields: Any) -> Case:
    return RESPONSES, {"input": "hello", "temperature": 0, "max_output_tokens": 100, **fields}


def message(**fields: Any) -> Case:
    return MESSAGES, {"model": "tiny", "messages": HELLO, "temperature": 0, "max_tokens": 100, **fields}


def choose(**constraint: Any) -> Case:
    return chat(structured_outputs=constraint)


BOTH: list[Case] = [
    chat(tools=TOOLS, tool_choice=NAMED),
    chat(tools=TOOLS, max_tokens=4),
    chat(response_format={"type": "json_object"}, max_tokens=6),
    choose(choice=["red", "blue"]),
    choose(regex="[0-9]{3}-[a-c]"),
    choose(grammar='root ::= "a" | "b"'),
    chat(logprobs=True, top_logprobs=2, max_tokens=3),
    chat(logprobs=True, max_tokens=3),
    complete(logprobs=2),
    complete(logprobs=1, echo=True),
    respond(tools=FUNCTIONS, tool_choice={"type": "function", "name": "weather"}),
    respond(tools=FUNCTIONS, max_output_tokens=4),
    respond(structured_outputs={"choice": ["red", "blue"]}),
]
WHOLE: list[Case] = [
    complete(prompt_logprobs=1),
    respond(**SCORED, max_output_tokens=3),
]
STREAMS: list[Case] = [
    chat(tools=TOOLS, tool_choice=NAMED, stream_options={"include_usage": True}),
    message(tools=OWN_TOOLS, tool_choice={"type": "tool", "name": "weather"}),
]
INSTANCES: list[Case] = [chat(response_format=FORMAT), choose(json=SCHEMA), respond(text=TEXT_FORMAT)]
ERRORS: list[Case] = [
    chat(tool_choice="required"),
    chat(tools=TOOLS, tool_choice="often"),
    chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nope"}}),
    chat(tools=TOOLS, tool_choice={"type": "function"}),
    chat(tools=[]),
    chat(response_format={"type": "json_schema"}),
    choose(),
    choose(choice=[]),
    choose(json=SCHEMA, regex="a"),
    choose(regex="(["),
    choose(json={"type": "nope"}),
    choose(json="{nope"),
    choose(json={"$ref": "#/nope"}),
    choose(json={"type": "array", "uniqueItems": True, "items": {"type": "integer"}}),
    choose(json={"type": "object", "properties": {"a": False}, "required": ["a"]}),
    chat(top_logprobs=2),
    chat(logprobs=True, top_logprobs=-2),
    chat(logprobs=True, top_logprobs=50),
    chat(prompt_logprobs=1, stream=True),
    chat(prompt_logprobs=-3),
    complete(logprobs=50),
    complete(logprobs=-2),
    respond(tool_choice="required"),
    respond(tools=FUNCTIONS, tool_choice={"type": "function", "name": "nope"}),
    respond(previous_response_id="resp_nope"),
    respond(previous_response_id="nope"),
    respond(store=False, background=True),
    message(tools=OWN_TOOLS, tool_choice={"type": "tool", "name": "nope"}),
]
# Members whose own members are named after tokens.
BY_TOKEN = {"top_logprobs", "prompt_logprobs"}
PREFLIGHT = {"origin": "http://a.b", "access-control-request-method": "POST"}
OPTIONS = [
    (CHAT, PREFLIGHT | {"access-control-request-headers": "content-type,authorization"}),
    (CHAT, PREFLIGHT | {"access-control-request-method": "BREW"}),
    ("/v1/models", PREFLIGHT),
    ("/v1/nope", PREFLIGHT),
    (CHAT, {}),
    (CHAT, {"origin": "http://a.b"}),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    options = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with run_vllm(Path(DIRECTORY or ""), free_ports(1)[0], log, *options) as url:
        yield url


@pytest.fixture(scope="module")
def pooling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the same model that makes embeddings, of as many dimensions as a client wants."""
    log = tmp_path_factory.mktemp("pooling") / "vllm.log"
    options = ("--runner", "pooling", "--hf-overrides", '{"is_matryoshka": true}')
    with run_vllm(Path(DIRECTORY or ""), free_ports(1)[0], log, *options) as url:
        yield url


@pytest.fixture(scope="module")
def options() -> Options:
    profile = replace(QUICK, block_size=32, kv_tokens=1_048_576, max_model_len=4096)
    tokenizer = FileTokenizer(Path(DIRECTORY or "") / "model/tokenizer.json")
    return Options(profile=profile, tokenizer=tokenizer, models=("tiny",))


@pytest.mark.parametrize(("path", "body"), [*BOTH, *WHOLE])
async def test_whole_answers_have_vllms_fields(real: str, options: Options, path: str, body: Any) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as face:
        expected, actual = [await post(one, path, body) for one in (client, face.client)]

    assert (200, 200) == (expected[0], actual[0])
    assert shape(expected[1]) == shape(actual[1])


@pytest.mark.parametrize(("path", "body"), [*BOTH, *STREAMS])
async def test_streams_have_vllms_events(real: str, options: Options, path: str, body: Any) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as face:
        expected, actual = [await events(one, path, as_stream(body)) for one in (client, face.client)]

    assert shape_events(expected) == shape_events(actual)


@pytest.mark.parametrize(("path", "body"), INSTANCES)
async def test_what_only_one_text_satisfies_is_that_text(
    real: str, options: Options, path: str, body: Any
) -> None:
    """The real one may put any number of blanks between; its model likes them until it is cut."""
    whole = {"incomplete_details": None}
    async with aiohttp.ClientSession(real) as client, serving(options) as face:
        expected, actual = [await post(one, path, body) for one in (client, face.client)]

    assert shape(expected[1] | whole) == shape(actual[1] | whole)
    assert '{"city":"Oslo"}'.startswith("".join(find_text(expected[1]).split()))
    assert {"city": "Oslo"} == orjson.loads(find_text(actual[1]))


@pytest.mark.parametrize(("path", "body"), ERRORS)
async def test_refusals_are_vllms(real: str, options: Options, path: str, body: Any) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as face:
        expected, actual = [await post(one, path, body) for one in (client, face.client)]

    assert expected == actual


async def test_kept_responses_are_as_vllm_keeps_them(real: str, options: Options) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as face:
        expected, actual = [await use_store(one) for one in (client, face.client)]

    assert expected == actual


async def use_store(client: aiohttp.ClientSession) -> list[Any]:
    """Returns the statuses and shapes of what comes of a response, and of one that never was."""
    path, body = respond(max_output_tokens=2)
    _, first = await post(client, path, body)
    told: list[Any] = [await post(client, path, body | {"previous_response_id": first["id"]})]
    for name in (first["id"], "resp_nope"):
        for method, place in (("GET", name), ("POST", f"{name}/cancel"), ("DELETE", name)):
            async with client.request(method, f"{path}/{place}") as answer:
                told.append((answer.status, orjson.loads(await answer.read())))
    return [(status, value if "error" in value else shape(value)) for status, value in told]


@pytest.mark.parametrize(("path", "headers"), OPTIONS)
async def test_preflights_are_answered_as_vllm_answers_them(
    real: str, options: Options, path: str, headers: dict[str, str]
) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as face:
        expected, actual = [await ask_options(one, path, headers) for one in (client, face.client)]

    assert expected == actual


async def ask_options(client: aiohttp.ClientSession, path: str, headers: dict[str, str]) -> object:
    async with client.options(path, headers=headers) as answer:
        named = {
            name.lower(): sorted(value.lower().split(", "))
            for name, value in answer.headers.items()
            if name.lower().startswith("access-control-")
        }
        return answer.status, await answer.text(), named


async def test_embeddings_have_vllms_form_and_size(pooling: str, options: Options) -> None:
    asked = [
        {"input": "hello", "dimensions": 48},
        {"input": ["hello", "there"], "dimensions": 48, "encoding_format": "base64"},
    ]
    async with aiohttp.ClientSession(pooling) as client, serving(options) as face:
        for body in asked:
            expected, actual = [
                await post(one, "/v1/embeddings", {"model": "tiny", **body}) for one in (client, face.client)
            ]

            assert (200, 200) == (expected[0], actual[0])
            assert shape(expected[1]) == shape(actual[1])
            assert measure(expected[1]) == measure(actual[1])


def measure(answer: Any) -> list[int]:
    return [len(one["embedding"]) for one in answer["data"]]


def find_text(answer: Any) -> str:
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    return str(answer["output"][0]["content"][0]["text"])


def shape(value: Any) -> Shape:
    """Returns the types in place of the values; of a list what its members are."""
    if isinstance(value, dict):
        return {"dict": {name: shape_member(name, one) for name, one in value.items()}}
    if isinstance(value, list):
        return {"list": reduce(merge, map(shape, value), {})}
    return {"number" if isinstance(value, (int, float)) else type(value).__name__: {}}


def shape_member(name: str, value: Any) -> Shape:
    """Returns a member's shape; if it has members per token, without the tokens' names."""
    if name in BY_TOKEN and isinstance(value, list):
        return shape([list(one.values()) if is_by_token(one) else one for one in value])
    return shape(value)


def is_by_token(value: Any) -> bool:
    return isinstance(value, dict) and "token" not in value


def merge(one: Shape, other: Shape) -> Shape:
    """Returns the shape of what is the one or the other."""
    return {kind: merge(one.get(kind, {}), other.get(kind, {})) for kind in one | other}


def shape_events(told: list[str]) -> Shape:
    """Returns the shape of a stream's events, by name, and which are the first and the last.

    Those of one name together: a real server puts tokens that come close together into one event.
    """
    found: Shape = {}
    for event in told:
        name, _, data = event.rpartition("data: ")
        found = merge(found, {name: {data: {}} if data == "[DONE]" else shape(orjson.loads(data))})
    return found | {"first": {told[0].partition("data: ")[0]: {}}, "last": {told[-1][:30]: {}}}
