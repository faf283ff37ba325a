"""The simulator's answers beside those recorded from vLLM 0.32.0 (tests/slow/real/record.py)."""

from pathlib import Path
from typing import Any

import orjson

from tests.simulator.face import serving
from tests.simulator.wording import ERRORS, STREAMS, WHOLE, as_stream, list_kinds, mask, mask_tokens
from tests.tables import table

RECORDED = orjson.loads((Path(__file__).parent / "data" / "answers-0.32.0.json").read_bytes())


@table("index", range(len(STREAMS)))
async def test_streams_have_the_events_of_vllm(index: int) -> None:
    path, body = STREAMS[index]
    async with serving() as face:
        actual = list_kinds(await face.events(path, as_stream(body)))

    assert list(map(mask_tokens, RECORDED["streams"][index])) == list(map(mask_tokens, actual))


@table("index", range(len(WHOLE)))
async def test_whole_answers_have_the_fields_of_vllm(index: int) -> None:
    path, body = WHOLE[index]
    expected_status, expected = RECORDED["whole"][index]
    async with serving() as face:
        status, answer = await face.post(path, body)

    assert expected_status == status
    assert mask_tokens(expected) == mask_tokens(mask(orjson.dumps(answer).decode()))


@table("index", range(len(ERRORS)))
async def test_errors_are_worded_as_those_of_vllm(index: int) -> None:
    path, body = ERRORS[index]
    async with serving() as face:
        actual: list[Any] = list(await face.post(path, body))

    assert RECORDED["errors"][index] == actual
