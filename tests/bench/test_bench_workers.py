"""Load from several machines: workers in namespaces of their own, what they are told, and what is missing."""

import asyncio
import gc
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.bench.board import split_location
from extproc.bench.commands import DOES_NOT_HOLD, bench
from extproc.bench.experiments.run import run, share_out
from extproc.bench.judge.verdict import CLIENT_LIMITED, MISSING, judge
from extproc.bench.load import messages
from extproc.bench.load.clocks import RoundTrip, find_fastest
from extproc.bench.load.crew import Crew
from extproc.bench.load.driver import LoadError
from extproc.bench.load.journal import read_journal
from extproc.bench.load.messages import MessageError
from extproc.bench.load.registry import build_registry
from extproc.bench.load.secrecy import build_leader_context, derive_pems
from extproc.bench.load.worker import PATH, Worker, find_refusals, is_loopback, serve_worker
from extproc.bench.load.workload import build_workload
from extproc.bench.record import RunResult, WorkerStats
from extproc.bench.report.report import build
from extproc.bench.spec.tree import Spec
from extproc.errors import AddressError, SettingsError
from tests.bench import synthetic
from tests.bench.machines import TOKEN, Machines, machines
from tests.bench.scripted import DONE, USAGE, chunk
from tests.stack.ports import free_ports

# Workers are processes of their own, and so are the load processes of each.
# A test's loop may end while TLS waits for the other side's last word: then its socket is found open.
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
POISSON = {"req-rate": 100, "total-prompts": 120, "arrivals": "poisson"}


class Silence:
    def update(self, snapshot: object) -> None:
        pass


class Asked:
    """A model server that counts."""

    def __init__(self) -> None:
        self.total = 0
        self.first = asyncio.Event()
        self.arrivals: defaultdict[str, list[float]] = defaultdict(list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.arrivals[str(request.remote)].append(time.monotonic())
        await request.read()
        self.total += 1
        self.first.set()
        return web.Response(body=chunk("bab ") + USAGE + DONE)


@asynccontextmanager
async def serving(handler: Handler, host: str, path: str = "/v1/chat/completions") -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def build_spec(host: str, port: int, traffic: dict[str, object], **fields: Any) -> Spec:
    shape = {"dataset": {"name": "random", "input_tokens": 8}, **traffic}
    base = {"endpoint": host, "port": port, "target": {"model": "m"}, "seed": 7}
    return Spec.model_validate({**base, "performance": {"traffic-shape": shape}, **fields})


@pytest.fixture(scope="module", autouse=True)
def _leave_nothing_to_others() -> Iterator[None]:
    """What a loop left open is found here, and not in some other file's test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines(4, tmp_path_factory.mktemp("workers")) as started:
        yield started


def what_was_offered(result: RunResult) -> list[tuple[int, int, int, float]]:
    return [(r.index, r.session, r.turn, r.intended_s) for r in result.records]


async def test_one_two_and_four_workers_offer_the_schedule_of_one_process(
    four: Machines, tmp_path: Path
) -> None:
    """Load from several machines is that of one.

    1. One process offers 120 requests, arriving at random.
    2. So do 1, 2 and 4 workers, each with a network and a clock of its own.
    3. Every request was meant for the same time, to the last digit, and asked once.
    4. What does not depend on the server's mood is the same in every report, as is the schedule's digest.
    5. Every figure is that of all records in one journal, as of one process.
    """
    asked = Asked()
    async with serving(asked.answer, four.server) as port:
        spec = build_spec(four.server, port, POISSON)
        alone = await run(spec, progress=Silence())
        shared = [
            await run(
                spec, progress=Silence(), crew=four.crew(*range(count)), journal=tmp_path / f"{count}.jsonl"
            )
            for count in (1, 2, 4)
        ]

    told = build(alone)
    assert asked.total == 4 * 120
    assert len(set(what_was_offered(alone))) == 120
    for count, result in zip((1, 2, 4), shared, strict=True):
        said = build(result)
        assert what_was_offered(result) == what_was_offered(alone)
        assert (said.schedule, said.offered_rps, said.whole.counts) == (
            told.schedule,
            told.offered_rps,
            told.whole.counts,
        )
        assert said.whole.tokens == told.whole.tokens
        assert build(read_journal(tmp_path / f"{count}.jsonl")) == said
        assert [stats.process for stats in result.info.clients] == list(range(count))
        assert sum(worker.starts for worker in said.workers) == 120


async def test_clocks_that_differ_by_a_thousand_seconds_begin_together_and_the_report_tells_how_well(
    four: Machines,
) -> None:
    """All namespaces are of one machine, so that the truth is known.

    1. There is no skew, within half a round trip.
    2. The server's one clock sees each worker send when its records say, from one and the same start.
    """
    asked = Asked()
    async with serving(asked.answer, four.server) as port:
        result = await run(
            build_spec(four.server, port, POISSON), progress=Silence(), crew=four.crew(0, 1, 2, 3)
        )

    assert [worker.worker for worker in result.info.workers] == [machine.name for machine in four.all]
    for worker in result.info.workers:
        assert worker.error_s > 0
        assert abs(worker.skew_s) <= worker.error_s + 1e-3
        assert worker.drift_s is not None
        # Each of the two offsets has an error of its own, less than a second on any machine.
        assert abs(worker.drift_s) < 1
    if four.are_apart:
        starts = [
            find_start(result, number, asked.arrivals[machine.host])
            for number, machine in enumerate(four.all)
        ]
        # The fastest of thirty requests is fast on any machine; a clock of another namespace is 1,000 s off.
        assert max(starts) - min(starts) < 1
    lags = [record.lag_s for record in result.records if record.lag_s is not None]
    assert len(lags) == 120
    assert min(lags) >= 0
    assert max(record.end_s or 0.0 for record in result.records) < 60


def find_start(result: RunResult, worker: int, arrivals: Sequence[float]) -> float:
    """The run's zero on the server's clock, by what came soonest of one of four workers."""
    sent = sorted(r.sent_s for r in result.records if r.index % 4 == worker and r.sent_s is not None)
    return min(at - sent_s for at, sent_s in zip(sorted(arrivals), sent, strict=True))


async def test_workers_share_the_conversations_and_users_of_a_closed_loop(four: Machines) -> None:
    asked = Asked()
    async with serving(asked.answer, four.server) as port:
        spec = build_spec(four.server, port, {"vus": 5, "total-prompts": 41})
        result = await run(spec, progress=Silence(), crew=four.crew(0, 1))

    assert sorted(record.index for record in result.records) == list(range(41))
    assert [worker.users for worker in result.info.workers] == [3, 2]
    assert result.info.spec.processes == 2


async def test_worker_that_is_killed_makes_the_run_invalid_with_its_share_missing(tmp_path: Path) -> None:
    """Never a silent average of what is left.

    1. Two workers share 2,000 starts over 40 s; after the first answer one is killed.
    2. The other is told to end at once.
    3. The verdict names the worker and its thousand starts; what is left is of the other one's share.
    4. What the lost one had told of is kept, and not taken for its share.
    5. The journal tells the same.
    """
    asked, journal = Asked(), tmp_path / "run.jsonl"
    with machines(2, tmp_path) as two:
        async with serving(asked.answer, two.server) as port:
            spec = build_spec(two.server, port, {"req-rate": 50, "duration": 40})
            task = asyncio.create_task(run(spec, progress=Silence(), crew=two.crew(0, 1), journal=journal))
            async with asyncio.timeout(100):
                begun = asyncio.create_task(asked.first.wait())
                await asyncio.wait([begun, task], return_when=asyncio.FIRST_COMPLETED)
                assert begun.done(), await task  # says why it did not begin
                two.all[1].kill()
                result = await task

    verdict = judge(result)
    lost = result.info.workers[1]
    assert lost.lost == "it hung up"
    assert lost.lost_s is not None
    assert 0 < lost.lost_s < 40
    assert result.info.interrupted_s is not None
    assert not verdict.is_valid
    assert verdict.kinds[0] == MISSING
    assert f"worker {two.all[1].name} was lost" in verdict.reasons[0]
    assert "its share, 1,000 of 2,000 starts, is missing" in verdict.reasons[0]
    kept = [record for record in result.records if record.index % 2 == 1]
    assert lost.records == len(kept)
    assert len(kept) < 1000 > len(result.records) - len(kept)
    assert read_journal(journal).records == result.records
    assert not journal.with_suffix(".parts").exists()
    told = CliRunner().invoke(bench, ["report", str(journal)])
    assert told.exit_code == DOES_NOT_HOLD
    assert "share missing" in told.output


async def test_leader_that_is_killed_leaves_what_its_workers_had_told(four: Machines, tmp_path: Path) -> None:
    """A partial report can be made of the parts.

    1. Two workers offer 50 requests a second; each has told of some.
    2. The leader is killed, and can say nothing more.
    3. `bench report` of its journal has every request that it was told of, and says that it is partial.
    4. Another run into the same folder begins anew.
    """
    journal = tmp_path / "run.jsonl"
    parts = [journal.with_suffix(".parts") / f"worker-{i}.jsonl" for i in range(2)]
    async with serving(Asked().answer, four.server) as port:
        endless = build_spec(four.server, port, {"req-rate": 50, "duration": 600})
        command = write_command(endless, four, tmp_path)
        with (tmp_path / "log").open("wb") as log:
            leader = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        async with asyncio.timeout(120):
            while not all(count_lines(part) >= 20 for part in parts):  # noqa: ASYNC110  # files tell nobody
                await asyncio.sleep(0.05)
        leader.kill()
        await leader.wait()
        kept = [count_lines(part) for part in parts]
        with parts[0].open("ab") as file:
            file.write(b'{"index":999,"sess')
        result = read_journal(journal)
        told = CliRunner().invoke(bench, ["report", str(journal)])
        short = build_spec(four.server, port, {"req-rate": 50, "total-prompts": 10})
        again = await run(short, progress=Silence(), crew=four.crew(0, 1), journal=journal)

    assert len(result.records) == sum(kept)
    assert {record.index % 2 for record in result.records} == {0, 1}
    assert told.exit_code == DOES_NOT_HOLD
    assert "invalid: partial" in told.output
    assert read_journal(journal).records == again.records


def write_command(spec: Spec, crew: Machines, folder: Path) -> list[str]:
    """The command that runs a spec on the first two workers, with all that it reads."""
    file, token = folder / "spec.yaml", folder / "token"
    file.write_text(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)))
    token.write_text(TOKEN)
    arguments = ["run", str(file), "--quiet", "--output", str(folder), "--allow-client-limited"]
    workers = ["--workers", f"{crew.all[0].name},{crew.all[1].name}", "--workers-token", str(token)]
    # A worker whose leader was lost may not have noticed yet.
    within = ["--workers-within", "90s"]
    return [sys.executable, "-m", "extproc", "bench", *arguments, *workers, *within]


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


async def test_load_ends_with_the_leader(four: Machines) -> None:
    """A worker whose leader is gone stops within seconds and takes another run."""
    asked = Asked()
    async with serving(asked.answer, four.server) as port:
        endless = build_spec(four.server, port, {"req-rate": 50, "duration": 600})
        task = asyncio.create_task(run(endless, progress=Silence(), crew=four.crew(2)))
        async with asyncio.timeout(90):
            await asked.first.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        short = build_spec(four.server, port, {"req-rate": 50, "total-prompts": 10})
        result = await run(short, progress=Silence(), crew=four.crew(2))

    assert len(result.records) == 10


async def test_run_that_is_told_to_stop_ends_on_every_worker_and_is_partial(four: Machines) -> None:
    asked, stop = Asked(), asyncio.Event()
    async with serving(asked.answer, four.server) as port:
        spec = build_spec(four.server, port, {"req-rate": 50, "duration": 600})
        task = asyncio.create_task(run(spec, progress=Silence(), crew=four.crew(0, 3), stop=stop))
        async with asyncio.timeout(100):
            await asked.first.wait()
            stop.set()
            result = await task

    assert judge(result).kinds[0] == "partial"
    assert all(worker.lost is None for worker in result.info.workers)


async def test_run_whose_records_cannot_be_kept_is_no_whole_run(four: Machines, tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    async with serving(Asked().answer, four.server) as port:
        spec = build_spec(four.server, port, {"req-rate": 50, "duration": 40})
        task = asyncio.create_task(run(spec, progress=Silence(), crew=four.crew(0, 1), journal=journal))
        async with asyncio.timeout(100):
            while not journal.exists():  # noqa: ASYNC110  # files tell nobody
                await asyncio.sleep(0.01)
            (journal.with_suffix(".parts") / "worker-1.jsonl").mkdir(parents=True)
            result = await task

    assert judge(result).kinds[0] == MISSING
    assert result.info.workers[1].lost == "its records cannot be kept here: Is a directory"


async def test_command_runs_a_spec_on_workers(four: Machines, tmp_path: Path) -> None:
    async with serving(Asked().answer, four.server) as port:
        spec = build_spec(four.server, port, {"req-rate": 50, "total-prompts": 10})
        process = await asyncio.create_subprocess_exec(*write_command(spec, four, tmp_path))

        assert await process.wait() == 0
    assert [w["worker"] for w in msgspec.json.decode((tmp_path / "report.json").read_bytes())["workers"]] == [
        four.all[0].name,
        four.all[1].name,
    ]


async def test_worker_that_nobody_starts_is_named() -> None:
    (port,) = free_ports(1)
    crew = Crew((("127.0.0.1", port),), ready_within_s=0.1)

    with pytest.raises(LoadError, match=rf"worker 127\.0\.0\.1:{port}: "):
        await run(build_spec("127.0.0.1", 1, POISSON), progress=Silence(), crew=crew)


@asynccontextmanager
async def secret_worker() -> AsyncIterator[int]:
    """The port of a worker with a token."""
    (port,), stop = free_ports(1), asyncio.Event()
    task = asyncio.create_task(serve_worker("127.0.0.1", port, TOKEN, stop))
    try:
        async with asyncio.timeout(30):
            while not await is_listening(port):  # noqa: ASYNC110  # nobody tells when a port opens
                await asyncio.sleep(0.01)
        yield port
    finally:
        stop.set()
        await task


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_leader_with_another_token_is_turned_away() -> None:
    async with secret_worker() as port:
        crew = Crew((("127.0.0.1", port),), "another-token-of-16", ready_within_s=30)

        with pytest.raises(LoadError, match="it knows another token"):
            await run(build_spec("127.0.0.1", 1, POISSON), progress=Silence(), crew=crew)


async def test_worker_with_a_token_turns_away_who_does_not_tell_it_over_tls_or_speaks_in_the_clear() -> None:
    async with secret_worker() as port, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"wss://127.0.0.1:{port}{PATH}", ssl=build_leader_context(TOKEN))
        assert refused.value.status == 401
        with pytest.raises(aiohttp.ClientError):
            await session.ws_connect(
                f"ws://127.0.0.1:{port}{PATH}", headers={"Authorization": f"Bearer {TOKEN}"}
            )


async def test_neither_token_nor_prompts_cross_the_network_in_the_clear(four: Machines) -> None:
    """All bytes between leader and worker go through a wire that the test reads; control: without a token."""
    asked = Asked()
    async with serving(asked.answer, four.server) as port:
        spec = build_spec(four.server, port, {"req-rate": 50, "total-prompts": 3})
        # WebSocket masks what a leader says, which hides it from nobody who wants to know; not what it hears.
        marks = [b"intended_s", b"output_tokens", TOKEN.encode()]
        async with tapped(four.all[0].host, four.all[0].port) as secret:
            await run(spec, progress=Silence(), crew=Crew((("127.0.0.1", secret.port),), TOKEN, 60))
        async with (
            serving(Worker(None).answer, "127.0.0.1", PATH) as clear_port,
            tapped("127.0.0.1", clear_port) as clear,
        ):
            await run(spec, progress=Silence(), crew=Crew((("127.0.0.1", clear.port),), None, 60))

    assert asked.total == 6
    assert len(secret.seen) > 1000
    assert [mark in secret.seen for mark in marks] == [False] * 3
    assert [mark in clear.seen for mark in marks] == [True, True, False]


@dataclass
class Wire:
    """A proxy of one port that keeps what goes through, both ways."""

    port: int = 0
    seen: bytearray = field(default_factory=bytearray)


@asynccontextmanager
async def tapped(host: str, port: int) -> AsyncIterator[Wire]:
    wire = Wire()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            wire.seen += data
            writer.write(data)
        writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        await asyncio.gather(carry(reader, back), carry(there, writer))

    server = await asyncio.start_server(join, "127.0.0.1", 0)
    async with server:
        wire.port = server.sockets[0].getsockname()[1]
        yield wire


def test_token_makes_one_certificate_and_another_token_another() -> None:
    """The leader trusts nothing else: were it not the same to the byte, nobody could connect."""
    first = derive_pems(TOKEN)

    assert derive_pems(TOKEN) == first
    assert derive_pems("another-token-of-16").certificate != first.certificate


async def test_page_in_a_browser_cannot_use_a_worker_without_a_token() -> None:
    async with serving(Worker(None).answer, "127.0.0.1", PATH) as port, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}{PATH}"

        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url, headers={"Origin": "https://elsewhere.example"})
        async with session.ws_connect(url) as socket:
            assert not socket.closed
    assert refused.value.status == 401


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[aiohttp.ClientWebSocketResponse, int]]:
    """A socket to a worker without a token, and the worker's port."""
    async with (
        serving(Worker(None).answer, "127.0.0.1", PATH) as port,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{port}{PATH}") as socket,
    ):
        yield socket, port


async def test_worker_does_one_run_at_a_time() -> None:
    async with connected() as (_, port):
        crew = Crew((("127.0.0.1", port),), ready_within_s=0.1)

        with pytest.raises(LoadError, match="it is busy"):
            await run(build_spec("127.0.0.1", 1, POISSON), progress=Silence(), crew=crew)


@pytest.mark.parametrize(
    "nonsense", [b"", b"\xc1", messages.encode(messages.Halt())], ids=["nothing", "no msgpack", "no order"]
)
async def test_worker_refuses_what_is_no_order_and_says_why(nonsense: bytes) -> None:
    async with connected() as (socket, _):
        await socket.send_bytes(nonsense)
        reply = messages.decode_reply(await socket.receive_bytes(timeout=30))

    assert isinstance(reply, messages.Refused)


async def test_worker_without_a_token_reads_and_runs_nothing_of_its_machine() -> None:
    spec = build_spec("127.0.0.1", 1, POISSON, target={"model": "m", "token_command": ["date"]})
    async with serving(Worker(None).answer, "127.0.0.1", PATH) as port:
        crew = Crew((("127.0.0.1", port),), ready_within_s=5)

        with pytest.raises(LoadError, match=r"does not use its machine's target\.token-command"):
            await run(spec, progress=Silence(), crew=crew)


@pytest.mark.parametrize(
    ("target", "fields", "is_trusted", "refused"),
    [
        ({}, {}, False, 0),
        ({"token_file": "/etc/shadow"}, {}, False, 1),
        ({"token_command": ["date"]}, {}, False, 1),
        ({"tokenizer": "tokenizer.json"}, {}, False, 1),
        ({"sign": {"service": "s", "region": "r"}}, {}, False, 1),
        ({}, {"plugins": ["os"]}, False, 1),
        ({}, {"plugins": ["os"]}, True, 0),
        ({"token_command": ["date"]}, {}, True, 0),
        ({"api_key_env": "EXTPROC_NO_SUCH_KEY"}, {}, False, 2),
        ({"api_key_env": "EXTPROC_NO_SUCH_KEY"}, {}, True, 1),
    ],
)
def test_powers_of_a_spec_need_a_token(
    target: dict[str, object], fields: dict[str, object], is_trusted: bool, refused: int
) -> None:
    spec = build_spec("127.0.0.1", 1, POISSON, target={"model": "m", **target}, **fields)

    assert len(list(find_refusals(spec, is_trusted=is_trusted))) == refused


async def test_worker_beyond_loopback_needs_a_token() -> None:
    with pytest.raises(SettingsError, match="give it a token"):
        await serve_worker("0.0.0.0", 9200, None, asyncio.Event())


def test_loopback_is_known_by_its_addresses_and_its_name() -> None:
    assert [*map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.8.0.1"))] == [True] * 4
    assert [*map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "worker-0.workers"))] == [False] * 4


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("10.0.0.1:9200", ("10.0.0.1", 9200)),
        ("[::1]:9200", ("::1", 9200)),
        ("load-0.load:9200", ("load-0.load", 9200)),
    ],
)
def test_worker_is_named_by_address_or_name(text: str, location: tuple[str, int]) -> None:
    assert split_location(text) == location


@pytest.mark.parametrize("text", ["", "10.0.0.1", "host", "host:0", "::1:9200"])
def test_what_names_no_worker_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        split_location(text)


def test_short_token_is_refused(tmp_path: Path) -> None:
    token, spec = tmp_path / "token", tmp_path / "spec.yaml"
    token.write_text("short")
    spec.write_text("endpoint: 127.0.0.1:1\nperformance: {traffic-shape: {vus: 1, duration: 1}}\n")
    told = CliRunner().invoke(
        bench, ["run", str(spec), "--workers", "127.0.0.1:1", "--workers-token", str(token)]
    )

    assert isinstance(told.exception, SettingsError)


times = st.floats(0, 1e6, allow_nan=False)


@given(left=times, there=st.floats(0, 1), back=st.floats(0, 1), offset=st.floats(-1e6, 1e6))
def test_offset_of_a_clock_is_known_to_half_a_round_trip(
    left: float, there: float, back: float, offset: float
) -> None:
    trip = RoundTrip(left, left + there + offset, left + there + back, 0.0)

    assert abs(trip.offset_s - offset) <= trip.length_s / 2 + 1e-6


def test_fastest_round_trip_is_gone_by() -> None:
    slow, fast = RoundTrip(0.0, 5.0, 2.0, 0.1), RoundTrip(3.0, 7.0, 3.5, 0.2)

    assert find_fastest([slow, fast, slow]) is fast


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    for decode in (messages.decode_question, messages.decode_reply):
        with suppress(MessageError):
            decode(data)


def test_shares_arrive_as_they_were_cut() -> None:
    spec = build_spec("127.0.0.1", 1, {**POISSON, "max-concurrency": 9}, processes=4)
    workload = build_workload(spec, build_registry())
    shares = share_out(spec, "m", workload, endpoint="e", machines=2)
    for machine in (0, 1):
        order, *rest = [
            messages.decode_question(messages.encode(each))
            for each in messages.list_orders(shares[machine::2])
        ]
        assert isinstance(order, messages.Order)
        gathering = messages.Gathering(order)
        for each in rest:
            assert isinstance(each, messages.Prompts | messages.Starts)
            gathering.add(each)

        assert gathering.is_complete
        assert gathering.build(spec) == list(shares[machine::2])


def test_conversations_of_a_closed_loop_go_to_one_machine_each() -> None:
    spec = build_spec("127.0.0.1", 1, {"vus": 8, "total-prompts": 50}, processes=6)
    shares = share_out(spec, "m", build_workload(spec, build_registry()), machines=3)
    dealt = [number for machine in range(3) for number in shares[machine].numbers]

    assert sorted(dealt) == list(range(50))
    assert [share.numbers for share in shares[3:]] == [share.numbers for share in shares[:3]]


def test_more_than_was_announced_is_refused() -> None:
    spec = build_spec("127.0.0.1", 1, POISSON)
    shares = share_out(spec, "m", build_workload(spec, build_registry()))
    order, prompts, *_ = messages.list_orders(shares)
    assert isinstance(order, messages.Order)
    assert isinstance(prompts, messages.Prompts)
    gathering = messages.Gathering(order)
    gathering.add(prompts)

    with pytest.raises(MessageError, match="more prompts"):
        gathering.add(prompts)
    with pytest.raises(MessageError, match="version"):
        messages.Gathering(msgspec.structs.replace(order, version=messages.VERSION + 1))


def test_message_is_bounded() -> None:
    with pytest.raises(MessageError, match="bytes"):
        messages.encode(messages.Refused("x" * messages.MOST_BYTES))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 700_000), max_size=8))
def test_batches_hold_everything_in_order_and_about_a_megabyte(sizes: list[int]) -> None:
    texts = ["x" * size for size in sizes]
    batches = list(messages.cut_batches(texts))

    assert [text for batch in batches for text in batch] == texts
    assert all(sum(map(len, batch)) <= 1024 * 1024 for batch in batches)


def with_worker(**facts: Any) -> RunResult:
    made = synthetic.result([synthetic.record(i, i / 10) for i in range(100)])
    worker = WorkerStats("10.0.0.1:9200", (0,), 100, 0, skew_s=3.0, error_s=0.001)
    return RunResult(replace(made.info, workers=(replace(worker, **facts),)), made.records)


@pytest.mark.parametrize(
    ("facts", "kinds"),
    [
        ({}, ()),
        ({"drift_s": 0.02}, ()),
        ({"error_s": 0.06}, (CLIENT_LIMITED,)),
        ({"drift_s": -0.06}, (CLIENT_LIMITED,)),
        ({"lost": "it hung up", "lost_s": 1.5}, (MISSING,)),
    ],
)
def test_machines_that_do_not_agree_when_it_began_are_no_client(
    facts: dict[str, object], kinds: tuple[str, ...]
) -> None:
    """The time of day may be off by as much as it likes: nothing depends on it."""
    assert judge(with_worker(**facts)).kinds == kinds
