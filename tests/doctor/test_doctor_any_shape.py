"""Whatever its sources say, of any shape: the doctor ends with a report, or with one sentence."""

import asyncio
import gzip
import json
import re
from contextlib import suppress

import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.doctor.checks import write_report
from extproc.doctor.collect import look_around
from extproc.errors import ExtprocError
from tests.hosting import hosting
from tests.stack.gateway import load

STATIC = {"name": "tiny", "models": ["a"], "endpoints": {"static": ["ADDRESS"]}}
POOL = {
    "name": "tiny",
    "endpoints": [{"name": "tiny", "address": "ADDRESS", "state": "ready"}],
    "fault": None,
}
LOST = {"presumed_share": 0.5, "predicted_hit_rate": 0.8, "measured_hit_rate": 0.1}
STAT = {"name": "http.clients.ext_proc.extproc.message_timeouts", "value": 9}
HOST = {
    "address": {"socket_address": {"address": "10.0.0.1", "port_value": 9002}},
    "health_status": {},
}
PAGES = {
    "/config": json.dumps({"pools": [STATIC]}),
    "/pools": json.dumps([POOL | {"share": {"heard": 1}, "learnt": {"endpoints": {"tiny": LOST}}}]),
    "/metrics": 'vllm:cache_config_info{block_size="16"} 1\n',
    "/v1/models": json.dumps({"data": [{"id": "a", "parent": None}]}),
    "/config_dump": json.dumps(load("standalone.yaml")),
    "/stats": json.dumps({"stats": [STAT]}),
    "/server_info": json.dumps({"version": "9e55/1.40.0/Clean/RELEASE/BoringSSL", "state": "LIVE"}),
    "/clusters": json.dumps(
        {"cluster_statuses": [{"name": "extproc", "host_statuses": [HOST, HOST]}]}
    ),
}
OTHERS = ["null", "5", "-1", "1" * 400, "1e999", "NaN", '""', '"a"']
OTHERS += [r'"\ud800"', "{}", "[]", '[{"a": []}]', ""]
PART = re.compile(r'"[^"]*"|[-\d.]+|null|\{[^{}]*\}|\[[^][]*\]')


def altered_text(page: str) -> st.SearchStrategy[tuple[str, str, str]]:
    """A page, a part of it, and what stands there instead."""
    parts = sorted({*PART.findall(PAGES[page]), PAGES[page]})
    return st.tuples(
        st.just(page), st.sampled_from(parts), st.sampled_from(OTHERS) | st.text(max_size=3)
    )


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "gzip"}], ids=["plain", "packed"])
async def test_what_an_engine_sends_without_end_is_not_kept(headers: dict[str, str]) -> None:
    piece, sent = b"vllm:num_requests_running 1\n" * 4_000, 0
    said = gzip.compress(piece * 1_000) if headers else piece

    async def send(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        with suppress(OSError):
            while sent < 300_000_000:
                await answer.write(said)
                sent += len(said)
        return answer

    async with hosting({"/{path:.*}": send}) as engine:

        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=PAGES.get(request.path, "").replace("ADDRESS", engine))

        async with hosting({"/{path:.*}": answer}) as address:
            evidence = await look_around(f"http://{address}", None, None, None, 0.0)

    assert [dict(seen.last.samples) for seen in evidence.engines] == [{}]
    assert evidence.engines[0].health == "answers with more than 2 MB"
    assert sent < 40_000_000  # what the kernel's buffers hold beside it


async def diagnose_pages(pages: dict[str, str]) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=pages.get(request.path, "").replace("ADDRESS", request.host))

    async with hosting({"/{path:.*}": answer}) as address:
        with suppress(ExtprocError):
            evidence = await look_around(f"http://{address}", f"http://{address}", None, None, 0.0)
            assert all(
                write_report(evidence, as_json=as_json)[0].encode() for as_json in (False, True)
            )


@given(st.sampled_from([*PAGES]).flatmap(altered_text))
@example(("/pools", '"presumed_share"', '"other"'))
@example(("/pools", json.dumps({"tiny": LOST}), "[5]"))
@example(("/pools", "0.1", "null"))
@example(("/stats", "9", "1" * 400))
@example(("/config_dump", '"clients"', "5"))
def test_pages_of_any_shape_end_in_a_report_or_a_sentence(
    changed: tuple[str, str, str],
) -> None:
    page, part, other = changed
    pages = PAGES | {page: PAGES[page].replace(part, other).replace("HttpGrpcAccessLog", "No")}
    asyncio.run(diagnose_pages(pages))
