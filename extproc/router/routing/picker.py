"""The picker: which pool serves a request, by what key, on which endpoint. The whole decision."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import translate
from math import inf
from re import Pattern
from re import compile as compile_pattern

from msgspec import Struct

from extproc.errors import NoEndpoint, PromptError, UnknownModel
from extproc.router.routing.endpoint import ModelCard
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.prompt.apis import may_split, model_in_path
from extproc.router.routing.prompt.json_reader import is_large
from extproc.router.routing.prompt.parse import Prompt, parse, reads_body
from extproc.router.routing.strategies.base import CostRow, Reading


class Query(Struct, frozen=True):
    """The part of a request that the picker reads; headers by lower-case name.

    `body` is `None` where there is none, or none to be had. `is_partial` says that more of it
    exists than came. `subset` holds the addresses that the proxy allows (EPP 1.0.0), `None` for
    any. `pool` is the operator's choice of a pool. `fault` says why there is no body to be had of a
    request with one. `is_trial`: somebody only asks what would be decided.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | bytearray | None = None
    is_partial: bool = False
    subset: Sequence[str] | None = None
    pool: str | None = None
    fault: PromptError | None = None
    is_trial: bool = False


class Decision(Struct, frozen=True):
    """A pick and what it came from: the routing key (`None`: no prefix), and why the body was no help.

    `model` is the name that the client sent, of any length; empty where it was not read. `costs`
    are the rows that the strategy compared, if it compares costs.
    """

    pick: Pick
    key: int | None
    adapter: str = ""
    fault: PromptError | None = None
    model: str = ""
    costs: Sequence[CostRow] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """A pool and what leads to it.

    All fields but the pool are settings of a pool by the same names. `models` may hold globs; none take
    any model. `adapters` are LoRA names that every endpoint of the pool serves. `salt_header` names a
    tenant: what one sent is never looked for by another.
    """

    pool: Pool
    models: Collection[str] | None = None
    adapters: Collection[str] = ()
    salt_header: str | None = None

    @classmethod
    def by_settings(cls, pool: Pool, settings: object) -> "Route":
        """Takes each field from the pool's settings of that name."""
        names = [each.name for each in fields(cls) if each.name != "pool"]
        return cls(pool, **{name: getattr(settings, name) for name in names})

    def adapter(self, model: str) -> str:
        """`model` if it is an adapter here, else the empty string.

        What endpoints hold counts only where the name is nothing else: a client can load an adapter
        under any name, and one called like the pool's model would draw all of the model's requests.
        """
        snapshot = self.pool.snapshot
        if model in self.adapters:
            return model
        return model if model in snapshot.by_adapter and not self.is_base(model) else ""

    def is_base(self, model: str) -> bool:
        """Whether a name is the model's own, one of several perhaps: all mean the same cached blocks."""
        return model in (self.models or ()) or model in self.pool.snapshot.models

    def names(self) -> set[str]:
        """Every model and adapter name that is served, globs left out."""
        snapshot = self.pool.snapshot
        configured = {name for name in self.models or () if "*" not in name}
        return configured | {*self.adapters} | snapshot.models | snapshot.by_adapter.keys()


class RequestPlan(Struct, frozen=True):
    """What the headers alone decide; made once a request, before its body.

    `route` is the only one possible, `None` where the body names the model. `needs_body`: the body
    may still change the decision. `may_wait`: a pool that may serve it holds requests.
    `lists_models`: the request asks which models there are, and no single endpoint could say.
    """

    route: Route | None = None
    reads_body: bool = False
    needs_body: bool = False
    may_wait: bool = False
    lists_models: bool = False

    def reads_long(self, body: bytes | bytearray | None) -> bool:
        """Whether reading this body may take milliseconds, and should be done in a thread."""
        return body is not None and self.reads_body and is_large(body)


class Found(Struct, frozen=True):
    """What a request wants: its pool, and what the pool's strategy read in it.

    `model` is the name by the client, `adapter` the LoRA adapter of that name here; `fault` says
    why the body was no help. `may_split`: the pool may have another endpoint compute the prompt.
    """

    pool: Pool
    reading: Reading
    adapter: str = ""
    fault: PromptError | None = None
    model: str = ""
    may_split: bool = False


class Picker:
    """All routes. Replaced as a whole when the settings or a pool's strategy change; the pools live on.

    `key_headers` are the request headers, in lower case, that the pools' strategies read.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = {route.pool.name: route for route in routes}
        self._exact: dict[str, Route] = {}
        self._globs: list[tuple[Pattern[str], Route]] = []
        self._catch_all = next((route for route in self.routes.values() if not route.models), None)
        self._sole = next(iter(self.routes.values())) if len(self.routes) == 1 else None
        self.key_headers = frozenset[str]().union(
            *(route.pool.strategy.headers for route in self.routes.values()),
            {route.salt_header for route in self.routes.values() if route.salt_header},
        )
        for route in self.routes.values():
            for name in [*(route.models or ()), *route.adapters]:
                if "*" in name:
                    self._globs.append((compile_pattern(translate(name)), route))
                else:
                    self._exact.setdefault(name, route)

    def model_cards(self) -> list[ModelCard]:
        """Every model and adapter that is served, with what its endpoints say of it.

        Where they differ, the shortest context counts: it fits into each of them.
        """
        known: dict[str, ModelCard] = {}
        for route in self.routes.values():
            for name in route.names():
                known.setdefault(name, ModelCard(name))
            for endpoint in route.pool.snapshot.ready.values():
                for card in endpoint.cards:
                    known[card.id] = min(known[card.id], card, key=_context)
        return [known[name] for name in sorted(known)]

    def plan(self, query: Query) -> RequestPlan:
        """Decides what the headers decide. Raises `NoEndpoint` for a pool that there is not."""
        lists = query.method == "GET" and query.path.partition("?")[0].rstrip("/").endswith(
            "/v1/models"
        )
        route = self._chosen(query)
        if lists and route is None and len(self.routes) > 1:
            return RequestPlan(lists_models=True)
        reads = reads_body(query.method, query.path)
        sole = route or self._sole
        pools = [sole.pool] if sole is not None else [route.pool for route in self.routes.values()]
        return RequestPlan(
            route,
            reads,
            reads and self._needs_body(query, route),
            any([pool.queue is not None for pool in pools]),  # noqa: C419  # once a request: a list is faster
        )

    def _needs_body(self, query: Query, route: Route | None) -> bool:
        route = route or (None if self._sole is None or self._sole.models else self._sole)
        if route is None or route.adapters or route.pool.snapshot.by_adapter:
            return True
        return route.pool.strategy.needs_body(query.headers)

    def pick(self, query: Query, found: Found | None = None) -> Decision:
        """Decides and counts, by what was `found` if it was; raises a `RequestError`."""
        decision = self.decide(query, found or self.find(query))
        decision.pick.acquire()
        if decision.pick.prefill is not None:
            decision.pick.prefill.acquire()
        return decision

    def propose(self, query: Query) -> Decision:
        """Decides, and leaves it to the caller to take the pick; raises like `pick`."""
        return self.decide(query, self.find(query))

    def find(self, query: Query, plan: RequestPlan | None = None) -> Found:
        """Finds the pool and reads the prompt. Changes no decision: a thread may do it. Raises as `pick`."""
        reads = reads_body(query.method, query.path) if plan is None else plan.reads_body
        route = self._chosen(query) if plan is None else plan.route
        prompt, fault = _read(query) if reads and query.body is not None else (None, query.fault)
        if prompt is None:
            model = model_in_path(query.path) or ""
            route = route or self._without_body(query, model, fault, reads=reads)
            adapter = route.adapter(model)
            reading = route.pool.strategy.read(None, query.headers, adapter)
            return Found(route.pool, reading, adapter, fault, model)
        route = route or self._by_model(prompt.model, prompt.fault)
        model = prompt.model or ""
        adapter = route.adapter(model)
        if not adapter and route.is_base(model):
            prompt = prompt.unnamed()
        if route.salt_header:
            prompt = prompt.salted(query.headers.get(route.salt_header, ""))
        reading = route.pool.strategy.read(prompt, query.headers, adapter)
        for listener in () if query.is_trial else route.pool.listeners:
            listener.see(prompt, reading)
        has_stages = route.pool.prefill is not None and may_split(query.method, query.path)
        splits = has_stages and prompt.is_single
        return Found(route.pool, reading, adapter, prompt.fault, model, splits)

    def decide(self, query: Query, found: Found) -> Decision:
        pool, reading = found.pool, found.reading
        standing = pool.standing(query.headers)
        pick = pool.propose(
            reading,
            adapter=found.adapter,
            subset=query.subset,
            standing=standing,
            may_split=found.may_split,
        )
        return Decision(pick, reading.key, found.adapter, found.fault, found.model, reading.costs)

    def _chosen(self, query: Query) -> Route | None:
        if query.pool is None:
            return None
        route = self.routes.get(query.pool)
        if route is None:
            raise NoEndpoint(f"there is no pool {query.pool[:100]!r}")
        return route

    def _without_body(
        self, query: Query, model: str, fault: PromptError | None, *, reads: bool
    ) -> Route:
        """A request with no body to name a model, such as a browser's OPTIONS, is for any pool."""
        if model or reads or "upgrade" in query.headers:
            return self._by_model(model or None, fault)
        routes = self.routes.values()
        ready = (route for route in routes if route.pool.snapshot.ready)
        return self._catch_all or next(ready, next(iter(routes)))

    def _by_model(self, model: str | None, fault: PromptError | None) -> Route:
        if model is None or (self._sole is not None and self._sole is self._catch_all):
            route = self._sole or self._catch_all
            if route is None:
                raise fault or PromptError(
                    "name a model: it decides which pool serves this", param="model"
                )
            return route
        # The operator's names go before those of endpoints: clients can load adapters, under any
        # name.
        globs = (route for pattern, route in self._globs if pattern.match(model))
        route = (
            self._exact.get(model) or next(globs, None) or self._by_learnt(model) or self._catch_all
        )
        if route is None:
            raise UnknownModel(f"The model `{model[:200]}` does not exist.", param="model")
        return route

    def _by_learnt(self, model: str) -> Route | None:
        """A base model goes before an adapter: it takes a start of vLLM to name one."""
        snapshots = [(route, route.pool.snapshot) for route in self.routes.values()]
        by_model = (route for route, snapshot in snapshots if model in snapshot.models)
        by_adapter = (route for route, snapshot in snapshots if model in snapshot.by_adapter)
        return next(by_model, None) or next(by_adapter, None)


def _context(card: ModelCard) -> float:
    """The tokens that fit; most where nobody says."""
    return inf if card.max_model_len is None else card.max_model_len


def _read(query: Query) -> tuple[Prompt | None, PromptError | None]:
    try:
        content_type = query.headers.get("content-type", "")
        return parse(query.path, content_type, query.body or b"", is_partial=query.is_partial), None
    except PromptError as fault:
        # Its frames, and those of what it came from, would hold the body.
        fault.__context__ = None
        return None, fault.with_traceback(None)
