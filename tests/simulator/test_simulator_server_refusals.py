"""What the simulator does not do, it refuses: with a 400 of vLLM's shape, in every API."""

from typing import Any

from tests.simulator.face import serving
from tests.simulator.wording import CHAT, COMPLETIONS, HELLO, MESSAGES, RESPONSES
from tests.tables import table

SCHEMA = {"type": "object"}
SCORES = (
    "Requested sample logprobs of {}, which is greater than max allowed: 0 (parameter=logprobs, value={})"
)
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
        (RESPONSES, {"text": {"verbosity": "low"}, "tools": [{"type": "function", "name": "f"}]}, None),
        (MESSAGES, {"tool_choice": {"type": "auto"}, "tools": [{"name": "f", "input_schema": SCHEMA}]}, None),
    ],
)
async def test_what_the_simulator_cannot_do_gets_400(path: str, fields: Any, message: str | None) -> None:
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
