"""One admin port for several workers: real processes, of which some are killed, hung, and started again."""

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from io import BytesIO, StringIO
from pathlib import Path

import aiohttp
from rich.console import Console

from extproc.router.service.live.picture import Picture
from extproc.router.service.live.terminal import follow, top
from tests.router.service.live_service import events, next_picture
from tests.router.workers.crew import ENDPOINTS, LONG_S, OPEN_METRICS, Crew, working
from tests.router.workers.families import total
from tests.stack.client import ask
from tests.stack.service import pool
from tests.waiting import until

IN_FLIGHT = "extproc_endpoint_in_flight"
REQUESTS = "extproc_requests_total"
CPU = "process_cpu_seconds_total"
PATIENCE = aiohttp.ClientTimeout(total=LONG_S)


async def eventually(claim: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONG_S):
        while not await claim():  # noqa: ASYNC110 - a claim is any expression over what runs
            await asyncio.sleep(0.05)


async def test_metrics_of_all_are_as_of_one_and_a_killed_worker_takes_none_with_it(tmp_path: Path) -> None:
    """1. Both count. 2. Many scrape at once. 3. One is killed. 4. It is there again. 5. It counts."""
    async with working(tmp_path) as crew:
        await crew.request(0, 2)
        await crew.request(1, 3)
        told = await crew.metrics()
        [pools] = await crew.pools()
        async with crew.session.get("/metrics", headers={"accept-encoding": "identity"}) as plain:
            classic = await plain.text()
        zipped = {**OPEN_METRICS, "accept-encoding": "gzip"}
        async with crew.session.get("/metrics", headers=zipped) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            assert answer.content_type == "application/openmetrics-text"
        assert await crew.sums(REQUESTS, "extproc_picks_total", "extproc_streams_open", IN_FLIGHT) == [5] * 4
        at_once = await asyncio.gather(*(crew.sums(REQUESTS) for _ in range(8)))

        both = await crew.sums(REQUESTS, IN_FLIGHT, CPU)
        crew.workers[1].kill()
        alone = await crew.sums(REQUESTS, IN_FLIGHT, CPU)
        crew.workers[1].start()
        await crew.wait_ready(1)
        back = await crew.sums(REQUESTS, IN_FLIGHT, CPU)
        await crew.request(1)
        counting = await crew.sums(REQUESTS, IN_FLIGHT)

    assert told["extproc_pick_duration_seconds_count"] == 5
    assert told["extproc_pick_duration_seconds_bucket{+Inf}"] == 5
    assert told["extproc_pool_endpoints{vllm,ready}"] == len(ENDPOINTS)
    assert sum(one for name, one in told.items() if name.startswith("extproc_info")) == 1
    assert (pools["in_flight"], pools["elsewhere"]) == (5, 0)
    assert 'extproc_requests_total{outcome="routed",pool="vllm"} 5.0' in classic
    assert "# EOF" not in classic
    assert at_once == [[5]] * 8
    assert [both[:2], alone[:2], back[:2], counting] == [[5, 5], [5, 2], [5, 2], [6, 3]]
    assert both[2] <= alone[2] <= back[2]


async def test_a_worker_that_hangs_is_left_out_and_counted_and_holds_nobody_up(tmp_path: Path) -> None:
    """1. Two count. 2. One hangs; the other one is asked. 3. It goes on."""
    pools = [pool(ENDPOINTS, {"name": "prefix_hash", "key": "header:x-user"}, probe=False)]
    async with (
        working(tmp_path, pools, answer_s=4.0) as crew,
        crew.session.get("/live", timeout=PATIENCE) as answer,
    ):
        pictures = events(answer)
        await crew.request(0, 2)
        await crew.request(1, 3)
        await until_picture(pictures, lambda picture: picture.streams == 5)
        await crew.metrics()

        crew.workers[0].send(signal.SIGSTOP)
        hung = await crew.metrics()
        ready = await crew.get("/readyz")
        [shown] = await crew.pools()
        config = await crew.get("/config")
        keys = {await explained(crew, user) for user in "ab"}
        async with crew.session.post("/explain", data=BytesIO(b"x" * 2_000_000)) as large:
            assert large.status == 413
        async with crew.session.post("/explain?pool=none", data=ask("hello")) as unknown:
            assert unknown.status >= 400
            assert "error" in json.loads(await unknown.text())
        alone = await until_picture(pictures, lambda picture: picture.streams == 3)

        crew.workers[0].send(signal.SIGCONT)
        back = await until_picture(pictures, lambda picture: picture.streams == 5)
        await eventually(lambda: _has(crew, IN_FLIGHT, 5))
        after = await crew.sums(REQUESTS)

    assert (total(hung, REQUESTS), total(hung, IN_FLIGHT), shown["in_flight"], after) == (5, 3, 3, [5])
    assert hung["extproc_worker_faults_total{timeout}"] >= 1
    assert ready == "ready\nworker-1 does not answer\n"
    assert "10.0.0.1:8000" in config
    assert len(keys) == 2
    assert (alone.is_ready, alone.remarks, alone.decided) == (True, ["worker-1 does not answer"], 5)
    assert (back.remarks, back.decided) == ([], 5)


async def explained(crew: Crew, user: str) -> str:
    headers = {"x-user": user, "content-type": "application/json"}
    async with crew.session.post("/explain?pool=vllm", data=ask("hello"), headers=headers) as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
        told = await answer.json()
    assert told["reason"] == "home"
    return str(told["prefix"])


async def _has(crew: Crew, name: str, number: float) -> bool:
    return await crew.sums(name) == [number]


async def until_picture(told: AsyncGenerator[Mapping[str, str]], claim: Callable[[Picture], bool]) -> Picture:
    """The next picture of which `claim` holds."""
    async with asyncio.timeout(LONG_S):
        picture = await next_picture(told)
        while not claim(picture):
            picture = await next_picture(told)
    return picture


async def test_it_is_ready_if_a_worker_is_and_tells_what_is_wrong_with_others(tmp_path: Path) -> None:
    """1. One has no list. 2. The one that was ready is gone. 3. So is the other. 4. We drain."""
    async with working(tmp_path, waits_for=[0]) as crew:
        bad = crew.workers[1]
        bad.kill()
        bad.configure([pool([], endpoints={"file": "none.yaml"})])
        bad.start()
        await eventually(lambda: _says(crew, "no list of endpoints yet"))
        some = await crew.get("/readyz")
        crew.workers[0].kill()
        none = await crew.get("/readyz", 503)
        bad.kill()
        nobody = [await crew.get(path, 503) for path in ("/readyz", "/pools", "/config")]
        crew.faults.append("draining")
        draining = await crew.get("/readyz", 503)

        assert await crew.get("/healthz") == "ok\n"
    assert some.splitlines()[0] == "ready"
    assert none.splitlines()[0].startswith("pool vllm: no list of endpoints yet")
    assert nobody == ["no worker yet\n", "no worker answers\n", "no worker answers\n"]
    assert draining == "draining\n"


async def _says(crew: Crew, text: str) -> bool:
    async with crew.session.get("/readyz") as answer:
        return text in await answer.text()


async def test_workers_that_share_count_every_request_once(tmp_path: Path) -> None:
    """Each knows of all five; neither `/metrics` nor `/pools` nor a picture has more than five."""
    async with (
        working(tmp_path, is_shared=True) as crew,
        crew.session.get("/live", timeout=PATIENCE) as answer,
    ):
        await crew.request(0, 2)
        await crew.request(1, 3)
        await eventually(lambda: _knows(crew, 5))
        [pools] = await crew.pools()
        in_flight = await crew.sums(IN_FLIGHT)
        # A picture is of moments up to a second apart: one worker may have told of before.
        picture = await until_picture(
            events(answer),
            lambda picture: picture.pools[0].in_flight >= 5 and not picture.pools[0].elsewhere,
        )

    assert in_flight == [5]
    assert (pools["in_flight"], pools["elsewhere"]) == (5, 0)
    assert (picture.pools[0].in_flight, picture.pools[0].elsewhere) == (5, 0)
    assert len(pools["share"]["workers"]) == 2
    assert pools["share"]["peers"] == []


async def _knows(crew: Crew, count: int) -> bool:
    """Whether each worker knows of so many, by itself or from the other."""
    known = []
    for worker in crew.workers:
        connector = aiohttp.UnixConnector(str(worker.socket))
        async with (
            aiohttp.ClientSession("http://worker", connector=connector) as session,
            session.get("/pools") as answer,
        ):
            [shown] = await answer.json()
        known.append(shown["in_flight"])
    return known == [count] * len(crew.workers)


def streams() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("live")}


async def test_pictures_of_all_workers_are_one_while_somebody_looks(tmp_path: Path) -> None:
    """1. Nobody looks. 2. A page and two terminals do. 3. One worker is killed, and back. 4. Nobody looks."""
    screens = [Console(file=StringIO(), width=120, height=50, highlight=False) for _ in range(2)]
    async with working(tmp_path) as crew:
        assert streams() == set()
        async with crew.session.get("/live", timeout=PATIENCE) as answer:
            told = events(answer)
            first = await next_picture(told)
            assert streams() == {"live", "live worker-1", "live worker-2"}
            showing = [
                asyncio.create_task(top(crew.url, screens[0], count=3)),
                asyncio.create_task(follow(crew.url, screens[1], count=5)),
            ]
            await crew.request(0, 2)
            await crew.request(1, 3)
            picture = await until_picture(told, lambda picture: (picture.decided, picture.streams) == (5, 5))
            async with asyncio.timeout(LONG_S):
                await asyncio.gather(*showing)
            crew.workers[1].kill()
            alone = await until_picture(told, lambda picture: picture.streams == 2)
            crew.workers[1].start()
            await crew.wait_ready(1)
            await until_picture(told, lambda picture: len(picture.remarks) == 1)
            await until_picture(told, lambda picture: not picture.remarks)
            await crew.request(1)
            back = await until_picture(told, lambda picture: (picture.decided, picture.streams) == (6, 3))
        await until(lambda: streams() == set())

    assert (first.is_ready, first.decided, len(first.pools)) == (True, 0, 1)
    assert [row.number for row in picture.decisions] == [5, 4, 3, 2, 1]
    assert (picture.streams, picture.pools[0].in_flight, picture.pools[0].picks) == (5, 5, 5)
    assert picture.reasons == {"vllm": {"no_prefix": 5}}
    assert (alone.decided, alone.reasons) == (5, {"vllm": {"no_prefix": 5}})
    assert (back.streams, back.reasons) == (3, {"vllm": {"no_prefix": 6}})
    [shown, followed] = [screen.file.getvalue() for screen in screens if isinstance(screen.file, StringIO)]
    assert "in flight" in shown
    assert followed.count("no_prefix") == 5
