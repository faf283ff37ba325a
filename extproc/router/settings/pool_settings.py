"""The entries of `pools`: endpoints that serve the same models."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from extproc.errors import SettingsError
from extproc.router.routing.strategies.base import StrategySettings
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCacheSettings
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.settings.endpoints import EndpointsSettings, PortNumber
from extproc.router.settings.sections import (
    HeaderName,
    Name,
    ObjectiveName,
    SecretSettings,
    Section,
)

# What the pool of a pool's prefill endpoints is called behind the other's name.
_STAGE: Final = "/prefill"

# As Kubernetes names labels.
_LABEL: Final = (
    r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
)
# Nothing in a key can begin another header.
_KEY: Final = re.compile(rb"[!-~]{1,4096}")


class ProbeSettings(Section):
    """Asking each endpoint for its health."""

    path: str = Field(default="/health", pattern=r"^/[^\s#]*$")
    """Path of the GET request. Any answer below 500 is healthy."""
    timeout_s: float = Field(default=3, gt=0)
    """How long an answer may take, seconds."""
    interval_s: float = Field(default=5, ge=0.1)
    """How often each endpoint is probed, seconds. Three failures in a row make it unhealthy, one good answer
    healthy."""


class SignalsSettings(Section):
    """Asking each endpoint for its metrics (vLLM's `/metrics`)."""

    scrape_s: float = Field(default=15, ge=0.5, le=300)
    """How often each endpoint is asked, seconds. With the default, 100 endpoints take 1 % of a core."""
    events: bool | PortNumber = False
    """Read the endpoints' KV events, too. Then we know at once that a cache was cleared or an engine
    restarted. vLLM 0.32 tells us its ports. For older ones write the port here."""


class HoldSettings(Section):
    """Holding requests until the pool has room for them."""

    wait_s: float = Field(default=30, gt=0, le=600)
    """How long a request waits at most, seconds. Then it gets its 429 or 503. Envoy must wait as long: we
    send it this time, and it accepts up to `max_message_timeout` (605 s in our files)."""
    wait_s_by_objective: dict[ObjectiveName, Annotated[float, Field(gt=0, le=600)]] = Field(
        default={}
    )
    """Other times than `wait_s`, seconds, by the objective that a request names. Its own header
    `x-llm-d-inference-ttl` (such as `1500ms`) makes the time shorter."""
    requests: int = Field(default=1_000, ge=1, le=100_000)
    """How many requests may wait in each replica. One more is refused. The waiting bodies of all pools
    together may take half of `server.budget_bytes`."""
    settle_s: float = Field(default=1, ge=0, le=30)
    """How much longer they wait when an empty pool gets its first endpoint, seconds: until Envoy knows it,
    too. If Envoy gets endpoints by DNS, take its `dns_refresh_rate`."""


class ShadowSettings(Section):
    """Comparing what happens to a pool's requests with what another rule would make of them."""

    deferred_close_s: float = Field(default=1, ge=0, le=60)
    """The `deferred_close_timeout` of Envoy's filter in `observability_mode`, seconds: so much later it tells of a
    request's end. Envoy's own default is 5 s, that of our files 1 s."""


class PrefillSettings(Section):
    """Endpoints that compute prompts for those of the pool, behind llm-d's routing sidecar."""

    endpoints: EndpointsSettings = Field(
        description="Where they come from, as `endpoints`. They need no sidecar."
    )
    kv_bytes_per_token: int = Field(default=131_072, ge=64, le=16_777_216)
    """Bytes of a token in the KV cache, all GPUs of an engine together. The default is that of Llama 3.1 8B in
    16 bits; 70B has 327,680."""
    gbit_per_s: float = Field(default=100, gt=0, le=100_000)
    """What the network between the engines carries, Gbit/s: of one transfer."""
    fallbacks: int = Field(default=0, ge=0, le=4)
    """How many further prefill endpoints the header names. The sidecar takes the first, or with
    `--enable-prefiller-sampling` any."""
    match_label: str | None = Field(default=None, pattern=_LABEL)
    """A Pod label: only endpoints with equal values of it, or without it, compute for each other. For InferencePools,
    while Pods are renewed whose KV layouts differ. Omitted: all do."""


class RecordSettings(Section):
    """Writing a trace of the pool's requests: times, lengths and hashes, and no text."""

    file: str = Field(min_length=1)
    """The file, one for each pool. A relative path starts from the configuration's folder. A start, and a full
    file, begins a new one; the one before is kept as `FILE.1`. Each has a key for its hashes, which is
    written nowhere."""
    share: float = Field(default=0.1, gt=0, le=1)
    """The share of conversations that are written, each with all its turns."""
    limit_mb: int = Field(default=64, ge=1, le=100_000)
    """The size at which a new file begins, megabytes. So two files take twice that at most."""


class PoolSettings(Section):
    """Endpoints that serve the same models."""

    name: Name = Field(
        description="The pool's name: also in metrics, in `x-extproc-pool`, in Envoy."
    )
    models: list[str] | None = None
    """Models that requests may name; `*` stands for any text. Omitted: any model."""
    adapters: list[str] = Field(default=[])
    """LoRA adapters that every endpoint serves. To find those of single endpoints, set `learn_models`."""
    endpoints: EndpointsSettings = Field(
        description="Where the endpoints come from: exactly one of these."
    )
    strategy: Annotated[StrategySettings, STRATEGIES] = PrefixCacheSettings()
    """How an endpoint is picked. A change needs no restart."""
    learn_models: bool = False
    """Ask every endpoint now and then (/v1/models) which models and adapters it serves."""
    engine_key: SecretSettings | None = None
    """Where the key is that the engines demand (`vllm serve --api-key`). All that we ask of them ourselves has
    it: health, models, metrics. Clients send their own. A file is read again when it changes; then what
    was found by asking is asked anew. Omitted: we send none."""
    when_down: Literal["open", "closed"] | None = None
    """While the service is away, Envoy cannot see which pool a request is for. `open`: this pool gets all of
    them, without affinity. `closed`: this pool gets none. If no pool is open, they get 503.
    Omitted: a single pool is open, one of several is closed. It works with `server.xds`. Without,
    Envoy's routes decide."""
    fallbacks: int = Field(default=0, ge=0, le=4)
    """How many further endpoints we name after the pick, for the gateway's retries. The default is 0, because
    some gateways fail on a list of addresses. Set 2 for plain Envoy, Istio and Envoy Gateway."""
    max_in_flight: int | None = Field(default=None, ge=1)
    """Mean requests in flight per endpoint at which the pool is full and answers 429. Omitted: never."""
    objectives: dict[ObjectiveName, int] = Field(default={})
    """Priorities by the name in a request's header `x-gateway-inference-objective` (or `x-llm-d-…`). Other
    names have 0. A full pool refuses negative ones, and lets higher ones in, up to a quarter beyond
    its limit. InferenceObjectives of the InferencePool count, too; a name that is here wins."""
    fairness: bool = False
    """Share a full pool among clients: it refuses a client that has its share or more, and lets others in, up
    to a quarter beyond its limit. The header `x-gateway-inference-fairness-id` (or `x-llm-d-…`)
    names the client. Your gateway has to write it: a client that changes its id gets a new
    share."""
    hold: HoldSettings | None = None
    """Let requests wait while the pool is full (`max_in_flight`) or has no ready endpoint. `{}` takes the
    defaults. Omitted: such requests are refused at once."""
    shadow: ShadowSettings | None = None
    """Watch the requests that an Envoy filter in `observability_mode` shows, and foretell what routing them would
    save. Where the pool routes, tell what it saves against least load. For `prefix_cache`. `{}` takes the
    defaults. Omitted: such requests are ignored."""
    prefill: PrefillSettings | None = None
    """Other endpoints that compute a prompt where that is sooner than at the endpoint that answers. Each
    endpoint of the pool then needs llm-d's routing sidecar. For `prefix_cache`. Omitted: each computes its
    own prompts."""
    lint: bool = False
    """Keep heads of prompts in memory, to say where prompts part that begin alike: every 50th request's, 64
    of 32 kB at most, each for ten minutes. No text is told. Off by default, since nothing else keeps
    prompts."""
    record: RecordSettings | None = None
    """Write a trace that `extproc simulate advise` reads. Omitted: none is written."""
    salt_header: HeaderName | None = None
    """A request header that names the tenant, such as `x-tenant`. Your gateway has to write it. No request
    then follows another tenant's prompt, so nobody can find out others' prompts. Omitted: all
    share."""
    cool_after: int | None = Field(default=3, ge=1)
    """After this many failures in a row (5xx, no connection, no first byte) an endpoint gets no picks for a
    while; null: never. The gateway has to send its access log or response headers."""
    probe: ProbeSettings | Literal[False] | None = None
    """Ask the endpoints for their health; false: never. Omitted: yes for static, file and dns, no for
    Kubernetes and InferencePools, which know it."""
    signals: SignalsSettings | Literal[False] | None = None
    """Read the endpoints' metrics: the sizes of their caches, the hits in them, how many requests wait;
    false: never. Omitted: yes for a strategy that uses them (`prefix_cache`)."""
    stale_after_s: float | None = Field(default=None, gt=0)
    """If the endpoint list was not confirmed for so many seconds, the pool is not ready. Omitted: if its
    source was silent for 300 s. The service is ready while one pool is. Take more than the time in
    which a source confirms its list: 5 s for static and file, 30 s for DNS, 100 s for the
    others."""

    @field_validator("models")
    @classmethod
    def _is_not_empty(cls, models: list[str] | None) -> list[str] | None:
        if models == []:
            raise ValueError("an empty list serves no request; leave it out to serve any model")
        return models

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.max_in_flight is None and (self.objectives or self.fairness):
            raise ValueError(
                "objectives and fairness need max_in_flight: without it nobody is refused"
            )
        return self

    @model_validator(mode="after")
    def _has_a_picture(self) -> Self:
        for name in ("shadow", "prefill"):
            if getattr(self, name) is not None and not isinstance(
                self.strategy, PrefixCacheSettings
            ):
                raise ValueError(
                    f"{name} compares by prefix_cache: the pool's strategy must be that one"
                )
        return self

    @model_validator(mode="after")
    def _is_seen_whole(self) -> Self:
        if self.shadow is not None and self.prefill is not None:
            raise ValueError(
                "shadow pictures endpoints that compute their own prompts: leave out one of shadow and prefill"
            )
        return self

    @model_validator(mode="after")
    def _has_labels(self) -> Self:
        both = (self.endpoints, self.prefill.endpoints) if self.prefill is not None else ()
        if self.match_label is not None and any(each.inference_pool is None for each in both):
            raise ValueError(
                "prefill.match_label reads Pods' labels: both endpoints must be of an inference_pool"
            )
        return self

    @property
    def only_prefills(self) -> bool:
        """Whether these are the settings of another pool's prefill endpoints, by `stage`."""
        return self.name.endswith(_STAGE)

    @property
    def match_label(self) -> str | None:
        """The Pod label that says whose prompts an endpoint may compute; `None`: anybody's."""
        return None if self.prefill is None else self.prefill.match_label

    def stage(self) -> Self | None:
        """The settings of the prefill endpoints as a pool of their own, to which no model leads.

        No name that is given has a slash.
        """
        if self.prefill is None or self.only_prefills:
            return None
        return self.model_copy(
            update={
                "name": f"{self.name}{_STAGE}",
                "endpoints": self.prefill.endpoints,
                "fallbacks": self.prefill.fallbacks,
                "strategy": self.strategy.model_copy(update={"shed_cold": False}),
                "max_in_flight": None,
                "lint": False,
                **dict.fromkeys(("hold", "record", "shadow")),
            }
        )

    def engine_headers(self, base: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the header with the engines' key, none without one. Raises `SettingsError`."""
        if self.engine_key is None:
            return {}
        place = f"engine_key of the pool {self.name}"
        key = self.engine_key.read(base, environment, place)
        if not _KEY.fullmatch(key):
            raise SettingsError(f"{place}: a key is printable ASCII without spaces")
        return {"Authorization": f"Bearer {key.decode()}"}
