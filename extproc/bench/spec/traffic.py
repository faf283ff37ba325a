"""The `traffic-shape` of a spec file: how many requests, when, and of what kind."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from extproc.bench.spec.presets import apply_preset
from extproc.bench.spec.section import Component, Rate, Seconds, SpecSection, allow_short_form

_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_READ: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fixed": ("value",),
        "uniform": (),
        "normal": ("mean", "std"),
        "lognormal": ("mean", "sigma"),
        "exponential": ("mean",),
        "choice": ("values",),
    }
)


class Distribution(SpecSection):
    """Lengths in tokens, or times in seconds; a bare number is that number every time.

    `uniform` reads `min` and `max`; `normal` reads `mean` and `std`; `lognormal` reads `mean` (of
    the values, not of their logarithms) and `sigma` (of the logarithms); `exponential` reads
    `mean`; `choice` draws from `values`; `fixed` is `value`. `min` and `max` clip the others.
    `kind` is one of these.
    """

    kind: Literal["fixed", "uniform", "normal", "lognormal", "exponential", "choice"] = "fixed"
    value: _Amount | None = None
    mean: _Amount | None = None
    std: _Amount = 0.0
    sigma: _Amount = 0.0
    min: _Amount = 0.0
    max: float = math.inf
    values: tuple[_Amount, ...] = ()

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler.resolve_ref_schema(handler(schema))
        # JSON has no infinity to give as a default.
        found["properties"]["max"].pop("default")
        return allow_short_form(found, "number")

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"kind": "fixed", "value": value} if is_number else value

    @model_validator(mode="after")
    def _says_nothing_that_is_not_read(self) -> Self:
        given = set(self.model_dump(exclude_defaults=True))
        if unread := given - {"kind", "min", "max", *_READ[self.kind]}:
            raise ValueError(
                f"a {self.kind} distribution does not read {', '.join(sorted(unread))}"
            )
        return self

    @model_validator(mode="after")
    def _has_what_it_reads(self) -> Self:
        missing = {
            "fixed": self.value is None,
            "uniform": math.isinf(self.max),
            "choice": not self.values,
        }.get(self.kind, self.mean is None)
        if missing:
            raise ValueError(f"a {self.kind} distribution lacks its parameters")
        if self.kind == "lognormal" and not self.mean:
            raise ValueError("the mean of a lognormal distribution is above 0")
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Dataset(Component):
    """Where prompts come from, which are kept, and how a conversation becomes requests.

    `name` is a generator's, or a reader's of the local file at `path`. `turns`: `sessions` sends
    the turns of a conversation in order, each after the answer to the last; `prompts` makes every
    turn one independent request that carries the recorded history, as KubeAI's benchmark does;
    omitted, it is `prompts` where `input_length` is given, else `sessions`. `replies`: what a
    session's next turn quotes, the server's `real` answer or the `recorded` one. `max_prompts` cuts
    prompts (KubeAI's `--max-conversations`), `max_conversations` cuts conversations; what is kept
    is put into a random order if `shuffle` says so, then gone through `repeat` times in that order.
    Requests beyond the last prompt begin again at the first. Conversations are kept that have
    `min_messages` messages, `min_user_messages` of them users', `min_user_characters` characters in
    these; and prompts of at most `max_prompt_tokens` tokens. Four tokens made from `salt` stand
    before every prompt: caches that another salt has filled hold none of them.
    """

    path: Path | None = None
    turns: Literal["sessions", "prompts"] | None = None
    replies: Literal["real", "recorded"] = "real"
    min_messages: int = Field(default=0, ge=0)
    min_user_messages: int = Field(default=0, ge=0)
    min_user_characters: int = Field(default=0, ge=0)
    max_prompt_tokens: int | None = Field(default=None, gt=0)
    max_conversations: int | None = Field(default=None, gt=0)
    max_prompts: int | None = Field(default=None, gt=0)
    repeat: int = Field(default=1, gt=0)
    is_shuffled: bool = Field(default=False, alias="shuffle")
    salt: str = ""

    @property
    def is_bounded(self) -> bool:
        return bool(self.path or self.max_conversations or self.max_prompts)


class Spike(SpecSection):
    """A burst on top of the shape: `req_rate` for `burst` seconds, first at `after`, then `every`."""

    burst: Seconds = Field(gt=0)
    req_rate: Rate | None = Field(default=None, gt=0)
    after: Seconds = Field(default=0.0, ge=0)
    every: Seconds | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _ends_before_the_next(self) -> Self:
        if self.every is not None and self.every <= self.burst:
            raise ValueError(f"a burst of {self.burst:g} s every {self.every:g} s never ends")
        return self

    def covers(self, end_s: float) -> bool:
        """Whether nothing of `[0, end_s)` is without it."""
        return self.after == 0 and self.burst >= end_s


class Step(SpecSection):
    """One rate for one stretch of time; 0 is a pause."""

    req_rate: Rate = Field(ge=0)
    duration: Seconds = Field(gt=0)


class StepsOptions(SpecSection):
    """`steps`: one rate after another; the last one stays."""

    steps: tuple[Step, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ends_with_requests(self) -> Self:
        if not self.steps[-1].req_rate:
            raise ValueError("the last step stays: it is no pause")
        return self


class UserStage(SpecSection):
    """So many users for one stretch of time; 0 is a pause."""

    vus: int = Field(ge=0)
    duration: Seconds = Field(gt=0)


class TrafficShape(SpecSection):
    """How many requests, when, and of what kind.

    With `req_rate` the loop is open: requests start when the schedule says, however slow the server
    is; `max_concurrency` then holds back what exceeds it (and latency from the intended start shows
    it). Without `req_rate`, or with `vus`, the loop is closed: that many users each wait for an
    answer and `think_time` before they ask again. `stages` are such users in steps, one number
    after another; who leaves finishes the conversation that it is in. In sessions `req_rate` counts requests:
    conversations start at `req_rate` divided by the mean number of turns. `arrivals`: `constant`
    means exactly constant, `poisson` at random, `gamma` with `burstiness` (below 1 is burstier than
    at random). `shape` is how the rate goes over time: `constant`, `ramp`, `steps`, `trace`, with
    options. `shape: trace` starts requests when the dataset's trace does. Without `duration` and
    `total_prompts` the dataset is run once. `total_conversations` ends a run after so many (k6's
    iterations). What is still in flight `graceful_stop` after `duration` is interrupted, if that is
    given; until then users go on with the conversation that they are in. `warm_up` at the start and
    `cool_down` at the end are sent and not measured. `input_length` and `max_output_length` are of
    each prompt and answer, in tokens; omitted, the dataset says. `traffic_spike` comes on top.
    `dataset` has the prompts. `preset` fills in the fields of a known benchmark that are not given.
    `model_type` is a language model's.
    """

    req_rate: Rate | None = Field(default=None, gt=0)
    arrivals: Literal["constant", "poisson", "gamma"] = "constant"
    burstiness: float = Field(default=1.0, gt=0)
    shape: Component = Component(name="constant")
    traffic_spike: Spike | None = None
    max_concurrency: int | None = Field(default=None, gt=0)
    vus: int | None = Field(default=None, gt=0)
    stages: tuple[UserStage, ...] = ()
    think_time: Distribution | None = None
    duration: Seconds | None = Field(default=None, gt=0)
    graceful_stop: Seconds | None = Field(default=None, ge=0)
    total_prompts: int | None = Field(default=None, gt=0)
    total_conversations: int | None = Field(default=None, gt=0)
    warm_up: Seconds = Field(default=0.0, ge=0)
    cool_down: Seconds = Field(default=0.0, ge=0)
    model_type: str = "instruction-tuned-llm"
    preset: str | None = None
    dataset: Dataset = Dataset(name="synthetic")
    input_length: Distribution | None = None
    max_output_length: Distribution | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, value: object) -> object:
        return apply_preset(value) if isinstance(value, dict) else value

    @model_validator(mode="before")
    @classmethod
    def _lasts_as_long_as_its_stages(cls, value: object) -> object:
        if not isinstance(value, dict) or not value.get("stages") or "duration" in value:
            return value
        stages = [UserStage.model_validate(stage) for stage in value["stages"]]
        return {**value, "duration": sum(stage.duration for stage in stages)}

    @model_validator(mode="before")
    @classmethod
    def _has_the_rate_of_its_first_step(cls, value: object) -> object:
        shape = value.get("shape") if isinstance(value, dict) else None
        if not isinstance(shape, dict) or "steps" not in shape:
            return value
        if not isinstance(value, dict) or {"req_rate", "req-rate", "vus"} & value.keys():
            return value
        rates = (Step.model_validate(step).req_rate for step in shape["steps"])
        return {"req_rate": next(filter(None, rates), None), **value}

    @field_validator("model_type")
    @classmethod
    def _is_a_language_model(cls, value: str) -> str:
        if "diffusion" in value:
            raise ValueError("diffusion models are not supported: only token-generating models are")
        if value.replace("_", "-") != "instruction-tuned-llm":
            raise ValueError(f"{value!r} is not known: instruction-tuned-llm is the one there is")
        return value

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if not (self.req_rate or self.concurrency or self.shape.name == "trace"):
            raise ValueError(
                "give req-rate (open loop), or max-concurrency, vus or stages (closed loop)"
            )
        if self.req_rate == math.inf and self.total_prompts is None:
            raise ValueError("an infinite req-rate needs total-prompts")
        counted = self.total_prompts or self.total_conversations
        if not (self.duration or counted or self.dataset.is_bounded):
            raise ValueError("give total-prompts, duration or both")
        return self

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        """Refuses what would be read by nobody, or cannot be what was meant."""
        for fault in (*self._find_idle_fields(), *self._find_odd_spikes()):
            raise ValueError(fault)
        return self

    def _find_idle_fields(self) -> Iterator[str]:
        if self.vus and self.req_rate:
            yield "vus is a closed loop: it excludes req-rate; use max-concurrency"
        if self.vus and self.max_concurrency:
            yield "vus is the concurrency of a closed loop: leave out max-concurrency"
        if self.stages and (self.req_rate or self.max_concurrency or self.vus):
            yield "stages are the users of a closed loop: leave out req-rate, max-concurrency and vus"
        if self.stages and self.duration != (lasting_s := sum(one.duration for one in self.stages)):
            yield f"stages last {lasting_s:g} s together: leave out duration"
        if idle := self._list_idle():
            why = "all requests start at once" if self.req_rate else "a closed loop has no schedule"
            if self.shape.name == "trace":
                why = "shape trace starts requests at the trace's own times"
            hint = "; users have stages" if self.is_closed else ""
            yield f"{why}, so that {', '.join(idle)} would do nothing{hint}"
        if self.burstiness != 1 and self.arrivals != "gamma":
            yield "burstiness is read with `arrivals: gamma` only"
        if self.graceful_stop is not None and self.duration is None:
            yield "graceful-stop counts from the end of duration, which is not given"
        if self.input_length is not None and self.dataset.turns == "sessions":
            yield (
                "input-length is the length of a prompt, which grows from turn to turn of a session: "
                "give `turns: prompts`, or the lengths of questions and replies in dataset"
            )

    def _list_idle(self) -> list[str]:
        """The fields of a schedule that are given where there is no schedule of ours."""
        if self.req_rate is not None and self.req_rate < math.inf and self.shape.name != "trace":
            return []
        given = {
            "shape": self.shape.name not in {"constant", "trace"},
            "traffic-spike": self.traffic_spike is not None,
            "arrivals": self.arrivals != "constant",
            "req-rate": self.shape.name == "trace" and self.req_rate is not None,
        }
        return [name for name, is_given in given.items() if is_given]

    def _find_odd_spikes(self) -> Iterator[str]:
        spike, end_s = self.traffic_spike, self.duration
        if spike is None:
            return
        if (
            spike.req_rate is not None
            and self.req_rate is not None
            and spike.req_rate <= self.req_rate
        ):
            yield f"traffic-spike: {spike.req_rate:g} req/s is no spike above req-rate {self.req_rate:g}"
        if end_s is not None and spike.after >= end_s:
            yield f"traffic-spike: it begins after {spike.after:g} s, the run ends after {end_s:g} s"
        if end_s is not None and spike.covers(end_s):
            yield f"traffic-spike: it lasts the whole run of {end_s:g} s; give req-rate instead"

    @property
    def turns(self) -> Literal["sessions", "prompts"]:
        return self.dataset.turns or ("sessions" if self.input_length is None else "prompts")

    @property
    def is_queued(self) -> bool:
        """Whether a cap, or an infinite rate, turns the schedule into a queue."""
        rate = self.req_rate
        return rate is not None and (self.max_concurrency is not None or math.isinf(rate))

    @property
    def is_closed(self) -> bool:
        return self.req_rate is None and self.shape.name != "trace"

    @property
    def concurrency(self) -> int | None:
        """The most requests in flight."""
        return (
            self.vus or self.max_concurrency or max((one.vus for one in self.stages), default=None)
        )

    def find_stay(self, user: int, at_s: float) -> float | None:
        """When a user of a closed loop, counted from 0, is there: from `at_s` on first; `None`: no more."""
        if not self.stages:
            return at_s if self.duration is None or at_s < self.duration else None
        end_s = 0.0
        for stage in self.stages:
            start_s, end_s = end_s, end_s + stage.duration
            if user < stage.vus and at_s < end_s:
                return max(at_s, start_s)
        return None
