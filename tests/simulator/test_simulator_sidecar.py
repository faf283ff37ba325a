"""The simulated sidecar: whom a header names computes the prompt first, and its errors go to the client."""

from tests.simulator.face import Face, serving

CHAT_OF_100 = {"messages": [{"role": "user", "content": "word" * 100}], "max_tokens": 3}


async def send_named(face: Face, named: str, body: object = CHAT_OF_100) -> tuple[int, bytes]:
    headers = {"x-prefiller-host-port": named}
    async with face.client.post("/v1/chat/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.read()


async def test_both_endpoints_see_the_prompt_and_one_answers() -> None:
    async with serving() as prefill, serving(has_sidecar=True) as decode:
        status, said = await send_named(decode, f"127.0.0.1:{prefill.port},127.0.0.1:1")
        counters = [each.endpoint.driver.engine.counters for each in (prefill, decode)]

        assert (status, b'"completion_tokens":3' in said) == (200, True)
        assert [each.generation_tokens_total for each in counters] == [1, 3]
        assert counters[0].prompt_tokens_total == counters[1].prompt_tokens_total > 100
        await decode.chat("alone", max_tokens=1)
        assert prefill.endpoint.driver.engine.counters == counters[0]


async def test_what_goes_wrong_at_a_prefill_endpoint_goes_to_the_client() -> None:
    async with serving() as prefill, serving(has_sidecar=True) as decode:
        prefill.endpoint.faults = prefill.endpoint.faults.parse(
            ["error_rate=1", "error_status=503"]
        )

        assert (await send_named(decode, f"127.0.0.1:{prefill.port}"))[0] == 503
        assert (await send_named(decode, "127.0.0.1:1"))[0] == 502
        assert decode.endpoint.driver.engine.counters.generation_tokens_total == 0
