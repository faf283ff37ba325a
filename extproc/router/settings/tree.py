"""The configuration: one tree, strict, every fault told with the place it is at.

Each field says its unit and why its default is what it is; `extproc schema` prints all of it.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from extproc.documents import Document, describe, parse_document, read_document
from extproc.errors import SettingsError
from extproc.router.routing.strategies.base import StrategySettings
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCacheSettings
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.settings.endpoints import EndpointsSettings
from extproc.router.settings.sections import HeaderName, Listen, Name, ObjectiveName, Section
from extproc.router.settings.share import ShareSettings

ENVIRONMENT_PREFIX: Final = "EXTPROC_"

# What Kubernetes tells every Pod beside a Service called extproc or extproc-something.
_SERVICE_LINK: Final = re.compile(
    r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?$"
)


REMOVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "server.workers": "was removed in 0.2: run more replicas, or several services behind one "
        "Envoy cluster; see docs/sharing.md",
    }
)
"""Settings of former releases, by their places, and what to do instead."""


class TlsSettings(Section):
    """Certificates of the gRPC listener: files, read again when they change, or one of our own."""

    certificate: str | None = None
    """PEM file with the server's certificate chain."""
    key: str | None = None
    """PEM file with its private key."""
    client_ca: str | None = None
    """PEM file with the authorities of client certificates; given, a client must have one (mTLS)."""
    self_signed: bool = False
    """A certificate made at start, kept in memory and replaced in time, for gateways that want TLS and check
    no certificate."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if self.self_signed and self.model_fields_set - {"self_signed"}:
            raise ValueError("self_signed goes with no files")
        if not self.self_signed and (self.certificate is None or self.key is None):
            raise ValueError("give certificate and key, or self_signed: true")
        return self


class ServerSettings(Section):
    """Where we listen, and our limits. A change of this section takes effect with a restart."""

    listen: Listen = "0.0.0.0:9002"
    """ext_proc, gRPC health and xDS: `host:port`, or `unix:/path` for a sidecar."""
    admin: Listen = "127.0.0.1:9090"
    """A page, /live, /metrics, /healthz, /readyz, /pools, /config and /explain over HTTP, without
    authentication: this machine alone unless told otherwise. In a container 0.0.0.0, and a network policy."""
    health: Listen | None = None
    """gRPC health alone, always plain text: for kubelets and load balancers where `tls` is set (upstream's
    picker: 0.0.0.0:9003). Omitted: on `listen` only."""
    max_body_bytes: int = Field(default=50_331_648, ge=1_024, le=1_073_741_824)
    """The largest request body; Envoy's buffer limit should be the same. 48 MiB: a sound of 25 MiB, the most
    that vLLM takes, is 33 MiB as base64, and there is room for the conversation around it."""
    budget_bytes: int | None = Field(default=None, ge=65_536)
    """What all bodies on their way may hold at once; a request beyond it is routed without its body.
    Omitted: three of the largest."""
    transport: Literal["native", "grpcio"] = "native"
    """Our own HTTP/2, or grpcio's: the reference, and the way back. Both answer alike."""
    drain_s: float = Field(default=30, ge=0)
    """How long open requests may go on after SIGTERM, seconds."""
    clear_route_cache: bool = False
    """Tell Envoy to choose the route again after ours; needed where routes match `x-extproc-pool`."""
    xds: bool = False
    """Serve clusters and endpoints to Envoy over xDS (ADS), on the same port."""
    tls: TlsSettings | None = None
    """Certificates for the gRPC listener; omitted, it speaks plain text."""
    pass_headers: list[HeaderName] = Field(default=[])
    """Headers of clients that go on to the endpoint although they are orders to a picker, as all that begin
    with `x-gateway-inference-`, `x-gateway-model-`, `x-gateway-destination-`, `x-llm-d-` or `x-extproc-`."""
    unseen_s: float = Field(default=10, ge=0)
    """How long a request counts, seconds, where a gateway never tells of its response (NGINX Gateway Fabric).
    The mean time of your requests makes the loads right on average."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """DEBUG writes one line per request; no level ever writes a prompt."""

    @property
    def budget(self) -> int:
        return 3 * self.max_body_bytes if self.budget_bytes is None else self.budget_bytes

    @property
    def announced(self) -> int:
        """What proxies may be about to buffer: with its copy on the way here, half the heap of our Envoys."""
        return 4 * self.max_body_bytes

    @field_validator("listen", "admin", "health")
    @classmethod
    def _is_a_port(cls, listen: str | None) -> str | None:
        if listen is None:
            return None
        port = listen.rpartition(":")[2]
        if not listen.startswith("unix:") and int(port) >= 65536:
            raise ValueError(f"{port} is not a port")
        return listen


class ProbeSettings(Section):
    """Asking each endpoint for its health."""

    path: str = Field(default="/health", pattern=r"^/[^\s#]*$")
    """What is asked for with GET. Any answer below 500 is healthy."""
    interval_s: float = Field(default=5, ge=0.1)
    """How often each endpoint is asked, seconds. Three failures in a row make it unhealthy, one good answer
    healthy."""
    timeout_s: float = Field(default=3, gt=0)
    """How long an answer may take, seconds."""


class SignalsSettings(Section):
    """Asking each endpoint for its metrics (vLLM's `/metrics`)."""

    scrape_s: float = Field(default=15, ge=0.5, le=300)
    """How often each endpoint is asked, seconds. A hundred of them at this pace take 1 % of a core."""


class HoldSettings(Section):
    """Holding requests until the pool has room for them."""

    wait_s: float = Field(default=30, gt=0, le=600)
    """How long, seconds; then the 429 or 503 that they would have got at once. An Envoy has to wait as long:
    it is told so, and takes it up to `max_message_timeout` (605 s in ours)."""
    requests: int = Field(default=1_000, ge=1, le=100_000)
    """How many at a time, in each of these services; one more is refused. Their bodies may hold half of
    `server.budget_bytes`, those of all pools together."""
    settle_s: float = Field(default=1, ge=0, le=30)
    """How long they are held yet when an empty pool gets its first endpoint, seconds: Envoy has to hear of
    it, too. With clusters by DNS take `dns_refresh_rate`."""


class PoolSettings(Section):
    """Endpoints that serve the same models."""

    name: Name
    models: list[str] | None = None
    """Names a request may ask for, `*` stands for anything; omitted: any."""
    adapters: list[str] = Field(default=[])
    """LoRA names that every endpoint serves; those of single endpoints are learnt (`learn_models`)."""
    endpoints: EndpointsSettings
    strategy: Annotated[StrategySettings, STRATEGIES] = PrefixCacheSettings()
    """How an endpoint is picked; changed live."""
    learn_models: bool = False
    """Ask every endpoint's /v1/models now and then for the models and adapters it serves."""
    when_down: Literal["open", "closed"] | None = None
    """While the service is away Envoy cannot tell which pool a request is for. `open`: this pool takes all
    of them, without affinity; `closed`: not this one. If no pool is open they get 503. Omitted: open for a
    pool that is alone, closed for one of several. Served over xDS; else Envoy's routes decide."""
    fallbacks: int = Field(default=0, ge=0, le=4)
    """Further endpoints named behind the pick, for a gateway's retries. 0, as upstream's picker: gateways
    that take one address fail on a list. 2 for plain Envoy, Istio and Envoy Gateway."""
    max_in_flight: int | None = Field(default=None, ge=1)
    """Mean requests in flight per endpoint beyond which the pool answers 429; omitted: never."""
    objectives: dict[ObjectiveName, int] = Field(default={})
    """Priorities by the name that a request gives in `x-gateway-inference-objective` (or `x-llm-d-…`); a name
    that is not here is 0. At `max_in_flight` negative ones are refused; those above others are let in up to
    a quarter more. InferenceObjectives of the InferencePool count beside these, which go first."""
    fairness: bool = False
    """At `max_in_flight`, refuse who has more than its share first, and let the others in up to a quarter
    more; by `x-gateway-inference-fairness-id` (or `x-llm-d-…`). For gateways that write this header
    themselves: a client that names itself anew has a new share."""
    hold: HoldSettings | None = None
    """Hold requests of a full pool (`max_in_flight`), or of one without a ready endpoint, until there is
    room; `{}` for the defaults. Omitted: they are refused at once."""
    cool_after: int | None = Field(default=3, ge=1)
    """Failures in a row (5xx, no connection, no first byte) after which an endpoint gets no picks for a
    while; null: never. Needs an access log or response headers from the gateway."""
    probe: ProbeSettings | Literal[False] | None = None
    """Ask the endpoints for their health; false: never. Omitted: for lists that say nothing of it (static,
    file, dns), not for Kubernetes and InferencePools."""
    signals: SignalsSettings | None = None
    """Read the endpoints' metrics: how large their caches are, what is found there, how many requests wait.
    `{}` for the defaults; omitted: never. Of use to `prefix_cache`."""
    stale_after_s: float | None = Field(default=None, gt=0)
    """Age of the endpoint list, seconds, beyond which the pool does not count as ready; omitted: only where
    its source has said nothing at all for 300 s. The service is ready while one pool is. Take more than a
    source needs to say that its list holds: 5 s static and file, 30 s DNS, 100 s the others."""

    @field_validator("models")
    @classmethod
    def _is_not_empty(cls, models: list[str] | None) -> list[str] | None:
        if models == []:
            raise ValueError("an empty list serves no request; leave it out to serve any model")
        return models

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.max_in_flight is None and (self.objectives or self.fairness):
            raise ValueError("objectives and fairness need max_in_flight: without it nobody is refused")
        return self


class Settings(Section):
    """The configuration file of `extproc serve`."""

    server: ServerSettings = ServerSettings()
    pools: list[PoolSettings] = Field(min_length=1)
    share: ShareSettings | None = None
    """Sharing of picks among gateways; omitted: each knows its own."""

    @model_validator(mode="after")
    def _are_unique(self) -> Self:
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"pool names used twice: {', '.join(twice)}")
        models = Counter(name for pool in self.pools for name in {*(pool.models or ()), *pool.adapters})
        shared = sorted(name for name, count in models.items() if count > 1)
        if shared:
            raise ValueError(f"models that two pools serve: {', '.join(shared)}")
        opened = [pool.name for pool in self.pools if pool.when_down == "open"]
        if len(opened) > 1:
            raise ValueError(f"one pool can be open when the service is down, not {', '.join(opened)}")
        return self

    @property
    def open_pool(self) -> str | None:
        """The pool that takes every request while the service is away; `None`: they are refused."""
        alone = len(self.pools) == 1
        opened = (pool.name for pool in self.pools if (pool.when_down or (alone and "open")) == "open")
        return next(opened, None)


def load_settings(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Reads a YAML file and the overrides of `environment` (`EXTPROC_SERVER__LISTEN`).

    Raises `SettingsError` that lists every fault, each with its place in the file.
    """
    return build_settings(read_document(path), environment or {})


def parse_settings(text: str | bytes, environment: Mapping[str, str], where: str = "settings") -> Settings:
    """Parses YAML text, see `load_settings`."""
    return build_settings(parse_document(text, where), environment)


def build_settings(document: Document, environment: Mapping[str, str]) -> Settings:
    overrides = read_overrides(environment)
    if not isinstance(document.tree, dict):
        raise SettingsError(f"{document.where}:1: expected a mapping with the keys server and pools")
    for name, (path, value) in overrides.items():
        _override(document.tree, path, value, name)
    try:
        return Settings.model_validate(document.tree)
    except ValidationError as error:
        raise SettingsError(
            "\n".join(_tell(document, overrides, fault) for fault in error.errors())
        ) from None


def read_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT_PREFIX)}


Overrides = Mapping[str, tuple[tuple[str, ...], Any]]
"""Names of variables with the place in the tree that they override, and the value, read as YAML."""


def read_overrides(environment: Mapping[str, str]) -> Overrides:
    """Raises `SettingsError` for every variable of our prefix that overrides nothing: it was meant to."""
    known = {name: path for path in _server_paths(ServerSettings) for name in [_variable(path)]}
    ours = [name for name in sorted(environment) if name.startswith(ENVIRONMENT_PREFIX)]
    strange = [
        name for name in ours if name not in known and ("__" in name or not _SERVICE_LINK.search(name))
    ]
    if strange:
        raise SettingsError("\n".join(_ask_back(name, known) for name in strange))
    return {
        name: (known[name], parse_document(environment[name], name).tree) for name in ours if name in known
    }


def _server_paths(
    section: type[BaseModel], above: tuple[str, ...] = ("server",)
) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        yield (*above, name)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _server_paths(kind, (*above, name))


def _variable(path: tuple[str, ...]) -> str:
    return ENVIRONMENT_PREFIX + "__".join(path).upper()


def _ask_back(name: str, known: Iterable[str]) -> str:
    place = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
    if place in REMOVED:
        return f"{name}: {place} {REMOVED[place]}"
    [nearest] = get_close_matches(name, known, n=1, cutoff=0)
    return f"{name}: there is no such variable; {nearest} is the nearest"


def _override(tree: dict[str, Any], path: tuple[str, ...], value: Any, name: str) -> None:
    for step in path[:-1]:
        below = tree.get(step)
        if below is not None and not isinstance(below, dict):
            raise SettingsError(f"{name}: {step} is not a mapping in the file")
        tree[step] = tree = below or {}
    tree[path[-1]] = value


def _tell(document: Document, overrides: Overrides, fault: ErrorDetails) -> str:
    """A fault with its place: in the file, or the variable that overrides it."""
    place = tuple(str(step) for step in fault["loc"])
    at = next((name for name, (path, _) in overrides.items() if place[: len(path)] == path), None)
    name = ".".join(step for step in fault["loc"] if isinstance(step, str))
    what = f"{name} {REMOVED[name]}" if name in REMOVED else describe(fault)
    return f"{at or document.at(fault['loc'])}: {what}"
