"""The routes beside generation; and what is refused with a 400 of vLLM's shape, in every API."""

from gzip import compress
from json import dumps
from typing import Any

import msgspec

from tests.simulator.face import serving
from tests.simulator.wording import CHAT, COMPLETIONS, HELLO, MESSAGES, RESPONSES
from tests.tables import table
from tests.waiting import until


async def test_models_lists_names_and_adapters() -> None:
    async with (
        serving(models=("tiny", "small"), adapters=("sql",)) as face,
        face.client.get("/v1/models") as answer,
    ):
        cards = (await answer.json())["data"]

        assert [(card["id"], card["root"], card["parent"]) for card in cards] == [
            ("tiny", "tiny", None),
            ("small", "tiny", None),
            ("sql", "sql", "tiny"),
        ]
        assert cards[0]["max_model_len"] == 4096


async def test_the_prefix_cache_is_reset_but_not_under_running_requests() -> None:
    prompt = {"prompt": [5] * 100, "max_tokens": 1}
    async with serving() as face:
        await face.post("/v1/completions", prompt)
        reset = await face.post("/reset_prefix_cache", b"")
        _, after = await face.post("/v1/completions", prompt)
        async with face.client.post(
            "/v1/completions", json=prompt | {"max_tokens": 3000, "stream": True}
        ) as answer:
            await answer.content.readline()
            refused = await face.post("/reset_prefix_cache", b"")

    assert reset == (200, {"success": True})
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert refused == (200, {"success": False})


async def test_health_ping_and_version_answer_and_load_counts_what_is_being_served() -> None:
    async with serving() as face:
        for path in ("/health", "/ping"):
            async with face.client.get(path) as answer:
                assert (answer.status, await answer.read()) == (200, b"")
        async with face.client.get("/version") as answer:
            assert await answer.json() == {"version": "0.32.0"}
        body = {"messages": HELLO, "max_tokens": 3000, "stream": True}
        async with face.client.post("/v1/chat/completions", json=body) as answer:
            await answer.content.readline()
            async with face.client.get("/load") as load:
                assert await load.json() == {"server_load": 1}
        await until(lambda: not face.endpoint.load)


async def test_unknown_methods_and_bodies_that_are_not_declared_as_json_are_refused() -> None:
    async with serving() as face:
        async with face.client.get("/v1/chat/completions") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "POST")
            assert await answer.json() == {"detail": "Method Not Allowed"}
        async with face.client.post("/v1/chat/completions", data=b"{}") as answer:
            message = (await answer.json())["error"]["message"]

    assert answer.status == 400
    assert (
        message
        == "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    )


async def test_counted_tokens_are_those_of_the_request_itself() -> None:
    body = {"model": "tiny", "messages": HELLO, "system": "be brief"}
    async with serving() as face:
        _, counted = await face.post("/v1/messages/count_tokens", body)
        _, answer = await face.post("/v1/messages", body | {"max_tokens": 1})
        usage = answer["usage"]

        counts = (
            usage["input_tokens"]
            + usage["cache_creation_input_tokens"]
            + usage["cache_read_input_tokens"]
        )
        assert counted["input_tokens"] == counts


async def test_embeddings_depend_on_the_input_alone() -> None:
    async with serving() as face:
        _, one = await face.post("/v1/embeddings", {"model": "tiny", "input": ["hello", "goodbye"]})
        _, two = await face.post("/v1/embeddings", {"input": "hello"})
        empty, _ = await face.post("/v1/embeddings", {"input": []})
        vectors = [item["embedding"] for item in one["data"]]

        assert vectors[0] == two["data"][0]["embedding"] != vectors[1]
        assert abs(sum(value * value for value in vectors[0]) - 1) < 1e-9
        assert one["usage"]["prompt_tokens"] == 4
        assert empty == 400


SCHEMA = {"type": "object"}
SCORES = "Requested sample logprobs of {}, which is greater than max allowed: 0 (parameter=logprobs, value={})"
FORMAT = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
TEXT = "plain text only"
CHOICE = '`tool_choice` must be "auto" or "none"'
MINIMAL: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 2},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 2},
    RESPONSES: {"input": "hello", "max_output_tokens": 2},
    MESSAGES: {"model": "tiny", "messages": HELLO, "max_tokens": 2},
}


@table(
    ("path", "fields", "message"),
    [
        (CHAT, {"logprobs": True}, SCORES.format(True, True)),
        (COMPLETIONS, {"logprobs": 0}, SCORES.format(0, 0)),
        (CHAT, {"top_logprobs": 2}, "Requested sample logprobs of 2"),
        (COMPLETIONS, {"prompt_logprobs": 1}, "Requested prompt logprobs of 1"),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}, "logprobs are not supported"),
        (CHAT, {"response_format": FORMAT}, TEXT),
        (CHAT, {"response_format": {"type": "json_object"}}, TEXT),
        (CHAT, {"structured_outputs": {"choice": ["red"]}}, TEXT),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}, TEXT),
        (MESSAGES, {"output_config": {"format": {"schema": SCHEMA}}}, TEXT),
        (CHAT, {"tools": TOOLS, "tool_choice": "required"}, CHOICE),
        (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function"}}, CHOICE),
        (RESPONSES, {"tool_choice": "required"}, CHOICE),
        (MESSAGES, {"tool_choice": {"type": "any"}}, CHOICE),
        (RESPONSES, {"background": True}, "does not support the background mode"),
        (CHAT, {"tools": []}, "`tools` must not be an empty array"),
        # The same fields asking for text get text.
        (CHAT, {"logprobs": False, "top_logprobs": 0, "response_format": {"type": "text"}}, None),
        (CHAT, {"tools": TOOLS, "tool_choice": "auto", "prompt_logprobs": None}, None),
        (COMPLETIONS, {"logprobs": None}, None),
        (RESPONSES, {"text": {"format": {"type": "text"}}, "include": [], "store": True}, None),
        (
            RESPONSES,
            {"text": {"verbosity": "low"}, "tools": [{"type": "function", "name": "f"}]},
            None,
        ),
        (
            MESSAGES,
            {"tool_choice": {"type": "auto"}, "tools": [{"name": "f", "input_schema": SCHEMA}]},
            None,
        ),
    ],
)
async def test_what_the_simulator_cannot_do_gets_400(
    path: str, fields: Any, message: str | None
) -> None:
    async with serving() as face:
        status, answer = await face.post(path, MINIMAL[path] | fields)

        if message is None:
            assert status == 200, answer
        else:
            assert (400, True) == (status, message in answer["error"]["message"]), answer
            assert face.endpoint.driver.engine.is_idle


async def test_no_response_is_stored() -> None:
    async with serving() as face:
        _, first = await face.post(RESPONSES, MINIMAL[RESPONSES])
        found = [
            await face.post(RESPONSES, MINIMAL[RESPONSES] | {"previous_response_id": first["id"]}),
            await face.post(f"{RESPONSES}/{first['id']}/cancel", b""),
        ]
        async with face.client.get(f"{RESPONSES}/{first['id']}") as answer:
            found.append((answer.status, await answer.json()))

    message = f"Response with id '{first['id']}' not found."
    assert [(404, message)] * 3 == [(status, body["error"]["message"]) for status, body in found]


async def test_packed_bodies_are_refused_and_long_headers_are_not() -> None:
    json = {"content-type": "application/json"}
    body = msgspec.json.encode({"model": "tiny", "messages": HELLO})
    async with serving() as face:
        packed = json | {"content-encoding": "gzip"}
        async with face.client.post(CHAT, data=compress(body), headers=packed) as answer:
            assert (answer.status, await answer.json()) == (
                400,
                {"detail": "There was an error parsing the body"},
            )
        long = json | {"x-long": "a" * 100_000}
        async with face.client.post(CHAT, data=body, headers=long) as answer:
            assert answer.status == 200


async def test_pages_of_any_origin_may_ask() -> None:
    asked = {"origin": "http://a", "access-control-request-method": "POST"}
    async with serving() as face:
        async with face.client.options(CHAT, headers=asked) as answer:
            assert (answer.status, await answer.text()) == (200, "OK")
            assert answer.headers["access-control-allow-origin"] == "*"
        async with face.client.options(CHAT) as answer:
            assert answer.status == 405
        async with face.client.get("/v1/models", headers={"origin": "http://a"}) as answer:
            assert answer.headers["access-control-allow-origin"] == "*"


async def test_half_a_character_anywhere_is_the_clients_fault() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,\ud83d"}}
    messages = [{"role": "user", "content": [image]}]
    async with serving() as face:
        for path in (CHAT, MESSAGES):
            body = dumps({"model": "tiny", "max_tokens": 4, "messages": messages}).encode()
            status, answer = await face.post(path, body)

            assert (status, answer["error"]["type"]) == (400, "BadRequestError"), path
