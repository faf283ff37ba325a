"""The routes beside generation."""

from tests.simulator.face import serving
from tests.waiting import until

MESSAGES = [{"role": "user", "content": "hello"}]


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
        body = {"messages": MESSAGES, "max_tokens": 3000, "stream": True}
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
    assert message == "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"


async def test_counted_tokens_are_those_of_the_request_itself() -> None:
    body = {"model": "tiny", "messages": MESSAGES, "system": "be brief"}
    async with serving() as face:
        _, counted = await face.post("/v1/messages/count_tokens", body)
        _, answer = await face.post("/v1/messages", body | {"max_tokens": 1})
        usage = answer["usage"]

        counts = (
            usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]
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
