"""The admin port: a page, /live /metrics /healthz /readyz /pools /config /explain /shadow /lint. No client reaches it.

The loop that serves requests serves this, too: what takes long is done in a thread.
"""

import asyncio
import gzip
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Final, cast

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from extproc.errors import RequestError
from extproc.router.routing.picker import Query
from extproc.router.service.connection_limit import ConnectionLimit
from extproc.router.service.explain import explain_decision
from extproc.router.service.live.build_state import LiveService
from extproc.router.service.live.page import LivePage, build_page
from extproc.router.service.live.publisher import StatePublisher
from extproc.router.service.pool_metrics import collect_llmd
from extproc.router.service.running_pool import RunningPool
from extproc.router.share.pool_share import Share
from extproc.router.share.share_metrics import describe_share
from extproc.router.stream.answers import refuse

# Larger ones have nothing to do with how an endpoint is chosen.
log = logging.getLogger(__name__)

EXPLAIN_BYTES: Final = 1_048_576
# One is explained at a time: each takes a core for milliseconds, and requests wait for the same
# one.
_MOST_WAITING: Final = 8
# Names in clusters, container networks and local networks; no such name is in public DNS.
_PRIVATE: Final = (".svc", ".local", ".localhost")


def build_admin(
    service: LiveService, registry: CollectorRegistry, limit: ConnectionLimit
) -> web.Application:
    """Every route of the admin port."""
    own, _, _ = service.configuration.settings.server.admin.rpartition(":")
    own_names = {own.lower(), socket.gethostname().lower()}

    @web.middleware
    async def refuse_foreign_names(request: web.Request, handler: Handler) -> web.StreamResponse:
        if all(is_own_host(host, own_names) for host in request.headers.getall("host", [])):
            return await handler(request)
        text = (
            "this name is not the service's: use an IP address, or write the name in server.admin\n"
        )
        return web.Response(text=text, status=421)

    middlewares = [limit.middleware, refuse_foreign_names]
    app = web.Application(client_max_size=EXPLAIN_BYTES, middlewares=middlewares)
    publisher, admin = StatePublisher(service, limit), _Admin(service)
    app.on_shutdown.append(publisher.close)
    app.router.add_get("/", _show(build_page()))
    app.router.add_get("/live", publisher.serve)
    app.router.add_get("/config", admin.config)
    app.router.add_get("/metrics", _show_metrics(registry.collect))
    app.router.add_get("/metrics/llm-d", _show_metrics(lambda: collect_llmd(service.pools)))
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", admin.readyz)
    app.router.add_get("/pools", admin.pools)
    app.router.add_post("/explain", admin.explain)
    app.router.add_get("/shadow", admin.shadow)
    app.router.add_get("/lint", admin.lint)
    app.router.add_post("/shadow/reset", admin.reset_shadow)
    return app


def is_own_host(host: str, names: Iterable[str]) -> bool:
    """Whether a `Host` header may name this service; `names` are its own.

    A web site can point its own name at our address, and its scripts could then read what a browser
    reaches here (DNS rebinding). They cannot choose the header: it has that public name.
    """
    name = host.lower()
    if not name.endswith("]"):
        name = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() else name
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return "." not in name or name.endswith(_PRIVATE) or name in names
    return True


def _show(page: LivePage) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def show(_: web.Request) -> web.Response:
        return web.Response(text=page.html, content_type="text/html", headers=page.headers)

    return show


def _show_metrics(collect: Callable[[], Iterable[Metric]]) -> Handler:
    async def show(request: web.Request) -> web.Response:
        """In the format and encoding that the scraper prefers. What was collected is written in a thread."""
        families = list(collect())
        accept = ",".join(request.headers.getall("accept", []))
        is_zipped = gzip_accepted(",".join(request.headers.getall("accept-encoding", [])))
        content_type, body = await asyncio.to_thread(_expose, families, accept, is_zipped=is_zipped)
        headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
        if is_zipped:
            headers["content-encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    return show


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


class _Admin:
    def __init__(self, service: LiveService) -> None:
        self._service = service
        self._explaining = asyncio.Lock()
        self._waiting = 0

    async def config(self, _: web.Request) -> web.Response:
        """The settings in force."""
        text = await asyncio.to_thread(self._service.configuration.text)
        return web.Response(text=text, headers={"x-content-type-options": "nosniff"})

    async def readyz(self, _: web.Request) -> web.Response:
        faults = self._service.faults()
        lines = faults or ["ready", *self._service.pools.remarks()]
        return web.Response(text="\n".join(lines) + "\n", status=503 if faults else 200)

    async def pools(self, _: web.Request) -> web.Response:
        shares = self._service.pools.shares()
        return _json([_show_pool(each, shares.get(each.name)) for each in self._service.pools])

    async def shadow(self, _: web.Request) -> web.Response:
        return _json([told for each in self._service.pools if (told := each.foretell())])

    async def lint(self, _: web.Request) -> web.Response:
        """Where the prompts of the pools with `lint` part; kinds, places and counts, and no text."""
        linted = [each.lint for each in self._service.pools if each.lint is not None]
        return _json(await asyncio.to_thread(lambda: [each.tell() for each in linted]))

    async def reset_shadow(self, request: web.Request) -> web.Response:
        """Begins a pool's comparison anew. Only JSON: no page of another site can send that unasked."""
        if request.content_type != "application/json":
            return web.Response(text="send application/json\n", status=415)
        name = request.query.get("pool")
        found = [each.shadow for each in self._service.pools if each.name == name]
        if not found or found[0] is None:
            return web.Response(text="no such pool has a `shadow`\n", status=404)
        found[0].begin(is_watching=found[0].is_watching)
        return web.Response(text="ok\n")

    async def explain(self, request: web.Request) -> web.Response:
        """`?path=` names the API, `/v1/chat/completions` if omitted; headers count as a request's own."""
        query = Query(
            method="POST",
            path=request.query.get("path", "/v1/chat/completions"),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=await request.read(),
            pool=request.query.get("pool"),
            is_trial=True,
        )
        if self._waiting > _MOST_WAITING:
            return web.Response(
                text="others wait already\n", status=503, headers={"retry-after": "1"}
            )
        self._waiting += 1
        try:
            async with self._explaining:
                picker = self._service.pools.picker
                found = await asyncio.to_thread(picker.find, query)
                said = explain_decision(picker, query, found)
                events = self._service.pools[str(said["pool"])].describe_events()
                return _json(said | {"events": events.get(str(said["endpoint"]))})
        except RequestError as error:
            answer = refuse(error, query.path)
            return web.Response(
                body=answer.body, status=answer.status, content_type="application/json"
            )
        finally:
            self._waiting -= 1


def _show_pool(running: RunningPool, share: Share | None) -> msgspec.Raw:
    """A pool as JSON. One that cannot be shown says so, and hides no other."""
    try:
        return msgspec.Raw(msgspec.json.encode(describe_pool(running, share)))
    except (ArithmeticError, TypeError, ValueError) as error:
        log.warning("/pools: pool %s cannot be shown: %s", running.name, type(error).__name__)
        fault = "it cannot be shown: the log has more"
        return msgspec.Raw(msgspec.json.encode({"name": running.name, "fault": fault}))


def describe_pool(running: RunningPool, share: Share | None = None) -> dict[str, object]:
    pool, keeper = running.pool, running.keeper
    elsewhere, events = pool.book.elsewhere(), running.describe_events()
    return {
        "name": pool.name,
        "strategy": pool.strategy.name,
        "age_s": keeper.age_s and round(keeper.age_s, 1),
        "fault": keeper.fault and str(keeper.fault),
        "in_flight": pool.book.total,
        "elsewhere": sum(elsewhere.get(name, 0) for name in pool.snapshot.names),
        "held": 0 if pool.queue is None else len(pool.queue),
        "objectives": dict(pool.admission.priorities),
        "share": share and describe_share(share),
        "learnt": pool.describe_engines(),
        "prefill": pool.prefill
        and {"pool": pool.prefill.pool.name, "ready": len(pool.prefill.pool.candidates())},
        "endpoints": [
            {
                "name": endpoint.name,
                "address": endpoint.address,
                "state": state,
                "zone": endpoint.zone,
                "adapters": sorted(endpoint.adapters),
                "in_flight": pool.book.in_flight(endpoint.name),
                "elsewhere": elsewhere.get(endpoint.name, 0),
                "events": events.get(endpoint.name),
                **running.feedback.describe_answers(endpoint.name),
            }
            for endpoint, state in pool.states()
        ],
    }


def _json(value: object) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(value))
    return web.Response(body=body, content_type="application/json")


def _expose(families: Iterable[Metric], accept: str, *, is_zipped: bool) -> tuple[str, bytes]:
    encode, content_type = choose_encoder(accept)
    body = encode(
        cast("Collector", SimpleNamespace(collect=lambda: families))
    )  # they were collected already
    return content_type, gzip.compress(body, compresslevel=1) if is_zipped else body
