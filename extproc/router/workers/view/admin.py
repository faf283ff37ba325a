"""One admin port for all workers: what each of them would tell, as that of one process.

It is served by the process that watches the workers, which no request waits for.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from extproc.router.service.admin import build_application
from extproc.router.service.door import Door
from extproc.router.service.exposition import answer_metrics
from extproc.router.workers.view.asking import ANSWER_S, Told, Workers
from extproc.router.workers.view.pools import merge_pools
from extproc.router.workers.view.studio import WorkersStudio
from extproc.router.workers.view.totals import Totals

# The only format that has exemplars.
_OPEN_METRICS: Final = {"accept": "application/openmetrics-text; version=1.0.0"}
# Who says that it is ready is not held up by who says nothing: a probe waits for a second.
_READY_S: Final = 0.5
_JSON: Final = "application/json"
# Headers of a request that are of the connection it came by, or of its own length.
_OWN_HEADERS: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}
)
_LARGEST: Final = 1e300
# This process, among the workers that metrics are of.
_SELF: Final = ""


def build_view(
    live: Callable[[], Sequence[Path]],
    registry: CollectorRegistry,
    door: Door,
    *,
    faults: Callable[[], list[str]] = list,
    answer_s: float = ANSWER_S,
) -> web.Application:
    """Tells of the workers at the admin sockets that `live` names, each with a name of its own for good.

    `registry` has this process's own metrics, which are added to theirs; `faults` are why the service is not
    ready whatever the workers say. Who does not answer for `answer_s` is left out.
    """
    workers = Workers(live, registry, answer_s=answer_s)
    studio = WorkersStudio(workers, faults, monotonic)
    return build_application(_View(workers, registry, faults), studio, door)


class _View:
    def __init__(
        self, workers: Workers, registry: CollectorRegistry, faults: Callable[[], list[str]]
    ) -> None:
        self._workers = workers
        self._registry = registry
        self._faults = faults
        self._totals = Totals()
        self._scrape: asyncio.Task[list[Metric]] | None = None

    async def config(self, _: web.Request) -> web.Response:
        return _pass(await self._workers.ask_any("/config"))

    async def metrics(self, request: web.Request) -> web.Response:
        # Scrapes at one time share one look at the workers: an older look must not come after a newer one.
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.create_task(self._look(), name="metrics")
        return await answer_metrics(request, await asyncio.shield(self._scrape))

    async def _look(self) -> list[Metric]:
        answers = await self._workers.ask_all("/metrics", _OPEN_METRICS)
        told = await asyncio.to_thread(_parse_all, answers)
        for _ in answers.keys() - told.keys():
            self._workers.garbled()
        told[_SELF] = list(self._registry.collect())
        return await asyncio.to_thread(self._totals.merge, told)

    async def readyz(self, _: web.Request) -> web.Response:
        faults = self._faults()
        if faults:
            return _lines(faults, 503)
        told = await self._ask_whether_ready()
        is_ready = any(map(_is_ready, told.values()))
        lines = ["ready"] if is_ready else []
        for worker, one in told.items():
            lines += one.body.decode(errors="replace").splitlines() if one else [f"{worker} does not answer"]
        return _lines(lines or ["no worker yet"], 200 if is_ready else 503)

    async def _ask_whether_ready(self) -> dict[str, Told | None]:
        """What each one answers; `None` of who did not, by the time when another one said yes."""
        asked = {
            worker: asyncio.create_task(self._workers.ask(worker, "/readyz"))
            for worker in self._workers.sockets()
        }
        waiting = set(asked.values())
        while waiting and not any(_is_ready(task.result()) for task in asked.values() if task.done()):
            _, waiting = await asyncio.wait(waiting, timeout=_READY_S)
        for task in waiting:
            task.cancel()
        return {worker: task.result() if task.done() else None for worker, task in asked.items()}

    async def pools(self, _: web.Request) -> web.Response:
        answers = await self._workers.ask_all("/pools")
        if not answers:
            return _pass(None)
        merged = merge_pools([orjson.loads(one.body) for one in answers.values()])
        return web.Response(body=orjson.dumps(merged, option=orjson.OPT_INDENT_2), content_type=_JSON)

    async def explain(self, request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN_HEADERS}
        body = await request.read()
        return _pass(await self._workers.ask_any(str(request.rel_url), body=body, headers=headers))


def _is_ready(told: Told | None) -> bool:
    return told is not None and told.status == 200


def _parse_all(answers: dict[str, Told]) -> dict[str, list[Metric]]:
    """The families of those whose answers can be read."""
    parsed = {worker: parse(one.body) for worker, one in answers.items()}
    return {worker: families for worker, families in parsed.items() if families is not None}


def parse(body: bytes) -> list[Metric] | None:
    """Reads OpenMetrics; `None` where it is none, or has numbers that cannot be added up."""
    try:
        text = body.decode()
        families = list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]  # the library's
    except Exception:  # noqa: BLE001  # the library raises whatever it stumbles over
        return None
    numbers = (sample.value for family in families for sample in family.samples)
    return families if all(abs(number) < _LARGEST for number in numbers) else None


def _pass(told: Told | None) -> web.Response:
    """What a worker said, as it said it."""
    if told is None:
        return _lines(["no worker answers"], 503)
    headers = {"content-type": told.content_type, "x-content-type-options": "nosniff"}
    return web.Response(body=told.body, status=told.status, headers=headers)


def _lines(lines: Sequence[str], status: int) -> web.Response:
    return web.Response(text="\n".join(dict.fromkeys(lines)) + "\n", status=status)
