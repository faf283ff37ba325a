"""The `traffic-shape` of a spec file: how much is asked, when, and of what kind."""

import math
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from extproc.bench.spec.presets import apply_preset
from extproc.bench.spec.section import Component, Rate, Seconds, Section


class Distribution(Section):
    """Lengths in tokens, or times in seconds; a bare number is that number every time.

    `uniform` reads `min` and `max`; `normal` reads `mean` and `std`; `lognormal` reads `mean` (of the
    values, not of their logarithms) and `sigma` (of the logarithms); `exponential` reads `mean`;
    `choice` draws from `values`. `min` and `max` clip the others.
    """

    kind: Literal["fixed", "uniform", "normal", "lognormal", "exponential", "choice"] = "fixed"
    value: float | None = None
    mean: float | None = None
    std: float = 0.0
    sigma: float = 0.0
    min: float = 0.0
    max: float = math.inf
    values: tuple[float, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        return {"kind": "fixed", "value": value} if isinstance(value, int | float) else value

    @model_validator(mode="after")
    def _has_what_it_reads(self) -> Self:
        missing = {
            "fixed": self.value is None,
            "uniform": math.isinf(self.max),
            "choice": not self.values,
        }.get(self.kind, self.mean is None)
        if missing:
            raise ValueError(f"a {self.kind} distribution lacks its parameters")
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Dataset(Component):
    """Where prompts come from, which are kept, and how a conversation becomes requests.

    `turns`: `sessions` sends the turns of a conversation in order, each after the answer to the last;
    `prompts` makes every turn one independent request that carries the recorded history, as KubeAI's
    benchmark does. `replies`: what a session's next turn quotes, the server's `real` answer or the
    `recorded` one. `max_prompts` cuts prompts (KubeAI's `--max-conversations`), `max_conversations`
    cuts conversations; what is kept is taken `repeat` times, then shuffled if `shuffle` says so. Requests
    beyond the last prompt begin again at the first.
    """

    path: Path | None = None
    turns: Literal["sessions", "prompts"] = "sessions"
    replies: Literal["real", "recorded"] = "real"
    min_messages: int = Field(default=0, ge=0)
    min_user_messages: int = Field(default=0, ge=0)
    min_user_characters: int = Field(default=0, ge=0)
    max_prompt_tokens: int | None = Field(default=None, gt=0)
    max_conversations: int | None = Field(default=None, gt=0)
    max_prompts: int | None = Field(default=None, gt=0)
    repeat: int = Field(default=1, gt=0)
    is_shuffled: bool = Field(default=False, alias="shuffle")

    @property
    def is_bounded(self) -> bool:
        return bool(self.path or self.max_conversations or self.max_prompts)


class Spike(Section):
    """A burst on top of the shape: `req_rate` for `burst` seconds, first at `after`, then `every`."""

    burst: Seconds = Field(gt=0)
    req_rate: Rate | None = Field(default=None, gt=0)
    after: Seconds = Field(default=0.0, ge=0)
    every: Seconds | None = Field(default=None, gt=0)


class TrafficShape(Section):
    """How much is asked, when, and of what kind.

    With `req_rate` the loop is open: requests start when the schedule says, however slow the server is;
    `max_concurrency` then holds back what exceeds it (and latency from the intended start shows it).
    Without `req_rate`, or with `vus`, the loop is closed: that many users each wait for an answer and
    `think_time` before they ask again. In sessions `req_rate` counts requests: conversations start at
    `req_rate` divided by the mean number of turns. `arrivals`: `constant` means exactly constant.
    `shape: trace` starts requests when the dataset's trace does. Without `duration` and
    `total_prompts` the dataset is run once. What is still in flight `graceful_stop` after `duration` is
    interrupted, if that is given.
    """

    req_rate: Rate | None = Field(default=None, gt=0)
    arrivals: Literal["constant", "poisson", "gamma"] = "constant"
    burstiness: float = Field(default=1.0, gt=0)
    shape: Component = Component(name="constant")
    traffic_spike: Spike | None = None
    max_concurrency: int | None = Field(default=None, gt=0)
    vus: int | None = Field(default=None, gt=0)
    think_time: Distribution | None = None
    duration: Seconds | None = Field(default=None, gt=0)
    graceful_stop: Seconds | None = Field(default=None, ge=0)
    total_prompts: int | None = Field(default=None, gt=0)
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

    @field_validator("model_type")
    @classmethod
    def _is_a_language_model(cls, value: str) -> str:
        if "diffusion" in value:
            raise ValueError("diffusion models are not supported: only token-generating models are")
        return value

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if not (self.req_rate or self.concurrency or self.shape.name == "trace"):
            raise ValueError("give req-rate (open loop), or max-concurrency or vus (closed loop)")
        if self.req_rate == math.inf and self.total_prompts is None:
            raise ValueError("an infinite req-rate needs total-prompts")
        if not (self.duration or self.total_prompts or self.dataset.is_bounded):
            raise ValueError("give total-prompts, duration or both")
        if self.vus and self.req_rate:
            raise ValueError("vus is a closed loop: it excludes req-rate; use max-concurrency")
        return self

    @property
    def is_closed(self) -> bool:
        return self.req_rate is None and self.shape.name != "trace"

    @property
    def concurrency(self) -> int | None:
        return self.vus or self.max_concurrency
