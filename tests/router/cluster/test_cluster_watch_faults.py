"""What can go wrong in a list or a watch, after kopf's list of it, against a scripted API server."""

import asyncio
import json
from pathlib import Path
from random import Random

import pytest
from aiohttp import web

from extproc.router.cluster.kube_api import Patience
from extproc.router.cluster.restarting import Restarting
from tests.hosting import Handler
from tests.router.cluster.api_server import (
    drops,
    event_line,
    refuses,
    stalls,
    status_object,
    stream_chunks,
)
from tests.router.cluster.harness import IMPATIENT, PATIENT, Kube, has, running_source
from tests.router.cluster.objects import C, slice_object

ADDED = event_line(
    "ADDED", slice_object("s2", C) | {"metadata": {"name": "s2", "resourceVersion": "150"}}
)
MARK = event_line("BOOKMARK", {"metadata": {"resourceVersion": "160"}})
RENAMED = event_line("RENAMED", {"metadata": {"name": "s1", "resourceVersion": "150"}})
GONE = event_line("ERROR", status_object(410, "too old resource version"))
FAILED = event_line("ERROR", status_object(500, "etcd"))
REFUSALS = ((429, "throttled"), (401, "unauthorized"), (403, "forbidden"))
MIB = 2**20


async def test_a_watch_ended_by_the_server_goes_on_from_where_it_was(kube: Kube) -> None:
    async with kube.watching():
        kube.server.put(slice_object("s2", C))
        await kube.until(has("a", "b", "c"))
        kube.server.end_watches()
        await kube.until(lambda sink: sink.restarts)
        kube.server.put(slice_object("s2"))  # between two watches: the next one replays it
        await kube.until(has("a", "b"))

    assert kube.sink.restarts == ["closed"]
    assert [query["resourceVersion"] for query in kube.server.watches] == ["101", "102"]
    assert len(kube.server.lists) == 1
    assert len(kube.delays) == 1


@pytest.mark.parametrize(
    "chunks",
    [
        (ADDED + MARK,),
        (ADDED[:1], ADDED[1:40], ADDED[40:], MARK),
        (ADDED + MARK[:5], MARK[5:]),
        (b"\n" + ADDED + b"\n\n", MARK),
        (ADDED[:-20], *(bytes([byte]) for byte in ADDED[-20:]), MARK),
        (RENAMED, ADDED, MARK),
    ],
    ids=["one chunk", "pieces", "half lines", "empty lines", "bytes", "an unknown event"],
)
async def test_lines_are_read_however_they_are_cut(kube: Kube, chunks: tuple[bytes, ...]) -> None:
    kube.server.answer_next("watch", stream_chunks(*chunks))
    kube.server.version = 160
    async with kube.running():
        await kube.until(has("a", "b", "c"))
        await kube.until(lambda _: len(kube.server.watches) >= 2)

    assert kube.server.watches[1]["resourceVersion"] == "160"
    assert kube.sink.restarts == ["closed"]


async def test_a_kind_that_nobody_changes_is_confirmed_by_each_watch_that_is_taken_again(
    kube: Kube,
) -> None:
    """No bookmark comes before etcd notifies of its progress, which by default is every ten minutes."""
    async with kube.running(patience=Patience(silence_s=0.05)):
        await kube.until(lambda sink: sink.confirmed_total >= 5)

    assert set(kube.sink.restarts) == {"silent"}
    assert set(kube.sink.reasons) == {None}
    assert len(kube.server.lists) == 1
    assert max(kube.delays) <= 0.5


async def test_a_silent_watch_of_a_server_that_is_gone_is_a_failure(kube: Kube) -> None:
    kube.server.answer_next("watch", stalls(after_headers=True), *[drops()] * 100)
    async with kube.running(patience=IMPATIENT):
        await kube.until(lambda sink: "connection" in sink.restarts)

    assert kube.sink.restarts[0] == "silent"
    assert kube.sink.confirmed_total == 0


@pytest.mark.parametrize(
    ("fault", "why", "lists_again"),
    [
        pytest.param(refuses(410), "expired", True, id="410 of a version too old"),
        pytest.param(stream_chunks(GONE), "expired", True, id="410 in the stream"),
        pytest.param(refuses(500), "server_error", True, id="500"),
        pytest.param(refuses(502), "server_error", True, id="502 page of a proxy"),
        pytest.param(refuses(504), "server_error", True, id="504 of a version from the future"),
        pytest.param(stream_chunks(FAILED), "server_error", True, id="500 in the stream"),
        pytest.param(
            stream_chunks(event_line("ERROR", {})), "server_error", True, id="error without a code"
        ),
        *(pytest.param(refuses(code), why, True, id=why) for code, why in REFUSALS),
        pytest.param(stream_chunks(b"not json\n"), "garbled", True, id="not JSON"),
        pytest.param(stream_chunks(b'{"type": "ADDED"}\n'), "garbled", True, id="no object"),
        pytest.param(
            stream_chunks(b'{"type": "ADDED", "object": 7}\n'), "garbled", True, id="wrong object"
        ),
        pytest.param(stream_chunks(b"\xff\xfe\n"), "garbled", True, id="not UTF-8"),
        pytest.param(
            stream_chunks(b'{"object":' + b"[" * 100_000 + b"\n"), "garbled", True, id="deep"
        ),
        pytest.param(stream_chunks(ADDED[:30]), "connection", False, id="ended within a line"),
        pytest.param(
            stream_chunks(ADDED[:30], then_cut=True), "connection", False, id="cut within a line"
        ),
        pytest.param(stream_chunks(then_cut=True), "connection", False, id="cut"),
        pytest.param(stalls(after_headers=False), "stalled", False, id="no head"),
        pytest.param(stalls(after_headers=True), "silent", False, id="silent"),
        pytest.param(stream_chunks(), "closed", False, id="ended"),
    ],
)
async def test_a_watch_that_fails_keeps_the_pool_and_starts_again(
    kube: Kube, fault: Handler, why: str, *, lists_again: bool
) -> None:
    kube.server.answer_next("watch", fault)
    async with kube.running(patience=IMPATIENT if why in {"stalled", "silent"} else PATIENT):
        await kube.until(lambda sink: sink.restarts)
        kube.server.put(slice_object("s2", C))
        await kube.until(has("a", "b", "c"))

    assert kube.sink.restarts[0] == why
    assert len(kube.server.lists) == 1 + lists_again
    assert [endpoint.name for endpoint in kube.sink.lists[0]] == ["default/a", "default/b"]
    assert all(len(listed) >= 2 for listed in kube.sink.lists)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        *(
            pytest.param(refuses(code), why, id=why)
            for code, why in (*REFUSALS, (500, "server_error"))
        ),
        pytest.param(stream_chunks(b'{"items": [{"metadata"'), "garbled", id="half a list"),
        pytest.param(stream_chunks(b"[]"), "garbled", id="wrong JSON"),
        pytest.param(stream_chunks(b'{"items":' + b"[" * 100_000), "garbled", id="deep JSON"),
        pytest.param(drops(), "connection", id="dropped"),
        pytest.param(stalls(after_headers=False), "stalled", id="no head"),
        pytest.param(stalls(after_headers=True), "stalled", id="head alone"),
    ],
)
async def test_a_list_that_fails_is_tried_again_and_changes_nothing(
    kube: Kube, fault: Handler, why: str
) -> None:
    kube.server.answer_next("list", fault, fault)
    async with kube.running(patience=IMPATIENT if why == "stalled" else PATIENT):
        await kube.until(lambda sink: sink.restarts)
        assert kube.sink.lists == []
        await kube.until(has("a", "b"))

    assert set(kube.sink.restarts) == {why}


async def test_a_rotated_token_is_read_after_a_401_and_may_end_in_a_newline(kube: Kube) -> None:
    async with kube.watching():
        kube.server.tokens = {"token-2"}
        kube.server.end_watches()
        await kube.until(lambda sink: sink.restarts.count("unauthorized") >= 2)
        await asyncio.to_thread(kube.token.write_text, " token-2\r\n")
        await kube.until_watched()
        kube.server.put(slice_object("s2", C))
        await kube.until(has("a", "b", "c"))


async def test_what_no_client_should_raise_is_survived_and_names_no_credential(kube: Kube) -> None:
    """A token that no header can hold, here with a newline within: aiohttp quotes it in what it raises."""
    await asyncio.to_thread(kube.token.write_text, "token\n-1")

    async def nap(_: float) -> None:
        await asyncio.sleep(0.001)

    async with running_source(Restarting(kube.build(), rng=Random(7), sleep=nap), kube.sink):
        await kube.until(lambda sink: len(sink.restarts) > 2)
        # In one step, as the kubelet does it: a token half written would be refused for another
        # reason.
        await asyncio.to_thread(kube.token.with_suffix(".new").write_text, "token-1")
        await asyncio.to_thread(kube.token.with_suffix(".new").replace, kube.token)
        await kube.until(has("a", "b"))

    assert set(kube.sink.restarts) == {"internal"}
    assert all(
        reason and "Error at " in reason and "token" not in reason for reason in kube.sink.reasons
    )


async def test_broken_credentials_are_tried_again(kube: Kube, tmp_path: Path) -> None:
    source = kube.build()
    good = await asyncio.to_thread((tmp_path / "kubeconfig").read_text)
    await asyncio.to_thread((tmp_path / "kubeconfig").write_text, "{}")
    async with running_source(source, kube.sink):
        await kube.until(lambda sink: sink.restarts[:2] == ["credentials", "credentials"])
        await asyncio.to_thread((tmp_path / "kubeconfig").write_text, good)
        await kube.until(has("a", "b"))

    wrong = f"Invalid kube-config file. Expected key current-context in {tmp_path}/kubeconfig"
    assert kube.sink.reasons[0] == wrong


def endless(written: list[int], first: bytes) -> Handler:
    """Says `first`, and then spaces a MiB at a time until the client has had enough of it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(first)
        for number in range(1, 200):
            await response.write(b" " * MIB)
            written.append(number)
        return response

    return answer


@pytest.mark.parametrize(
    ("call", "first", "most_mib", "reason"),
    [
        (
            "list",
            b'{"metadata":{"resourceVersion":"100"},',
            64,
            "a list of more than 67108864 bytes",
        ),
        ("watch", b'{"type": "ADDED",', 8, "an event of more than 8388608 bytes"),
    ],
)
async def test_what_has_no_end_is_read_no_further_than_its_bound(
    kube: Kube, *, call: str, first: bytes, most_mib: int, reason: str
) -> None:
    """A page of a list, and an event. What sockets hold on the way comes on top; another list follows."""
    written: list[int] = []
    kube.server.answer_next(call, endless(written, first))
    async with kube.running():
        await kube.until(lambda sink: sink.restarts)
        kube.server.put(slice_object("s2", C))
        await kube.until(has("a", "b", "c"))

    assert (kube.sink.restarts, kube.sink.reasons) == (["garbled"], [reason])
    assert most_mib - 1 <= max(written) <= most_mib + 16


async def test_a_page_as_large_as_its_bound_is_read(kube: Kube) -> None:
    page = b'{"metadata":{"resourceVersion":"102"},"items":[%s]}'
    listed = page % json.dumps(slice_object("s9", C)).encode()
    kube.server.answer_next("list", stream_chunks(listed.ljust(64 * MIB)))
    async with kube.running():
        await kube.until(has("c"))

    assert kube.sink.restarts == []
