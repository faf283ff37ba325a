"""What clients see of generation: text, lengths, usage, the cache, and going away."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from tests.simulator.face import NOON, QUICK, Face, serving
from tests.waiting import until

CHAT = "/v1/chat/completions"
LONG = "word " * 200
LABELS = '{engine="0",model_name="tiny"}'
FIRST_TOKEN = f"vllm:time_to_first_token_seconds_sum{LABELS}"


def generated_text(answer: Any) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def cached(answer: Any) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


async def stream_text(face: Face, **fields: Any) -> str:
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True, **fields}
    chunks = [
        msgspec.json.decode(event.removeprefix("data: "))
        for event in (await face.events(CHAT, body))[:-1]
    ]
    return "".join(
        choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]
    )


async def test_the_same_prompt_gets_the_same_text_streamed_or_not_and_others_another() -> None:
    async with serving() as face:
        answers = [
            await face.chat("hello", max_tokens=8, n=2),
            await face.chat("hello", max_tokens=8, seed=7),
            await face.chat("goodbye", max_tokens=8),
        ]
        texts = [choice["message"]["content"] for answer in answers for choice in answer["choices"]]
        streamed = await stream_text(face, max_tokens=8)

        assert len(set(texts)) == 4
        assert generated_text(await face.chat("hello", max_tokens=8)) == streamed == texts[0]
        assert len(streamed.split()) == 8


async def test_an_answer_sent_back_in_a_conversation_is_found_in_the_cache() -> None:
    async with serving() as face:
        first = await face.chat("hello", max_tokens=100)
        conversation = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": generated_text(first)},
            {"role": "user", "content": "go on"},
        ]
        _, second = await face.post(CHAT, {"messages": conversation, "max_tokens": 1})

        # All full blocks of prompt and answer; the last token's keys and values were never
        # computed.
        known_tokens = first["usage"]["total_tokens"] - 1
        assert cached(second) == known_tokens // 16 * 16


async def test_cache_salts_and_adapters_share_no_prefixes() -> None:
    async with serving(adapters=("sql",)) as face:
        await face.chat(LONG, max_tokens=1)
        hits = [
            cached(await face.chat(LONG, max_tokens=1)),
            cached(await face.chat(LONG, max_tokens=1, cache_salt="pepper")),
            cached(await face.chat(LONG, max_tokens=1, cache_salt="pepper")),
            cached(await face.chat(LONG, max_tokens=1, model="sql")),
        ]

        assert [bool(hit) for hit in hits] == [True, False, True, False]


async def test_a_prefix_hit_shortens_the_time_to_the_first_token() -> None:
    profile = replace(QUICK, prefill_ms_per_token=2)
    async with serving(profile=profile) as face:
        first = await face.chat(LONG, max_tokens=1)
        miss_s = await face.metric(FIRST_TOKEN)
        await face.chat(LONG, max_tokens=1)
        hit_s = await face.metric(FIRST_TOKEN) - miss_s

        # 250 tokens of prompt at two milliseconds each, once.
        assert miss_s > 0.002 * first["usage"]["prompt_tokens"]
        assert hit_s < miss_s / 2


def ending(answer: Any) -> tuple[str, int]:
    return answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]


async def test_max_tokens_bounds_an_answer_and_the_context_bounds_max_tokens() -> None:
    async with serving() as face:
        _, cut = await face.post("/v1/completions", {"prompt": [9] * 4090, "max_tokens": 10})

        assert ending(await face.chat("hello", max_tokens=7)) == ("length", 7)
        assert cut["usage"]["completion_tokens"] == 6


async def test_natural_lengths_end_answers_unless_eos_is_ignored() -> None:
    async with serving(speed=50) as face:
        assert ending(await face.chat("hello")) == ("stop", 256)
    async with serving(speed=50, answer_tokens=5) as face:
        reason, tokens = ending(await face.chat("hello", max_tokens=60))
        at_least = await face.chat("hello", max_tokens=60, min_tokens=40)

        assert reason == "stop"
        assert tokens < 40
        assert ending(await face.chat("hello", max_tokens=60, ignore_eos=True)) == ("length", 60)
        assert at_least["usage"]["completion_tokens"] == 40


async def test_usage_can_be_forced_and_its_details_withheld() -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "stream": True}
    async with serving(forces_usage=True, shows_cached=False) as face:
        *_, last, done = await face.events(CHAT, body)
        whole = await face.chat("hello", max_tokens=1)

        assert done == "data: [DONE]"
        assert "prompt_tokens_details" not in last
        assert '"usage":{"prompt_tokens":' in last
        assert whole["usage"]["prompt_tokens_details"] is None


async def test_a_client_that_goes_away_frees_the_engine() -> None:
    async with serving() as face:
        body = {
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 4000,
            "stream": True,
        }
        for _ in range(20):
            async with face.client.post(CHAT, json=body) as answer:
                await answer.content.readline()
                answer.close()
        await until(lambda: not face.endpoint.load and face.endpoint.driver.engine.is_idle)
        aborted = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}'

        assert await face.metric(aborted) == 20
        assert face.endpoint.driver.running == 0


async def test_an_answer_names_its_endpoint_and_the_body_that_it_read() -> None:
    async with serving() as face:
        for body in (
            b'{"messages": [ {"role":"user","content":"hi"}],  "max_tokens":1}',
            b"no json",
        ):
            async with face.client.post(
                CHAT, data=body, headers={"content-type": "application/json"}
            ) as answer:
                assert answer.headers["x-simulated-body-xxh3"] == xxh3_64_hexdigest(body)
                assert answer.headers["x-simulated-endpoint"] == "vllm"


async def test_a_body_of_20_megabytes_is_refused_for_its_length_and_ten_faults_of_one_are_told() -> (
    None
):
    long = {"messages": [{"role": "user", "content": "x" * 20_000_000}]}
    async with serving() as face:
        status, answer = await face.post(CHAT, long)
        assert status == 400
        assert "maximum context length is 4096 tokens" in answer["error"]["message"]
        status, answer = await face.post(CHAT, {"messages": [{}] * 12})
        lines = answer["error"]["message"].splitlines()

    assert (status, len(lines)) == (400, 12)
    assert (lines[0], lines[-1]) == ("12 validation errors:", "  ...and 2 more errors")


async def test_parts_tools_and_instructions_become_prompts() -> None:
    turns = [{"role": "user", "content": "hello"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    tool = {"type": "function", "function": {"name": "f"}}
    async with serving() as face:
        plain, split, tools = [
            (await face.chat("hello", max_tokens=1, **fields))["usage"]["prompt_tokens"]
            for fields in ({}, {"messages": parts}, {"tools": [tool]})
        ]
        chat = await face.chat(
            "", messages=[{"role": "system", "content": "be brief"}, *turns], max_tokens=3
        )
        body = {
            "input": turns,
            "instructions": "be brief",
            "max_output_tokens": 3,
            "temperature": 0.5,
        }
        _, response = await face.post("/v1/responses", body)

        assert plain == split < tools
        assert response["output"][0]["content"][0]["text"] == generated_text(chat)
        assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
        assert response["temperature"] == 0.5


async def test_echo_repeats_the_prompt_before_the_answer() -> None:
    body = {"prompt": "say it again", "max_tokens": 2, "echo": True}
    async with serving() as face:
        _, whole = await face.post("/v1/completions", body)
        first, *_ = await face.events("/v1/completions", body | {"stream": True})

        assert whole["choices"][0]["text"].startswith("say it again ")
        assert msgspec.json.decode(first.removeprefix("data: "))["choices"][0]["text"].startswith(
            "say it again "
        )


async def test_many_requests_at_once_share_the_steps() -> None:
    async with serving(profile=replace(QUICK, base_ms=50)) as face:
        answers = await asyncio.gather(
            *(face.chat(f"hello {number}", max_tokens=20) for number in range(30))
        )
        steps = await face.metric(f"vllm:iteration_tokens_total_count{LABELS}")

        assert [answer["usage"]["completion_tokens"] for answer in answers] == [20] * 30
        # One after the other they would take 600.
        assert steps < 300
        assert answers[0]["created"] == int(NOON)
