"""The spec file of a benchmark, as one strict tree.

Field names are those of the proposed Kubernetes resource, in its spelling (`traffic-shape`, `req-rate`)
or with underscores; the whole resource (`metadata` and `spec`) is accepted, too.
"""

import math
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from extproc.bench.spec.experiments import Ab, Ladder
from extproc.bench.spec.presets import apply_preset
from extproc.bench.spec.section import Component, Section, list_faults
from extproc.bench.spec.units import Rate, Seconds
from extproc.errors import SettingsError


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


class Slo(Section):
    """What counts as good for goodput, in milliseconds; `None` sets no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None


class Performance(Section):
    """The `performance` part of the resource."""

    traffic_shape: TrafficShape
    slo: Slo = Slo()


class Limits(Section):
    """When the client, not the server, is what was measured.

    `lag_p99`: between a request being due and the client taking it up. `loop_lag_p99`: of the event
    loop. `cpu`: share of one core per load process. `achieved`: started per offered request rate.
    `in_flight`: mean in flight over what an on-time client would have had. `cap_full`: share of time
    above which a rate with a cap reads as a closed loop; `littles_residual`: above which the window
    is not steady (these two are remarks, not faults).
    """

    lag_p99: Seconds = 0.05
    loop_lag_p99: Seconds = 0.05
    cpu: float = 0.9
    achieved: float = 0.97
    in_flight: float = 0.8
    cap_full: float = 0.05
    littles_residual: float = 0.1


class Target(Section):
    """How to speak to the server.

    `api` names a request processor; its options are the processor's fields. `api_key_env` names the
    environment variable with the key. An `https` endpoint is verified: `SSL_CERT_FILE` in the environment
    names an authority of your own.
    `endpoint_header` is the response header that tells who served; `tokenizer` a local
    `tokenizer.json` for servers that report no usage.
    """

    api: Component = Component(name="openai-chat")
    model: str | None = None
    path: str | None = None
    is_streaming: bool = Field(default=True, alias="stream")
    headers: dict[str, str] = Field(default_factory=dict)
    body: dict[str, object] = Field(default_factory=dict)
    api_key_env: str | None = None
    endpoint_header: str = "x-served-by"
    tokenizer: Path | None = None
    timeout: Seconds = Field(default=600.0, gt=0)


class Spec(Section):
    """A whole benchmark. `scrape` lists `ip:port` whose `/metrics` hold prefix-cache counters."""

    name: str = "benchmark"
    endpoint: str
    port: int | None = Field(default=None, gt=0, lt=65536)
    target: Target = Target()
    performance: Performance
    scrape: tuple[str, ...] = ()
    seed: int = Field(default=0, ge=0)
    processes: int = Field(default=1, gt=0)
    limits: Limits = Limits()
    plugins: tuple[str, ...] = ()
    ab: Ab = Ab()
    saturate: Ladder = Ladder()

    @model_validator(mode="before")
    @classmethod
    def _from_resource(cls, value: object) -> object:
        if not isinstance(value, dict) or not isinstance(value.get("spec"), dict):
            return value
        metadata = value.get("metadata") or {}
        return {"name": metadata.get("name", "benchmark"), **value["spec"]}

    @property
    def traffic(self) -> TrafficShape:
        return self.performance.traffic_shape

    @property
    def base_url(self) -> str:
        """The server's URL without a trailing slash; `http` unless `endpoint` says otherwise."""
        url = urlsplit(self.endpoint if "://" in self.endpoint else f"http://{self.endpoint}")
        host = url.netloc if self.port is None else f"{url.netloc}:{self.port}"
        return f"{url.scheme}://{host}{url.path.rstrip('/')}"


def parse_spec(text: str) -> Spec:
    """Reads a YAML or JSON spec; raises `SettingsError` that lists every fault and where it is."""
    try:
        return Spec.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise SettingsError(f"not YAML: {error}") from None
    except ValidationError as error:
        raise SettingsError(list_faults(error)) from None
