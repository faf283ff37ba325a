import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from extproc.bench.experiments.arms import CommandSwitch, Lab, SettingsFileSwitch, build_switch
from extproc.bench.experiments.replicas import LabError, Replicas, is_alike, resolve, with_strategy
from extproc.bench.experiments.run import Interrupted
from extproc.bench.spec.section import Component
from extproc.bench.spec.tree import Ab
from extproc.bench.status_server import StatusServer
from extproc.errors import SettingsError
from extproc.router.telemetry import RELOADS
from tests.hosting import hosting
from tests.tables import table

SETTINGS = """\
# a comment that stays
server: {listen: "127.0.0.1:0"}
pools:
  - {name: one, endpoints: {static: ["10.0.0.1:8000"]}, strategy: {name: random}}
  - {name: two, endpoints: {static: ["10.0.0.2:8000"]}, strategy: {name: random}}
"""
ROUND_ROBIN = Component(name="round_robin")
PREFIX_HASH = Component.model_validate({"name": "prefix_hash", "load_factor": 2.0})


class Router:
    """A router's admin port and an endpoint in one: reads the settings at a request, as late as set."""

    http: aiohttp.ClientSession

    def __init__(self, path: Path) -> None:
        self.path = path
        self.flushes = 0
        self.flush_status = 200
        self.flush_failures = 0
        self.refuses = False
        self.polls_until_seen = 2
        self.refusals = 0
        self.loads = 0
        self._seen = path.read_text()
        self.address = ""

    def _look(self) -> None:
        if self.path.read_text() == self._seen:
            return
        self.polls_until_seen -= 1
        if self.polls_until_seen < 0:
            self.refusals += self.refuses
            self.loads += not self.refuses
            self._seen = self._seen if self.refuses else self.path.read_text()

    async def config(self, _: web.Request) -> web.Response:
        return web.Response(text=self._seen)

    async def pools(self, _: web.Request | None) -> web.Response:
        self._look()
        pools = yaml.safe_load(self._seen)["pools"]
        return web.json_response(
            [{"name": pool["name"], "strategy": pool["strategy"]["name"]} for pool in pools]
        )

    async def metrics(self, _: web.Request) -> web.Response:
        loaded = f'extproc_config_reloads_total{{result="{RELOADS[0]}"}} {self.loads}.0'
        refused = f'extproc_config_reloads_total{{result="refused"}} {self.refusals}.0'
        return web.Response(text=f"# HELP extproc_config_reloads_total\n{refused}\n{loaded}\n")

    async def flush(self, _: web.Request) -> web.Response:
        self.flushes += 1
        if self.flushes <= self.flush_failures:
            return web.json_response({"success": False})
        return web.Response(status=self.flush_status)


@asynccontextmanager
async def serving_admin(path: Path) -> AsyncIterator[Router]:
    await asyncio.to_thread(path.write_text, SETTINGS)
    router = Router(path)
    pages = {
        "GET /config": router.config,
        "GET /pools": router.pools,
        "GET /metrics": router.metrics,
    }
    async with hosting({**pages, "POST /reset_prefix_cache": router.flush}) as router.address:
        yield router


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def router(tmp_path: Path, http: aiohttp.ClientSession) -> AsyncIterator[Router]:
    async with serving_admin(tmp_path / "extproc.yaml") as router:
        router.http = http
        yield router


def lab_of(router: Router, endpoints: Sequence[str] = (), **fields: object) -> Lab:
    ab = Ab.model_validate(
        {"settings_file": router.path, "admin": router.address, "pool": "two", **fields}
    )
    return Lab(router.http, build_switch(ab), ab, endpoints)


async def test_lab_waits_until_the_strategy_is_in_force(router: Router) -> None:
    await lab_of(router).prepare(PREFIX_HASH)

    one, two = yaml.safe_load(router.path.read_text())["pools"]
    assert two["strategy"] == {"name": "prefix_hash", "load_factor": 2.0}
    assert one["strategy"] == {"name": "random"}
    assert router.polls_until_seen == -1


async def test_router_that_somebody_changed_and_changed_back_ends_the_comparison(
    router: Router,
) -> None:
    lab = lab_of(router)
    await lab.prepare(PREFIX_HASH)
    await lab.confirm(PREFIX_HASH)
    ours = router.path.read_text()
    for text in (SETTINGS, ours):
        router.path.write_text(text)
        await router.pools(None)

    with pytest.raises(LabError, match="while it was measured the settings of the router at"):
        await lab.confirm(PREFIX_HASH)
    await lab.prepare(PREFIX_HASH)
    await lab.confirm(PREFIX_HASH)


async def test_arm_is_waited_for_unless_it_is_in_force(router: Router) -> None:
    """1. prefix_hash is in force. 2. The same with other settings: only `/config` shows them."""
    lab = lab_of(router)
    await lab.prepare(PREFIX_HASH)
    router.polls_until_seen = 1000
    await lab.prepare(PREFIX_HASH)
    assert router.polls_until_seen == 1000
    router.polls_until_seen = 2
    await lab.prepare(Component(name="prefix_hash"))

    assert router.polls_until_seen == -1


async def test_lab_waits_for_the_last_replica_of_a_name(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """One replica reads its file at once; the other, which nobody named, takes its time."""
    async with (
        serving_admin(tmp_path / "a.yaml") as first,
        serving_admin(tmp_path / "b.yaml") as second,
    ):
        found = [[first.address], [first.address, second.address]]

        async def resolve(host: str, port: int) -> list[str]:
            assert (host, port) == ("router", 9090)
            return found[-1]

        replicas = Replicas(http, "router:9090", "two", resolve)
        for each in (first, second):
            each.path.write_text(SETTINGS.replace("random", "round_robin"))
        first.polls_until_seen, second.polls_until_seen = 0, 3
        told = [await replicas.look(ROUND_ROBIN) for _ in range(4)]

    assert [each is None for each in told] == [False, False, False, True]
    assert all(str(each).startswith(second.address) for each in told[:3])


async def test_router_without_an_address_has_nothing_in_force(http: aiohttp.ClientSession) -> None:
    async def fail(_host: str, _port: int) -> list[str]:
        raise OSError("Name or service not known")

    async def find_none(_host: str, _port: int) -> list[str]:
        return []

    told = await Replicas(http, "router:9090", None, fail).look(ROUND_ROBIN)

    assert told == "the router is not found: ab.admin: router:9090: Name or service not known"
    assert await Replicas(http, "router:9090", None, find_none).look(ROUND_ROBIN) is not None
    assert await resolve("127.0.0.1", 80) == ["127.0.0.1:80"]
    assert set(await resolve("localhost", 80)) <= {"127.0.0.1:80", "[::1]:80"}


async def test_router_of_a_name_that_nobody_knows_ends_the_comparison_unchanged(
    router: Router,
) -> None:
    with pytest.raises(LabError, match=r"ab\.admin: router\.invalid:9090: "):
        await lab_of(router, admin="router.invalid:9090", switch_timeout=300).prepare(PREFIX_HASH)

    assert router.path.read_text() == SETTINGS


@pytest.mark.parametrize(
    ("state", "fields", "fault"),
    [
        ({"refuses": True}, {}, "refused prefix_hash"),
        (
            {"polls_until_seen": 1000},
            {"switch_timeout": 0.3},
            r"prefix_hash: after 0.3 s .* has another strategy in force",
        ),
        # It may be about to start: it is tried again until the time is up.
        ({}, {"admin": "127.0.0.1:1", "switch_timeout": 0.3}, "ClientConnectorError"),
        ({}, {"pool": "three"}, "no pool 'three'"),
        ({"flush_status": 404}, {}, "VLLM_SERVER_DEV_MODE=1"),
    ],
)
async def test_router_or_cache_that_does_not_do_as_told_ends_the_comparison(
    state: dict[str, Any], fields: dict[str, Any], fault: str, router: Router
) -> None:
    vars(router).update(state)

    with pytest.raises(LabError, match=fault):
        await lab_of(router, [router.address], **fields).prepare(PREFIX_HASH)


def test_single_value_that_a_router_tells_as_a_list_is_the_same() -> None:
    asked = {"name": "prefix_hash", "key": "conversation"}

    assert is_alike({"name": "prefix_hash", "key": ["conversation"]}, asked)
    assert not is_alike({"name": "prefix_hash"}, asked)
    assert not is_alike({**asked, "load_factor": 2}, asked)


async def test_lab_that_is_told_to_end_waits_no_longer(router: Router) -> None:
    router.polls_until_seen = 1000
    ab, stop = Ab(settings_file=router.path, admin=router.address, pool="two"), asyncio.Event()
    stop.set()

    with pytest.raises(Interrupted):
        await Lab(router.http, build_switch(ab), ab, (), stop).prepare(PREFIX_HASH)


async def test_every_cache_is_emptied_before_each_arm(router: Router) -> None:
    """What a request still holds is emptied a moment later."""
    lab = lab_of(router, [router.address, f"http://{router.address}/"])
    await lab.prepare(PREFIX_HASH)
    assert router.flushes == 2
    router.flush_failures = 4
    await lab.prepare(ROUND_ROBIN)

    assert router.flushes == 2 + 2 + 2


async def test_settings_file_is_restored_with_comments_and_its_first_pool_is_switched_by_default(
    router: Router,
) -> None:
    lab = lab_of(router)
    await lab.prepare(PREFIX_HASH)
    await lab.restore()
    assert router.path.read_text() == SETTINGS
    assert [path.name for path in router.path.parent.iterdir()] == ["extproc.yaml"]

    await SettingsFileSwitch(router.path, None).put(ROUND_ROBIN)
    assert yaml.safe_load(router.path.read_text())["pools"][0]["strategy"] == {
        "name": "round_robin"
    }
    with pytest.raises(SettingsError, match=r"none\.yaml: cannot be read: No such file"):
        SettingsFileSwitch(router.path.with_name("none.yaml"), None)


async def test_command_is_told_the_strategy_and_ends_the_comparison_where_it_fails(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    ab = Ab(command=("sh", "-c", f"echo {{strategy}} > {told}"))
    lab = Lab(http, build_switch(ab), ab, ())
    await lab.prepare(ROUND_ROBIN)
    await lab.restore()

    assert told.read_text() == "round_robin\n"
    with pytest.raises(LabError, match="sh ended with 7: no such deployment"):
        await CommandSwitch(["sh", "-c", "echo no such deployment >&2; exit 7"]).put(ROUND_ROBIN)


async def test_arm_is_asked_for_on_the_board_by_default(router: Router) -> None:
    """Who reads the board changes the router: the lab sees that it is done."""
    board, ab = StatusServer(), Ab(admin=router.address, pool="two")
    lab = Lab(router.http, build_switch(ab, board), ab, ())
    preparing = asyncio.create_task(lab.prepare(PREFIX_HASH))
    while (wanted := board.notice().wanted) is None:  # noqa: ASYNC110  # who asks over HTTP polls, too
        await asyncio.sleep(0.01)
    assert not preparing.done()
    router.path.write_text(with_strategy(SETTINGS, "two", wanted))
    await preparing
    await lab.restore()

    assert wanted == {"name": "prefix_hash", "load_factor": 2.0}


@table("fields", [{}, {"settings_file": "x.yaml", "command": ("true",)}])
def test_exactly_one_way_to_switch_is_needed(fields: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="settings-file or command"):
        build_switch(Ab.model_validate(fields))
