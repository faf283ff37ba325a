"""The behaviours of a watcher, after kopf's list of them, against a scripted API server."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from time import thread_time

import pytest

from extproc.cluster.kube_api import Patience, read_retry_after
from extproc.cluster.kubeclient import KubeClients
from extproc.cluster.kubernetes import KubernetesSource
from extproc.cluster.listwatch import KubeAccess
from extproc.cluster.restarting import Restarting
from tests.cluster.api_server import (
    Answer,
    ApiServer,
    drops,
    line,
    refuses,
    serving,
    stalls,
    status_object,
    streams,
    write_kubeconfig,
)
from tests.cluster.harness import RecordingSink, running
from tests.cluster.objects import Object, draining_pod, pod, slice_object

A, B, C = pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3")
PATIENT = Patience()
IMPATIENT = Patience(answer_s=0.5, silence_s=0.5)
BuildSource = Callable[..., KubernetesSource]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with serving(ApiServer()) as server:
        server.put(slice_object("s1", A, B))
        yield server


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("token-1")
    return path


@pytest.fixture
def delays() -> list[float]:
    """The back-off delays that the source asked for; the sleeps themselves are short."""
    return []


@pytest.fixture
def build(server: ApiServer, token: Path, tmp_path: Path, delays: list[float]) -> BuildSource:
    async def nap(delay_s: float) -> None:
        delays.append(delay_s)
        await asyncio.sleep(0.001)

    def build(patience: Patience = PATIENT, settle_s: float = 0.01, **options: object) -> KubernetesSource:
        path = tmp_path / "kubeconfig"
        write_kubeconfig(path, server.url, token)
        arguments = {"sleep": nap, "rng": Random(7)} | options
        access = KubeAccess(
            KubeClients(kubeconfig=str(path)).open,
            patience=patience,
            **arguments,  # type: ignore[arg-type]  # options of the test
        )
        return KubernetesSource(access, "default", "vllm", ("http",), settle_s=settle_s)

    return build


def has(*names: str) -> Callable[[RecordingSink], bool]:
    return lambda sink: sink.names == [f"default/{name}" for name in names]


async def test_lists_then_watches_from_the_lists_version(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(has("a", "b"))
        await sink.until(lambda _: server.watchers)

    [listed], [watched] = server.lists, server.watches
    assert listed == {"labelSelector": "kubernetes.io/service-name=vllm", "limit": "100"}
    assert watched["resourceVersion"] == "101"
    assert watched["allowWatchBookmarks"] == "true"
    assert 240 <= int(watched["timeoutSeconds"]) <= 300
    assert sink.restarts == []


async def test_follows_added_modified_and_deleted_slices(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s2", C))
        await sink.until(has("a", "b", "c"))
        server.put(slice_object("s1", A, draining_pod("b", "10.0.0.2")))
        await sink.until(lambda told: [e.is_ready for e in told.lists[-1]] == [True, False, True])
        server.delete("s1")
        await sink.until(has("c"))

    assert len(server.lists) == 1


async def test_an_empty_service_is_told_as_empty(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    server.put(slice_object("s1", ports=[]))
    async with running(build(), sink):
        await sink.until(lambda told: told.lists == [[]])
        server.put(slice_object("s1", A))
        await sink.until(has("a"))

    assert sink.lacking == []


def other_port() -> Object:
    return slice_object("s1", A, B, ports=[{"name": "metrics", "port": 9000, "protocol": "TCP"}])


@pytest.mark.parametrize(
    ("before", "why", "reason"),
    [
        (None, "no_service", "Service default/vllm has no EndpointSlice: is there such a Service?"),
        (
            other_port(),
            "no_port",
            "Service default/vllm: every EndpointSlice has no TCP port 'http', only metrics=9000/TCP",
        ),
    ],
)
async def test_a_service_or_port_that_is_not_there_is_told_as_lacking_and_not_as_empty(
    server: ApiServer,
    build: BuildSource,
    sink: RecordingSink,
    *,
    before: Object | None,
    why: str,
    reason: str,
) -> None:
    if before:
        server.put(before)
    else:
        server.delete("s1")
    async with running(build(), sink):
        await sink.until(lambda told: told.lacking)
        await sink.until(lambda _: server.watchers)
        server.bookmark()
        await sink.until(lambda told: len(told.lacking) == 2)

        assert (sink.lists, sink.confirmed_total) == ([], 0)

        server.put(slice_object("s1", A, B))
        await sink.until(has("a", "b"))

    assert set(sink.lacking) == {(why, reason)}


async def test_a_service_that_is_deleted_later_is_told_as_empty_and_as_lacking(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.delete("s1")
        await sink.until(lambda told: told.lacking)

    assert [len(told) for told in sink.lists] == [2, 0]


async def test_slices_of_other_services_are_not_asked_for(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    server.put(slice_object("other", C, service="other"))
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("other", C, service="other"))
        server.put(slice_object("s2", pod("d", "10.0.0.4")))
        await sink.until(has("a", "b", "d"))

    assert all("default/c" not in [e.name for e in told] for told in sink.lists)


async def test_a_burst_of_events_is_told_once(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(settle_s=0.1), sink):
        await sink.until(lambda _: server.watchers)
        for number in range(10, 30):
            server.put(slice_object("s2", pod(f"p{number}", f"10.0.0.{number}")))
        await sink.until(has("a", "b", "p29"))

    assert len(sink.lists) == 2


async def test_a_pod_that_moves_between_slices_never_goes(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(settle_s=0.1), sink):
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s1", A))  # the controller's updates come in any order
        server.put(slice_object("s2", B))
        await sink.until(lambda told: len(told.lists) == 2)

    assert [[e.name for e in told] for told in sink.lists] == [["default/a", "default/b"]] * 2


async def test_a_bookmark_moves_the_version_and_confirms_the_list(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.version = 500
        server.bookmark()
        await sink.until(lambda told: told.confirmed_total == 1)
        server.end_watches()
        await sink.until(lambda _: len(server.watches) == 2)

    assert server.watches[1]["resourceVersion"] == "500"
    assert len(sink.lists) == 1


async def test_a_watch_ended_by_the_server_goes_on_from_where_it_was(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s2", C))
        await sink.until(has("a", "b", "c"))
        server.end_watches()
        await sink.until(lambda told: told.restarts)
        server.put(slice_object("s2"))  # between two watches: the next one replays it
        await sink.until(has("a", "b"))

    assert sink.restarts == ["closed"]
    assert [query["resourceVersion"] for query in server.watches] == ["101", "102"]
    assert len(server.lists) == 1
    assert len(delays) == 1


ADDED = line("ADDED", slice_object("s2", C) | {"metadata": {"name": "s2", "resourceVersion": "150"}})
MARK = line("BOOKMARK", {"metadata": {"resourceVersion": "160"}})
GONE = line("ERROR", status_object(410, "too old resource version"))


@pytest.mark.parametrize(
    "chunks",
    [
        (ADDED + MARK,),
        (ADDED[:1], ADDED[1:40], ADDED[40:], MARK),
        (ADDED + MARK[:5], MARK[5:]),
        (b"\n" + ADDED + b"\n\n", MARK),
        (ADDED[:-20], *(bytes([byte]) for byte in ADDED[-20:]), MARK),
    ],
    ids=["one chunk", "pieces", "half lines", "empty lines", "bytes"],
)
async def test_lines_are_read_however_they_are_cut(
    server: ApiServer, build: BuildSource, sink: RecordingSink, chunks: tuple[bytes, ...]
) -> None:
    server.answer_next("watch", streams(*chunks))
    server.version = 160
    async with running(build(), sink):
        await sink.until(has("a", "b", "c"))
        await sink.until(lambda _: len(server.watches) == 2)

    assert server.watches[1]["resourceVersion"] == "160"
    assert sink.restarts == ["closed"]


async def test_unknown_events_are_skipped(server: ApiServer, build: BuildSource, sink: RecordingSink) -> None:
    unknown = line("RENAMED", {"metadata": {"name": "s1", "resourceVersion": "150"}})
    server.answer_next("watch", streams(unknown, ADDED, MARK))
    server.version = 160
    async with running(build(), sink):
        await sink.until(has("a", "b", "c"))


@pytest.mark.parametrize(
    ("fault", "why", "lists_again"),
    [
        pytest.param(refuses(410), "expired", True, id="410 as status"),
        pytest.param(streams(GONE), "expired", True, id="410 in the stream"),
        pytest.param(refuses(500), "server_error", True, id="500"),
        pytest.param(refuses(502), "server_error", True, id="502 page of a proxy"),
        pytest.param(refuses(504), "server_error", True, id="504"),
        pytest.param(
            streams(line("ERROR", status_object(500, "etcd"))), "server_error", True, id="500 in the stream"
        ),
        pytest.param(streams(line("ERROR", {})), "server_error", True, id="error without a code"),
        pytest.param(refuses(429), "throttled", True, id="429"),
        pytest.param(refuses(401), "unauthorized", True, id="401"),
        pytest.param(refuses(403), "forbidden", True, id="403"),
        pytest.param(streams(b"not json\n"), "garbled", True, id="not JSON"),
        pytest.param(streams(b'{"type": "ADDED"}\n'), "garbled", True, id="no object"),
        pytest.param(
            streams(b'{"type": "ADDED", "object": {"metadata": 7}}\n'), "garbled", True, id="wrong object"
        ),
        pytest.param(streams(b"\xff\xfe\n"), "garbled", True, id="not UTF-8"),
        pytest.param(streams(b'{"object":' + b"[" * 100_000 + b"\n"), "garbled", True, id="deep"),
        pytest.param(streams(ADDED[:30]), "connection", False, id="ended within a line"),
        pytest.param(streams(ADDED[:30], then_cut=True), "connection", False, id="cut within a line"),
        pytest.param(streams(then_cut=True), "connection", False, id="cut"),
        pytest.param(stalls(after_headers=False), "stalled", False, id="no head"),
        pytest.param(stalls(after_headers=True), "stalled", False, id="silent"),
        pytest.param(streams(), "closed", False, id="ended"),
    ],
)
async def test_a_watch_that_fails_keeps_the_pool_and_starts_again(
    server: ApiServer, build: BuildSource, sink: RecordingSink, fault: Answer, why: str, *, lists_again: bool
) -> None:
    server.answer_next("watch", fault)
    async with running(build(IMPATIENT if why == "stalled" else PATIENT), sink):
        await sink.until(lambda told: told.restarts)
        server.put(slice_object("s2", C))
        await sink.until(has("a", "b", "c"))

    assert sink.restarts[0] == why
    assert len(server.lists) == 1 + lists_again
    assert [endpoint.name for endpoint in sink.lists[0]] == ["default/a", "default/b"]
    assert all(len(told) >= 2 for told in sink.lists)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        pytest.param(refuses(500), "server_error", id="500"),
        pytest.param(refuses(403), "forbidden", id="403"),
        pytest.param(refuses(429), "throttled", id="429"),
        pytest.param(streams(b'{"items": [{"metadata"'), "garbled", id="half a list"),
        pytest.param(streams(b"[]"), "garbled", id="wrong JSON"),
        pytest.param(streams(b'{"items":' + b"[" * 100_000), "garbled", id="deep JSON"),
        pytest.param(drops(), "connection", id="dropped"),
        pytest.param(stalls(after_headers=False), "stalled", id="no head"),
        pytest.param(stalls(after_headers=True), "stalled", id="head alone"),
    ],
)
async def test_a_list_that_fails_is_tried_again_and_tells_nothing(
    server: ApiServer, build: BuildSource, sink: RecordingSink, fault: Answer, why: str
) -> None:
    server.answer_next("list", fault, fault)
    async with running(build(IMPATIENT if why == "stalled" else PATIENT), sink):
        await sink.until(lambda told: told.restarts)
        assert sink.lists == []
        await sink.until(has("a", "b"))

    assert set(sink.restarts) == {why}


async def test_a_slow_list_is_waited_for(server: ApiServer, build: BuildSource, sink: RecordingSink) -> None:
    async def slow(request: object) -> object:
        await asyncio.sleep(0.2)
        return await server._list(request)  # type: ignore[arg-type]  # the scripted form of an answer

    server.answer_next("list", slow)  # type: ignore[arg-type]
    async with running(build(), sink):
        await sink.until(has("a", "b"))

    assert sink.restarts == []


async def test_an_expired_version_lists_again_without_dropping_the_pool(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s2", C))
        await sink.until(has("a", "b", "c"))
        server.end_watches()
        server.delete("s2")
        server.compact()
        await sink.until(has("a", "b"))

    assert sink.restarts == ["closed", "expired"]
    assert len(server.lists) == 2
    assert [len(told) for told in sink.lists] == [2, 3, 2]


async def test_a_version_from_the_future_lists_again(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    # etcd was restored from a backup: the version that we know is not reached for days.
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.version = 90
        server.oldest = 80
        server.end_watches()
        await sink.until(lambda _: len(server.lists) == 2)
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s2", C))
        await sink.until(has("a", "b", "c"))

    assert sink.restarts == ["closed", "server_error"]


async def test_a_rotated_token_is_read_after_a_401(
    server: ApiServer, build: BuildSource, sink: RecordingSink, token: Path
) -> None:
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.tokens = {"token-2"}
        server.end_watches()
        await sink.until(lambda told: told.restarts.count("unauthorized") >= 2)
        await asyncio.to_thread(token.write_text, "token-2")
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s2", C))
        await sink.until(has("a", "b", "c"))


async def test_an_outage_keeps_the_pool_and_backs_off(
    build: BuildSource, server: ApiServer, sink: RecordingSink, delays: list[float]
) -> None:
    second = ApiServer()
    async with serving(second):
        port = int(second.url.rpartition(":")[2])
        second.put(slice_object("s1", A, B))
        server.url = second.url
        source = build()
        task = asyncio.create_task(source.run(sink))
        await sink.until(lambda _: second.watchers)
    await sink.until(lambda _: len(delays) > 50)

    assert [[e.name for e in told] for told in sink.lists] == [["default/a", "default/b"]]
    assert max(delays) <= 30
    assert max(delays[:30]) <= 2
    assert max(delays[36:]) > 10
    assert all(delay <= 0.5 * 2**number for number, delay in enumerate(delays))

    async with serving(second, port):
        second.put(slice_object("s2", C))
        await sink.until(has("a", "b", "c"))
        task.cancel()


async def test_back_off_starts_over_once_a_watch_has_said_something(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.answer_next("list", *[refuses(500)] * 10)
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.bookmark()
        await sink.until(lambda told: told.confirmed_total)
        server.end_watches()
        await sink.until(lambda _: len(delays) == 11)

    assert max(delays[:10]) > 0.5
    assert delays[10] <= 0.5


async def test_a_server_that_ends_every_watch_at_once_is_backed_off_from(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.answer_next("watch", *[streams()] * 40)
    async with running(build(), sink):
        await sink.until(lambda _: len(delays) >= 40)

    assert 1 < max(delays[:30]) <= 2
    assert max(delays) > 4


async def test_a_server_that_lists_but_refuses_every_watch_is_backed_off_from(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    """A Role without the verb watch: a list that works says nothing of watches."""
    server.answer_next("watch", *[refuses(403)] * 40)
    async with running(build(), sink):
        await sink.until(lambda _: len(delays) >= 40)

    assert len(server.lists) >= 40
    assert max(delays) > 4


async def test_a_list_that_worked_starts_the_back_off_of_lists_over(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.answer_next("list", *[refuses(500)] * 10)
    server.answer_next("watch", refuses(500))
    async with running(build(), sink):
        await sink.until(lambda _: len(delays) == 11)
        server.answer_next("list", refuses(500))
        await sink.until(lambda _: server.watchers)

    assert max(delays[:10]) > 0.5
    assert max(delays[10:]) <= 0.5


async def test_an_expired_version_costs_no_wait(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.answer_next("watch", refuses(410))
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)

    assert delays == [0]
    assert sink.reasons == [None]


async def test_a_server_that_calls_every_version_expired_is_backed_off_from(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.answer_next("watch", *[refuses(410)] * 40)
    async with running(build(), sink):
        await sink.until(lambda _: len(delays) >= 40)

    assert delays.count(0) == 1
    assert max(delays) > 4


@pytest.mark.parametrize("call", ["list", "watch"])
@pytest.mark.parametrize("code", [429, 503])
async def test_a_server_says_when_to_come_back(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float], *, call: str, code: int
) -> None:
    server.answer_next(call, refuses(code, "7"))
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)

    [delay_s] = delays
    assert 7 <= delay_s <= 7 * 1.25


@pytest.mark.parametrize(
    ("text", "read_s"),
    [
        ("1", 1),
        ("120", 120),
        ("999999999", 120),
        ("0", None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("²", None),
        ("9" * 5_000, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)
def test_a_retry_after_is_whole_seconds_and_no_more_than_two_minutes(text: str, read_s: int | None) -> None:
    assert read_retry_after(text) == read_s


async def test_a_restart_of_the_api_server_costs_seconds(
    build: BuildSource, server: ApiServer, sink: RecordingSink
) -> None:
    """It refuses connections for a second, then 403 until it knows its Roles; then it is heard at once.

    Real waits, drawn by ten sources: one lucky draw proves nothing.
    """
    second = ApiServer()
    sinks = [RecordingSink() for _ in range(10)]
    async with AsyncExitStack() as stack:
        async with serving(second):
            port = int(second.url.rpartition(":")[2])
            second.put(slice_object("s1", A, B))
            server.url = second.url
            for number, told in enumerate(sinks):
                source = build(rng=Random(number), sleep=asyncio.sleep)
                await stack.enter_async_context(running(source, told))
            await sinks[0].until(lambda _: len(second.watchers) == 10)
        await asyncio.sleep(1.0)
        async with serving(second, port):
            tokens, second.tokens = second.tokens, set()
            second.refusal = 403
            await asyncio.sleep(3.0)
            second.tokens = tokens
            second.put(slice_object("s2", C))
            began_s = time.monotonic()
            for told in sinks:
                await told.until(has("a", "b", "c"))
            took_s = time.monotonic() - began_s

    assert {"connection", "forbidden"} <= {why for told in sinks for why in told.restarts}
    assert took_s <= 3


async def test_a_token_that_ends_in_a_newline_is_a_token(
    server: ApiServer, build: BuildSource, sink: RecordingSink, token: Path
) -> None:
    await asyncio.to_thread(token.write_text, " token-1\r\n")
    async with running(build(), sink):
        await sink.until(has("a", "b"))

    assert sink.restarts == []


async def test_what_no_client_should_raise_is_survived_and_names_no_credential(
    server: ApiServer, build: BuildSource, sink: RecordingSink, token: Path
) -> None:
    """A token that no header can hold, here with a newline within: aiohttp quotes it in what it raises."""
    await asyncio.to_thread(token.write_text, "token\n-1")

    async def nap(_: float) -> None:
        await asyncio.sleep(0.001)

    async with running(Restarting(build(), rng=Random(7), sleep=nap), sink):
        await sink.until(lambda told: len(told.restarts) > 2)
        # In one step, as the kubelet does it: a token half written would be refused for another reason.
        await asyncio.to_thread(token.with_suffix(".new").write_text, "token-1")
        await asyncio.to_thread(token.with_suffix(".new").replace, token)
        await sink.until(has("a", "b"))

    assert set(sink.restarts) == {"internal"}
    assert all(reason and "Error at " in reason and "token" not in reason for reason in sink.reasons)


async def test_a_long_quiet_watch_counts_as_a_good_one_and_confirms_the_list(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    now_s = iter(range(0, 100_000, 240))
    server.answer_next("watch", *[streams()] * 12)
    async with running(build(clock=lambda: next(now_s)), sink):
        await sink.until(lambda _: len(delays) >= 12)

    assert max(delays) <= 0.5
    assert sink.confirmed_total >= 12


async def test_broken_credentials_are_tried_again(
    server: ApiServer,
    build: BuildSource,
    sink: RecordingSink,
    tmp_path: Path,
) -> None:
    source = build()
    good = await asyncio.to_thread((tmp_path / "kubeconfig").read_text)
    await asyncio.to_thread((tmp_path / "kubeconfig").write_text, "{}")
    async with running(source, sink):
        await sink.until(lambda told: told.restarts[:2] == ["credentials", "credentials"])
        await asyncio.to_thread((tmp_path / "kubeconfig").write_text, good)
        await sink.until(has("a", "b"))

    assert (
        sink.reasons[0] == f"Invalid kube-config file. Expected key current-context in {tmp_path}/kubeconfig"
    )


async def test_a_slice_without_the_port_is_logged_once(
    server: ApiServer, build: BuildSource, sink: RecordingSink, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server.put(slice_object("s2", C, ports=[]))
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s1", A))
        await sink.until(has("a"))

    assert [record.getMessage() for record in caplog.records] == [
        "EndpointSlice s2 has no TCP port 'http', only none"
    ]


async def test_idling_costs_less_than_one_percent_of_a_core(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    server.put(slice_object("s1", *(pod(f"p{number}", f"10.0.1.{number}") for number in range(100))))
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        start_s = thread_time()
        for _ in range(2):
            server.bookmark()  # sixty times as often as a real API server
            await asyncio.sleep(1)

        assert (thread_time() - start_s) / 2 < 0.01
        assert sink.confirmed_total == 2


def test_kubernetes_source_says_its_service_in_logs(build: BuildSource) -> None:
    assert repr(build()) == "<KubernetesSource default/vllm>"
