"""The objectives of a pool, from a scripted API server over real sockets."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from aiohttp import web

from extproc.router.cluster.kube_api import Patience
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.listwatch import KubeAccess
from extproc.router.cluster.objectives import APIS, ObjectivesSource
from tests.router.cluster.api_server import line, status, status_object, write_kubeconfig
from tests.router.cluster.objects import Object
from tests.waiting import until

UPSTREAM, LLM_D = APIS
END = b""


def objective(name: str, priority: object = None, pool: str = "vllm", **ref: str) -> Object:
    spec: Object = {"poolRef": {"name": pool, **ref}} | ({} if priority is None else {"priority": priority})
    return {"kind": "InferenceObjective", "metadata": {"name": name, "resourceVersion": "7"}, "spec": spec}


@dataclass
class Server:
    """One list per API group, `None` where the cluster does not know the kind; then what its watches say."""

    lists: dict[str, list[Object] | int | None] = field(default_factory=lambda: dict.fromkeys(APIS))
    lines: dict[str, asyncio.Queue[bytes]] = field(
        default_factory=lambda: {api: asyncio.Queue() for api in APIS}
    )
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        api = f"{request.match_info['group']}/{request.match_info['version']}"
        listed = self.lists[api]
        if "watch" in request.query:
            return await self._watch(request, self.lines[api])
        self.asked.append(api)
        if not isinstance(listed, list):
            return status(listed or 404)
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": listed})

    async def _watch(self, request: web.Request, lines: asyncio.Queue[bytes]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while (text := await lines.get()) != END:
            await response.write(text)
        return response

    def say(self, kind: str, object_: Object, api: str = UPSTREAM) -> None:
        self.lines[api].put_nowait(line(kind, object_))


@dataclass
class Told:
    """What the source told, and how long it wanted to wait. The time is the test's."""

    all_: list[Mapping[str, int]] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    now_s: float = 0.0
    source: ObjectivesSource = field(init=False)

    @property
    def age_s(self) -> float | None:
        return self.source.age_s

    def replace(self, priorities: Mapping[str, int]) -> None:
        self.all_.append(priorities)

    def restarted(self, why: str) -> None:
        self.restarts.append(why)

    async def until(self, claim: Callable[["Told"], object]) -> None:
        await until(lambda: claim(self))

    async def until_last(self, **priorities: int) -> None:
        await self.until(lambda told: told.all_ and told.all_[-1] == priorities)

    async def nap(self, delay_s: float) -> None:
        self.delays.append(delay_s)
        await asyncio.sleep(0.002)


@asynccontextmanager
async def following(server: Server, folder: Path) -> AsyncIterator[Told]:
    app = web.Application()
    app.router.add_get("/apis/{group}/{version}/namespaces/default/inferenceobjectives", server.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (folder / "token").write_text("token-1")
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    write_kubeconfig(folder / "kubeconfig", url, folder / "token")
    told = Told()
    clients = KubeClients(kubeconfig=str(folder / "kubeconfig"))
    access = KubeAccess(clients.open, Random(1), Patience(), clock=lambda: told.now_s, sleep=told.nap)
    told.source = ObjectivesSource(access, "default", "vllm")
    task = asyncio.create_task(told.source.run(told))
    try:
        yield told
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await runner.cleanup()


async def test_the_priorities_of_a_pools_objectives_are_told(tmp_path: Path) -> None:
    listed = [
        objective("batch", -10),
        objective("unset"),
        objective("grouped", 3, group="inference.networking.k8s.io", kind="InferencePool"),
        objective("older", 4, group="inference.networking.x-k8s.io"),
    ]
    async with following(Server({UPSTREAM: listed, LLM_D: None}), tmp_path) as told:
        await told.until_last(batch=-10, unset=0, grouped=3, older=4)


async def test_objectives_of_other_pools_count_for_nothing(tmp_path: Path) -> None:
    others = [
        objective("theirs", 5, pool="qwen"),
        objective("a-service", 5, kind="Service"),
        objective("foreign", 5, group="example.com"),
        objective("nobodys", 5, pool=""),
    ]
    async with following(Server({UPSTREAM: [*others, objective("ours", 1)], LLM_D: None}), tmp_path) as told:
        await told.until_last(ours=1)


async def test_an_objective_that_is_added_changed_moved_or_deleted_is_told(tmp_path: Path) -> None:
    server = Server({UPSTREAM: [], LLM_D: None})
    async with following(server, tmp_path) as told:
        for kind, object_, expected in [
            ("ADDED", objective("batch", -1), {"batch": -1}),
            ("MODIFIED", objective("batch", -2), {"batch": -2}),
            ("ADDED", objective("premium", 9), {"batch": -2, "premium": 9}),
            ("MODIFIED", objective("batch", -2, pool="qwen"), {"premium": 9}),
            ("DELETED", objective("premium", 9), {}),
        ]:
            server.say(kind, object_)
            await told.until_last(**expected)

        server.say("DELETED", objective("batch", -2, pool="qwen"))
        server.say("ADDED", objective("last", 1))
        await told.until_last(last=1)

    assert len(told.all_) == 6


async def test_llm_ds_objects_go_first(tmp_path: Path) -> None:
    server = Server({UPSTREAM: [objective("a", 1), objective("b", 1)], LLM_D: [objective("a", 2)]})
    async with following(server, tmp_path) as told:
        await told.until_last(a=2, b=1)
        server.say("DELETED", objective("a"), LLM_D)
        await told.until_last(a=1, b=1)


async def test_a_cluster_without_the_kind_is_asked_again_seldom_and_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    async with following(server, tmp_path) as told:
        await told.until(lambda told: len(told.delays) >= 2 and told.age_s is None)
        server.lists[UPSTREAM] = [objective("batch", -1)]
        await told.until_last(batch=-1)

        assert told.age_s == 0.0

    assert {*told.delays} == {300.0}
    assert told.restarts == []
    assert caplog.records == []


async def test_a_missing_role_is_said_once_and_what_is_known_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server({UPSTREAM: [objective("batch", -1)], LLM_D: None})
    async with following(server, tmp_path) as told:
        await told.until_last(batch=-1)
        server.lists[UPSTREAM] = 403
        server.lines[UPSTREAM].put_nowait(
            json.dumps({"type": "ERROR", "object": status_object(410, "too old")}).encode() + b"\n"
        )
        await told.until(lambda _: server.asked.count(UPSTREAM) >= 4)

    assert told.all_ == [{"batch": -1}]
    assert told.restarts[0] == "expired"
    assert set(told.restarts[1:]) == {"forbidden"}
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "forbidden" in record.getMessage()


@pytest.mark.parametrize("priority", ["high", 1.5, [], True])
async def test_an_object_that_no_schema_allows_changes_nothing(tmp_path: Path, priority: object) -> None:
    server = Server({UPSTREAM: [objective("batch", -1)], LLM_D: None})
    async with following(server, tmp_path) as told:
        await told.until_last(batch=-1)
        server.say("MODIFIED", objective("batch", priority))
        await told.until(lambda _: server.asked.count(UPSTREAM) >= 2)

    assert told.all_ == [{"batch": -1}]


async def test_half_a_line_is_heard_whole_in_the_next_watch(tmp_path: Path) -> None:
    server = Server({UPSTREAM: [], LLM_D: None})
    whole = line("ADDED", objective("batch", -1))
    async with following(server, tmp_path) as told:
        for text in (whole[:20], END, whole):
            server.lines[UPSTREAM].put_nowait(text)
        await told.until_last(batch=-1)


async def test_the_age_is_that_of_the_group_that_was_confirmed_longest_ago(tmp_path: Path) -> None:
    """1. Both are listed. 2. Time goes by. 3. A bookmark of one group, an object of the other."""
    server = Server({UPSTREAM: [], LLM_D: [objective("a", 1)]})
    async with following(server, tmp_path) as told:
        await told.until(lambda _: sorted(server.asked) == sorted(APIS))
        await told.until_last(a=1)
        told.now_s = 60.0
        await told.until(lambda told: told.age_s == 60.0)
        server.say("BOOKMARK", {"metadata": {"resourceVersion": "8"}}, LLM_D)
        server.say("ADDED", objective("b", 2), LLM_D)
        await told.until_last(a=1, b=2)
        assert told.age_s == 60.0
        server.say("ADDED", objective("c", 3), UPSTREAM)
        await told.until_last(a=1, b=2, c=3)

        assert told.age_s == 0.0
