"""The state of the service at one moment, as the live page reads it in JSON.

A state stands alone, so a viewer may miss one. With a thousand endpoints it has 75 kB; rows have
their fields in order and not by name.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from extproc.router.shadow.forecast import Forecast


class EndpointRow(Struct, frozen=True, array_like=True):
    """One endpoint. Shares are between 0 and 1, `None` without a figure.

    `elsewhere` of those in flight are other gateways'. `share` is of the pool's picks. `left_s` is
    how long it is left alone yet. `predicted` is how much of its prompts it was believed to hold,
    `found` how much it found, as it says. `events`: how its KV events come, and why not.
    """

    name: str
    address: str
    state: str
    in_flight: int
    share: float | None
    left_s: float | None
    first_token_s: float | None
    predicted: float | None
    found: float | None
    zone: str | None
    elsewhere: int = 0
    events: str | None = None


class DecisionRow(Struct, frozen=True, array_like=True):
    """One decision, the `number`th since somebody looks; `prefix` is its hash."""

    number: int
    age_s: float
    pool: str
    reason: str
    endpoint: str
    prefix: str | None


class PoolState(Struct, frozen=True):
    """One pool. `balance` is the most in flight on one ready endpoint over the mean.

    `bound` is with how many requests in flight an endpoint is full, by the strategy; `saved_s` the
    engines' time for tokens believed to be cached, of all requests. `forecast`: what routing saves,
    or would, where the pool has a `shadow`. `model`: one that it serves.
    `lint` says where its prompts part, where the pool has it set.
    """

    name: str
    strategy: str
    age_s: float | None
    fault: str | None
    in_flight: int
    max_in_flight: int | None
    bound: int | None
    balance: float | None
    picks: int
    states: Mapping[str, int]
    saved_s: float | None
    forecast: Forecast | None = None
    model: str | None = None
    lint: Sequence[str] | None = None
    first_token_s: float | None = None
    predicted: float | None = None
    found: float | None = None
    endpoints: Sequence[EndpointRow] = ()


class RefusalState(Struct, frozen=True):
    """A changed configuration that was not taken."""

    age_s: float
    why: str


class ConfigurationState(Struct, frozen=True):
    """Where the settings in force came from; the `number`th since the start."""

    where: str
    number: int
    age_s: float
    refusal: RefusalState | None


Reasons = Mapping[str, Mapping[str, int]]
"""How often was picked and refused, by pool and reason."""


class State(Struct, frozen=True):
    """The service. `reasons` count since somebody looks; one a second, by `number`.

    Figures of "now" are of the last minute; where nothing was counted in it, of all the time
    before.
    """

    number: int
    version: str
    is_ready: bool
    faults: Sequence[str]
    remarks: Sequence[str]
    configuration: ConfigurationState
    reasons: Reasons
    decisions: Sequence[DecisionRow]
    pools: Sequence[PoolState] = ()
