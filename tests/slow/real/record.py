"""Records how a real vLLM words its answers: `python -m tests.slow.real.record URL FILE`."""

import asyncio
import sys
from pathlib import Path

import aiohttp
import orjson

from tests.simulator.face import events, post
from tests.simulator.wording import ERRORS, STREAMS, WHOLE, as_stream, list_kinds, mask


async def record_answers(url: str) -> dict[str, object]:
    """Returns the masked answers to all cases, in their order."""
    async with aiohttp.ClientSession(url) as client:
        streams = [
            list_kinds(await events(client, path, as_stream(body))) for path, body in STREAMS
        ]
        whole = [await post(client, path, body) for path, body in WHOLE]
        errors = [await post(client, path, body) for path, body in ERRORS]
    described = [[status, mask(orjson.dumps(answer).decode())] for status, answer in whole]
    return {"streams": streams, "whole": described, "errors": errors}


if __name__ == "__main__":
    recorded = asyncio.run(record_answers(sys.argv[1]))
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    Path(sys.argv[2]).write_bytes(orjson.dumps(recorded, option=options))
