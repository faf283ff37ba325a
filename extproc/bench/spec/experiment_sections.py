"""The parts of the spec file that describe more than one run: `ab`, `sweep` and `saturate`."""

from pathlib import Path

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from extproc.bench.spec.section import Component, Rate, Seconds, SpecSection, allow_short_form


class Ab(SpecSection):
    """Which strategies are compared, and how one is put in force.

    `arms` are the router's `strategy` sections: a name, or a name with its settings. The arm in force is
    changed by rewriting `settings_file`, which the router watches, or by running `command` with
    `{strategy}` replaced; `pool` is the router's pool that is changed, its first where omitted.
    `admin`: the router's admin `host:port`, several with commas, asked at `/pools` until the change shows at
    every address of every name, `switch_timeout` at most. `flush` lists the endpoints whose prefix cache is
    emptied before each run (`POST /reset_prefix_cache`); the spec's `scrape` list where omitted.

    Each of `repeats` measures every arm once over one schedule, with the spec's seed plus the repeat. `prime`
    seconds of other prompts of the same kind go before each measurement. Arms whose offered loads differ by
    more than `tolerance` are not compared. The others are compared with the arm `baseline`, the first where
    omitted, with intervals of that `confidence`.
    """

    arms: tuple[Component, ...] = tuple(
        Component(name=name) for name in ("round_robin", "least_load", "prefix_hash")
    )
    baseline: str | None = None
    settings_file: Path | None = None
    pool: str | None = None
    command: tuple[str, ...] = ()
    admin: str | None = None
    switch_timeout: Seconds = Field(default=30.0, gt=0)
    flush: tuple[str, ...] | None = None
    prime: Seconds = Field(default=0.0, ge=0)
    repeats: int = Field(default=3, gt=0)
    tolerance: float = Field(default=0.03, gt=0)
    confidence: float = Field(default=0.95, gt=0, lt=1)


class Load(SpecSection):
    """A load of a sweep: `concurrency` in flight, asked at `req_rate`; a number is the first.

    Without a rate, here and in the traffic shape, so many users ask in a closed loop.
    """

    concurrency: int = Field(gt=0)
    req_rate: Rate | None = Field(default=None, gt=0)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return allow_short_form(handler.resolve_ref_schema(handler(schema)), "integer")

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        return {"concurrency": value} if isinstance(value, int) else value


class Sweep(SpecSection):
    """What `sweep` varies besides the arms and repeats of `ab`, by which it is done.

    `concurrency` lists the loads: numbers of requests in flight. `datasets` are traffic shapes by a name of
    your own, each laid over the spec's: what it says itself wins. The spec's alone where there is none.
    """

    concurrency: tuple[Load, ...] = ()
    datasets: dict[str, dict[str, object]] = Field(default_factory=dict)


class Ladder(SpecSection):
    """The rates that `saturate` climbs: from `start` by `factor`, `steps` at most.

    A rung is saturated when less than `served` of the offered rate is served. Then the gap between
    the last good rung and the first saturated one is halved until it is within `precision`.
    """

    start: Rate = Field(default=1.0, gt=0)
    factor: float = Field(default=1.5, gt=1)
    steps: int = Field(default=12, gt=0)
    served: float = Field(default=0.95, gt=0, lt=1)
    precision: float = Field(default=0.1, gt=0)
