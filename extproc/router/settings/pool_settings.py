"""The entries of `pools`: endpoints that serve the same models."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from extproc.router.routing.strategies.base import StrategySettings
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCacheSettings
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.settings.endpoints import EndpointsSettings, PortNumber
from extproc.router.settings.sections import HeaderName, Name, ObjectiveName, Section


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
    """How often each endpoint is scraped, seconds. A hundred of them at this pace take 1 % of a core."""
    events: bool | PortNumber = False
    """Hear the endpoints' KV events, too (extra `events`): a cache that is cleared, or whose engine starts
    again, is forgotten when the engine says so. vLLM 0.32 says at which ports; for older ones give it."""


class HoldSettings(Section):
    """Holding requests until the pool has room for them."""

    wait_s: float = Field(default=30, gt=0, le=600)
    """How long, seconds; then they get the 429 or 503 that was due at once. An Envoy has to wait as long:
    we send it this time, and it accepts up to `max_message_timeout` (605 s in ours)."""
    wait_s_by_objective: dict[ObjectiveName, Annotated[float, Field(gt=0, le=600)]] = Field(default={})
    """How long instead, seconds, by the objective that a request names. Its own `x-llm-d-inference-ttl`, as
    `1500ms`, makes either shorter."""
    requests: int = Field(default=1_000, ge=1, le=100_000)
    """How many at a time, in each of these services; one more is refused. Their bodies may hold half of
    `server.budget_bytes`, those of all pools together."""
    settle_s: float = Field(default=1, ge=0, le=30)
    """How much longer they wait when an empty pool gets its first endpoint, seconds: Envoy must have it,
    too. With clusters by DNS take `dns_refresh_rate`."""


class PoolSettings(Section):
    """Endpoints that serve the same models."""

    name: Name = Field(description="The metrics' label `pool`, the header's value, Envoy's cluster.")
    models: list[str] | None = None
    """Models that requests may name, `*` stands for anything; omitted: any."""
    adapters: list[str] = Field(default=[])
    """LoRA names that every endpoint serves; those of single endpoints are learnt (`learn_models`)."""
    endpoints: EndpointsSettings = Field(description="Where they come from: exactly one of these.")
    strategy: Annotated[StrategySettings, STRATEGIES] = PrefixCacheSettings()
    """How an endpoint is picked; changed live."""
    learn_models: bool = False
    """Ask every endpoint's /v1/models now and then for the models and adapters it serves."""
    when_down: Literal["open", "closed"] | None = None
    """While the service is away Envoy cannot see which pool a request is for. `open`: this pool takes all
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
    themselves: a client that changes its id gets a new share."""
    hold: HoldSettings | None = None
    """Hold requests of a full pool (`max_in_flight`), or of one without a ready endpoint, until there is
    room; `{}` for the defaults. Omitted: they are refused at once."""
    salt_header: HeaderName | None = None
    """A request header that names the tenant, written by the gateway and not by clients, as `x-tenant`: what
    one tenant sent draws no request of another, so none can probe others' prompts. Omitted: all share."""
    cool_after: int | None = Field(default=3, ge=1)
    """Failures in a row (5xx, no connection, no first byte) after which an endpoint gets no picks for a
    while; null: never. Needs an access log or response headers from the gateway."""
    probe: ProbeSettings | Literal[False] | None = None
    """Ask the endpoints for their health; false: never. Omitted: for lists that say nothing of it (static,
    file, dns), not for Kubernetes and InferencePools."""
    signals: SignalsSettings | Literal[False] | None = None
    """Read the endpoints' metrics: how large their caches are, what is found there, how many requests wait;
    false: never. Omitted: for the strategies that use them (`prefix_cache`)."""
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
