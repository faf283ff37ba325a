"""The admin port: a page, /live /metrics /healthz /readyz /pools /config /explain. No client reaches it.

The loop that serves requests serves this, too: what takes long is done in a thread.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Protocol

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry

from extproc.errors import RequestError
from extproc.router.routing.picker import Ask
from extproc.router.service.door import Door
from extproc.router.service.explain import explain
from extproc.router.service.exposition import answer_metrics
from extproc.router.service.live.audience import Audience, Drawer
from extproc.router.service.live.page import Page, build_page
from extproc.router.service.live.studio import Studio, Watched
from extproc.router.service.pools import Pools
from extproc.router.service.running_pool import RunningPool
from extproc.router.share.share import Share
from extproc.router.share.share_metrics import describe_share
from extproc.router.stream.answers import refuse

# Larger ones have nothing to do with how an endpoint is chosen.
EXPLAIN_BYTES: Final = 1_048_576


class Service(Watched, Protocol):
    """What the admin port shows of the running service."""

    @property
    def pools(self) -> Pools: ...


class Teller(Protocol):
    """Who answers what one process and several tell each in its own way."""

    async def config(self, request: web.Request, /) -> web.Response: ...

    async def metrics(self, request: web.Request, /) -> web.Response: ...

    async def readyz(self, request: web.Request, /) -> web.Response: ...

    async def pools(self, request: web.Request, /) -> web.Response: ...

    async def explain(self, request: web.Request, /) -> web.Response: ...


def build_admin(service: Service, registry: CollectorRegistry, door: Door) -> web.Application:
    return build_application(_Admin(service, registry), Studio(service, monotonic), door)


def build_application(teller: Teller, drawer: Drawer, door: Door) -> web.Application:
    """Every route of the admin port; the live page shows what `drawer` draws."""
    app = web.Application(client_max_size=EXPLAIN_BYTES, middlewares=[door.middleware])
    audience = Audience(drawer, door, clock=monotonic)
    app.on_shutdown.append(audience.close)
    app.router.add_get("/", _show(build_page()))
    app.router.add_get("/live", audience.serve)
    app.router.add_get("/config", teller.config)
    app.router.add_get("/metrics", teller.metrics)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", teller.readyz)
    app.router.add_get("/pools", teller.pools)
    app.router.add_post("/explain", teller.explain)
    return app


def _show(page: Page) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def show(_: web.Request) -> web.Response:
        return web.Response(text=page.html, content_type="text/html", headers=page.headers)

    return show


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


class _Admin:
    def __init__(self, service: Service, registry: CollectorRegistry) -> None:
        self._service = service
        self._registry = registry

    async def config(self, _: web.Request) -> web.Response:
        """The settings in force."""
        text = await asyncio.to_thread(self._service.configuration.text)
        return web.Response(text=text, headers={"x-content-type-options": "nosniff"})

    async def metrics(self, request: web.Request) -> web.Response:
        return await answer_metrics(request, list(self._registry.collect()))

    async def readyz(self, _: web.Request) -> web.Response:
        faults = self._service.faults()
        lines = faults or ["ready", *self._service.remarks()]
        return web.Response(text="\n".join(lines) + "\n", status=503 if faults else 200)

    async def pools(self, _: web.Request) -> web.Response:
        shares = self._service.pools.shares()
        return _json([describe_pool(each, shares.get(each.name)) for each in self._service.pools])

    async def explain(self, request: web.Request) -> web.Response:
        """`?path=` names the API, `/v1/chat/completions` if omitted; headers count as a request's own."""
        ask = Ask(
            method="POST",
            path=request.query.get("path", "/v1/chat/completions"),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=await request.read(),
            pool=request.query.get("pool"),
        )
        picker = self._service.pools.picker
        try:
            found = await asyncio.to_thread(picker.find, ask)
            return _json(explain(picker, ask, found))
        except RequestError as error:
            answer = refuse(error, ask.path)
            return web.Response(body=answer.body, status=answer.status, content_type="application/json")


def describe_pool(running: RunningPool, share: Share | None = None) -> dict[str, object]:
    pool, keeper = running.pool, running.keeper
    elsewhere = pool.book.elsewhere()
    return {
        "name": pool.name,
        "strategy": pool.strategy.name,
        "age_s": keeper.age_s,
        "fault": keeper.fault and str(keeper.fault),
        "in_flight": pool.book.total,
        "elsewhere": sum(elsewhere.get(name, 0) for name in pool.snapshot.names),
        "held": 0 if pool.queue is None else len(pool.queue),
        "objectives": dict(pool.admission.priorities),
        "share": share and describe_share(share),
        "learnt": pool.describe_engines(),
        "endpoints": [
            {
                "name": endpoint.name,
                "address": endpoint.address,
                "state": state,
                "zone": endpoint.zone,
                "adapters": sorted(endpoint.adapters),
                "in_flight": pool.book.in_flight(endpoint.name),
                "elsewhere": elsewhere.get(endpoint.name, 0),
            }
            for endpoint, state in pool.states()
        ],
    }


def _json(value: object) -> web.Response:
    return web.Response(body=orjson.dumps(value, option=orjson.OPT_INDENT_2), content_type="application/json")
