"""KV cache events as vLLM 0.32.0 publishes them."""

from dataclasses import replace

import msgspec
import pytest

from extproc.errors import SettingsError
from extproc.simulator.engine.records import AllBlocksCleared, BlockRemoved
from extproc.simulator.http.publisher import Publisher, open_socket
from extproc.simulator.http.tokens import FourByteTokenizer
from tests.simulator.face import NOON, QUICK, serving
from tests.simulator.recorder import Recorder

TOPIC = "kv@vllm@tiny"
# The fields of a BlockStored event as received from a vLLM 0.32.0 server, in their order.
STORED_FIELDS = [
    *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def publisher(recorder: Recorder) -> Publisher:
    return Publisher(recorder, "tcp://*:5557", TOPIC, lambda: NOON)


async def test_each_message_has_topic_number_and_batch(
    recorder: Recorder, publisher: Publisher
) -> None:
    async with serving(publisher=publisher) as face:
        await face.post("/v1/completions", {"prompt": list(range(5, 55)), "max_tokens": 20})

    topics, numbers, payloads = zip(*recorder.frames, strict=True)
    assert set(topics) == {TOPIC.encode()}
    assert [int.from_bytes(number, "big") for number in numbers] == list(range(len(numbers)))
    assert {len(number) for number in numbers} == {8}
    assert {(batch[0], batch[2]) for batch in map(msgspec.msgpack.decode, payloads)} == {(NOON, 0)}


async def test_stored_blocks_carry_tokens_and_their_parents(
    recorder: Recorder, publisher: Publisher
) -> None:
    prompt = list(range(5, 55))
    async with serving(publisher=publisher) as face:
        _, answer = await face.post("/v1/completions", {"prompt": prompt, "max_tokens": 20})
        answered = FourByteTokenizer().encode([answer["choices"][0]["text"]])
    first, *later = recorder.events

    assert (list(first), first["token_ids"]) == (STORED_FIELDS, prompt[:48])
    assert (first["parent_block_hash"], len(first["block_hashes"])) == (None, 3)
    assert first["extra_keys"] == [None, None, None]
    assert later[0]["parent_block_hash"] == first["block_hashes"][-1]
    stored = [token for event in recorder.events for token in event["token_ids"]]
    assert stored == (prompt + answered)[: len(stored)]


async def test_adapters_and_salts_are_extra_keys_as_in_vllm(
    recorder: Recorder, publisher: Publisher
) -> None:
    body = {"prompt": [7] * 40, "max_tokens": 1, "model": "sql", "cache_salt": "pepper"}
    async with serving(publisher=publisher, adapters=("sql",)) as face:
        await face.post("/v1/completions", body)
    (event,) = recorder.events

    assert (event["lora_name"], event["extra_keys"]) == ("sql", [["sql", "pepper"], ["sql"]])


async def test_evictions_and_resets_are_told(recorder: Recorder, publisher: Publisher) -> None:
    small = replace(QUICK, kv_tokens=512, max_model_len=512)
    async with serving(publisher=publisher, profile=small) as face:
        for first in (1000, 2000, 3000):
            await face.post(
                "/v1/completions", {"prompt": list(range(first, first + 200)), "max_tokens": 1}
            )
        await face.post("/reset_prefix_cache", b"")
    removed = [event for event in recorder.events if event["type"] == "BlockRemoved"]

    assert removed
    assert all(event.pop("block_hashes") for event in removed)
    assert removed == [{"type": "BlockRemoved", "medium": "GPU", "group_idx": 0}] * len(removed)
    assert recorder.events[-1] == {"type": "AllBlocksCleared"}


async def test_sources_of_events_are_told(publisher: Publisher) -> None:
    async with serving(publisher=publisher) as face, face.client.get("/kv_event_sources") as answer:
        told = (await answer.json())["0"]
    async with serving() as face, face.client.get("/kv_event_sources") as answer:
        assert await answer.json() == {}

    assert (told["publisher"], told["endpoint"], told["topic"]) == ("zmq", "tcp://*:5557", TOPIC)


def test_nothing_is_sent_for_a_step_without_events(
    recorder: Recorder, publisher: Publisher
) -> None:
    publisher.flush()
    publisher.collect(BlockRemoved((1,)))
    publisher.collect(AllBlocksCleared())
    publisher.flush()
    publisher.flush()

    assert len(recorder.frames) == 1
    with pytest.raises(SettingsError, match=r"tcp://nowhere"):
        open_socket("tcp://nowhere.invalid:1")
