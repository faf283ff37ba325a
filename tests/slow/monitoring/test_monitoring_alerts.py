"""Faults are made, and a real Prometheus fires the alert of each: the shipped rules, only quicker.

Service, Envoy and simulated endpoints are real, too. What is decided is which alerts fire, never
when.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
from aiohttp import web
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryRequest, DiscoveryResponse
from envoy_data_plane.google.rpc import Status

from extproc.router.stream.names import DISCOVER
from extproc.router.xds.resources import CLUSTERS
from monitoring.generate import RULES
from tests.hosting import hosting
from tests.monitoring.prometheus import Prometheus, needs_prometheus
from tests.monitoring.rules import alerts, hasten
from tests.slow.monitoring.planted import plant
from tests.stack.client import CHAT, chat_body, connect, send
from tests.stack.service import Pool, pool, write_list
from tests.stack.stack import Stack
from tests.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.slow, needs_prometheus, pytest.mark.timeout(400)]

DEADLINE_S = 120.0
PAUSE_S = 0.1
MODELS = ("simulated", "failing", "busy", "listed", "emptied")
SILENT = 6  # requests at once, from five on an endpoint without an answer is silent
BUDGET_BYTES = 65_536


@dataclass(frozen=True)
class AlertScene:
    """What runs, and who watches it."""

    stack: Stack
    prometheus: Prometheus
    session: aiohttp.ClientSession
    tasks: asyncio.TaskGroup
    folder: Path
    speaks: asyncio.Event  # the endpoint of the pool `silent`
    is_flushed: asyncio.Event = field(
        default_factory=asyncio.Event
    )  # the caches, after each question

    async def firing(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.prometheus.firing)

    async def fired(self, *names: str) -> dict[str, Any]:
        """Returns these alerts when each has been seen to fire."""
        seen: dict[str, Any] = {}

        def is_complete(found: dict[str, Any]) -> bool:
            seen.update(found)
            return {*names} <= {*seen}

        await self.until(is_complete)
        return {name: seen[name] for name in names}

    async def until(self, is_true: Callable[[dict[str, Any]], bool]) -> None:
        """Waits until it is true of the alerts that fire; fails with them after the deadline."""

        async def claim() -> bool:
            return is_true(await self.firing())

        await until(claim, lambda: f"firing: {sorted(self.prometheus.firing())}", DEADLINE_S)

    async def chat(self, model: str, text: str, **fields: Any) -> int:
        """Returns the answer's status; 0 if there was none."""
        body = chat_body([{"role": "user", "content": text}], **({"model": model} | fields))
        try:
            return (await send(self.session, body)).status
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            return 0

    async def post(self, number: int, path: str, **fields: object) -> None:
        """Tells a simulated endpoint something."""
        async with self.session.post(
            f"http://{self.stack.addresses[number]}{path}", json=fields
        ) as answer:
            assert answer.status == 200

    def during(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.tasks.create_task(work)


def pools(addresses: list[str], silent: str, folder: Path) -> list[Pool]:
    """Two endpoints that are often idle, so that caches can be flushed; one for a crowd, one to fail."""
    well, busy, failing = addresses[:2], addresses[2:3], addresses[3:]
    for name in ("listed", "emptied"):
        write_list(folder / f"{name}.yaml", well)
    return [
        pool(
            well,
            {"name": "prefix_cache"},
            name="affine",
            models=["simulated"],
            signals={"scrape_s": 0.5},
        ),
        pool(failing, name="failing", models=["failing"]),
        pool(busy, name="busy", models=["busy"], max_in_flight=4),
        pool([silent], name="silent", models=["silent"], probe=False),
        *(
            pool([], name=name, models=[name])
            | {"endpoints": {"file": str(folder / f"{name}.yaml")}}
            for name in ("listed", "emptied")
        ),
    ]


async def keep_asking(scene: AlertScene) -> None:
    """Goes on asking about the same few documents, whose prefixes are worth a cache, one at a time."""
    for number in count():
        about = number % 5
        await scene.chat(
            "simulated", f"document {about}: " + f"word{about} " * 300 + f"question {number}"
        )
        # vLLM refuses to while a request runs; ours is over, another one may not be.
        for well in (0, 1) if scene.is_flushed.is_set() else ():
            await scene.post(well, "/reset_prefix_cache")
        await asyncio.sleep(PAUSE_S)


async def ask_failing_pool(scene: AlertScene) -> None:
    """Goes on asking the pool that is to fail."""
    for number in count():
        await scene.chat("failing", f"anything {number}")
        await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def running_scene(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[AlertScene]:
    rules = folder / "rules.yaml"
    rules.write_text(hasten(RULES.read_text()))
    monkeypatch.setenv("PYTHONPATH", str(plant(folder / "planted")))
    options = ["--speed", "10", *(option for model in MODELS for option in ("--model", model))]
    stack, speaks = Stack(folder, simulate=options), asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        await speaks.wait()
        return web.json_response({})

    async with AsyncExitStack() as running:
        silent = await running.enter_async_context(hosting({f"POST {CHAT}": answer}))
        given = pools(stack.addresses, silent, folder)
        settings: dict[str, Any] = {"xds": True, "budget_bytes": BUDGET_BYTES}
        running.enter_context(stack.running(*given, **settings))
        stack.use(*given, endpoints=[*stack.addresses, silent], **settings)
        targets = {
            "extproc": f"{stack.service.admin_url}/metrics".removeprefix("http://"),
            "envoy": f"{stack.gateway.admin_url}/stats/prometheus".removeprefix("http://"),
        }
        with Prometheus(folder, targets, [rules]) as prometheus:
            await asyncio.to_thread(prometheus.wait_ready)
            async with connect(stack.url) as session, asyncio.TaskGroup() as tasks:
                scene = AlertScene(stack, prometheus, session, tasks, folder, speaks)
                talking = [scene.during(work(scene)) for work in (keep_asking, ask_failing_pool)]
                yield scene
                for work in talking:
                    work.cancel()


async def crowd(scene: AlertScene) -> None:
    """Keeps more in flight than the pool `busy` takes."""

    async def again() -> None:
        while True:
            await scene.chat("busy", "long", max_tokens=100, ignore_eos=True)
            await asyncio.sleep(0.1)

    await asyncio.gather(*(again() for _ in range(12)))


async def wait_for_silent(scene: AlertScene) -> None:
    """Has one answer of that endpoint, and then waits for more."""
    scene.speaks.set()
    assert await scene.chat("silent", "hello") == 200
    scene.speaks.clear()
    labels = {"pool": "silent", "class": "2xx"}
    metric = partial(scene.stack.service.metric, "extproc_answers_total", **labels)
    await until(lambda: asyncio.to_thread(metric))
    await asyncio.gather(*(scene.chat("silent", f"hello {number}") for number in range(SILENT)))


async def wake(scene: AlertScene) -> None:
    """Asks for the bugs now and then, and sends bodies that the budget has no room for."""
    while True:
        await scene.chat("simulated", "plant a bug")
        await scene.chat("simulated", "plant a leak")
        for _ in range(3):
            await scene.chat("simulated", "x" * (2 * BUDGET_BYTES))
        await asyncio.sleep(0.5)


async def refuse(scene: AlertScene) -> None:
    """Is an Envoy that refuses each set of clusters that it is served."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{scene.stack.service.port}") as channel:
        call = channel.stream_stream(DISCOVER)()  # type: ignore[call-arg]  # optional at run time
        await call.write(bytes(DiscoveryRequest(type_url=CLUSTERS)))
        response = DiscoveryResponse.parse(await call.read())  # type: ignore[arg-type]  # bytes
        detail = Status(code=3, message="no")
        refusal = DiscoveryRequest(
            type_url=CLUSTERS, response_nonce=response.nonce, error_detail=detail
        )
        await call.write(bytes(refusal))
        await asyncio.sleep(1)


async def refuse_again(scene: AlertScene) -> None:
    """The alert is about the last ten minutes (here seconds): refused once, it would be over."""
    while True:
        await refuse(scene)


@asynccontextmanager
async def everything_goes_wrong(scene: AlertScene) -> AsyncGenerator[None]:
    """Everything goes wrong that leaves the service running; and then right again."""
    endpoints, config = scene.stack.addresses[:2], scene.stack.service.config
    good = config.read_bytes()
    works = [scene.during(work(scene)) for work in (crowd, wake, refuse_again, wait_for_silent)]
    scene.is_flushed.set()
    await scene.post(3, "/simulate/fail", error_rate=1)
    (scene.folder / "listed.yaml").unlink()
    write_list(scene.folder / "emptied.yaml", [])
    # Events are asked for, and no engine has any.
    config.write_bytes(good.replace(b"scrape_s: 0.5", b"events: true\n    scrape_s: 0.5"))
    await until(
        lambda: asyncio.to_thread(scene.stack.service.metric, "extproc_kv_events", state="inferred")
    )
    config.write_text("pools: nonsense")
    yield
    scene.is_flushed.clear()
    scene.speaks.set()
    for work in works:
        work.cancel()
    await scene.post(3, "/simulate/fail")
    for name in ("listed", "emptied"):
        write_list(scene.folder / f"{name}.yaml", endpoints)
    config.write_bytes(good)


def restart(stack: Stack) -> None:
    """Starts the service again, under load, and waits until Envoy asks it."""
    stack.service.start()
    stack.service.wait_until(stack.service.is_ready, DEADLINE_S)
    stack.gateway.wait_until(stack.gateway.sees_service, DEADLINE_S)


# What is there only after Prometheus has seen the load.
TOLD = "pool:extproc_measured_tokens_cached:ratio_rate10m > 0.5"
WITHOUT_SERVICE = {"ExtprocUnreachable", "ExtprocNotScraped"}
LEAK = "ExtprocMemoryNearBound"
# Only Kubernetes calls endpoints not ready; one takes three endpoints that are alike, and minutes;
# without the service one cause has one page. promtool has these.
NOT_HERE = {"ExtprocAllNotReady", "ExtprocEndpointSlow", "ExtprocPassedBy", "ExtprocPrefillEmpty"}


async def test_each_alert_fires_and_is_gone_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. All is well, under load. 2. All that can go wrong with a running service does. 3. It is put right.

    4. The service is killed. 5. It is back, and no alert is left. That nothing else fires is what
    promtool says; here a planted bug is a request passed by as well, and a slow machine a scrape
    that failed.
    """
    with_service = {*alerts()} - WITHOUT_SERVICE - NOT_HERE
    async with AsyncExitStack() as stack:
        scene = await stack.enter_async_context(running_scene(tmp_path, monkeypatch))
        await asyncio.to_thread(
            scene.prometheus.wait_until, lambda: bool(scene.prometheus.query(TOLD))
        )
        await scene.until(lambda found: not found)
        assert await asyncio.to_thread(scene.prometheus.faulty_rules) == []

        async with everything_goes_wrong(scene):
            fired = await scene.fired(*with_service)
        await scene.until(lambda found: {*found} == {LEAK})  # which stays until it is killed

        scene.stack.service.kill()
        killed = await scene.fired(*WITHOUT_SERVICE)

        await asyncio.to_thread(restart, scene.stack)
        await scene.until(lambda found: not found)

    texts = [
        text
        for each in (*fired.values(), *killed.values())
        for text in each["annotations"].values()
    ]
    assert not [text for text in texts if "<" in text]  # <no value>, <error expanding template>
    assert fired["ExtprocEndpointFails"]["labels"]["endpoint"] == scene.stack.addresses[3]
    assert {
        name: each["labels"]["pool"] for name, each in fired.items() if "pool" in each["labels"]
    } == {
        "ExtprocAffinityFindsNothing": "affine",
        "ExtprocEndpointFails": "failing",
        "ExtprocEndpointSilent": "silent",
        "ExtprocEventsMissing": "affine",
        "ExtprocListStale": "listed",
        "ExtprocPoolEmpty": "emptied",
        "ExtprocPoolFails": "failing",
        "ExtprocSheds": "busy",
        "ExtprocSourceFails": "listed",
    }
