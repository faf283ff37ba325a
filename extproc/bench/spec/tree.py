"""The spec file of a benchmark, as one strict tree.

Field names are those of the proposed Kubernetes resource, in its spelling (`traffic-shape`,
`req-rate`) or with underscores; the whole resource (`metadata` and `spec`) is accepted, too.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, urlsplit

import yaml
from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from extproc.bench.spec.inference_perf import is_inference_perf, translate
from extproc.bench.spec.section import Component, Rate, Seconds, SpecSection, allow_short_form
from extproc.bench.spec.thresholds import Threshold
from extproc.bench.spec.traffic import TrafficShape
from extproc.documents import (
    Document,
    PlacedText,
    list_places,
    parse_document,
    read_document,
    refuse_faults,
)


class Ab(SpecSection):
    """Which strategies are compared, and how one is put in force.

    `arms` are the router's `strategy` sections: a name, or a name with its settings; with `urls`
    these servers are compared instead, nothing is switched. The arm in force is changed by
    rewriting `settings_file`, which the router watches, or by running `command` with `{strategy}`
    replaced; `pool` is the router's pool that is changed, its first where omitted. `admin`: the
    router's admin `host:port`, several with commas, whose `/pools` is read until the change shows
    at every address of every name, `switch_timeout` at most. `flush` lists the endpoints whose
    prefix cache is emptied before each run (`POST /reset_prefix_cache`); the spec's `scrape` list
    where omitted.

    Each of `repeats` measures every arm once over one schedule, with the spec's seed plus the
    repeat. `prime` seconds of other prompts of the same kind go before each measurement. Arms whose
    offered loads differ by more than `tolerance` are not compared. The others are compared with the
    arm `baseline`, the first where omitted, with intervals of that `confidence`.
    """

    arms: tuple[Component, ...] = tuple(
        Component(name=name)
        for name in ("round_robin", "least_load", "prefix_hash", "prefix_cache")
    )
    urls: tuple[str, ...] = ()
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

    @model_validator(mode="before")
    @classmethod
    def _compare_urls(cls, value: object) -> object:
        urls = value.get("urls") if isinstance(value, dict) else None
        return {**value, "arms": urls} if isinstance(value, dict) and urls else value


class Load(SpecSection):
    """A load of a sweep: `concurrency` in flight, sent at `req_rate`; a number is the first.

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

    `concurrency` lists the loads: numbers of requests in flight. `datasets` are traffic shapes by a
    name of your own, each laid over the spec's: what it says itself wins. The spec's alone where
    there is none.
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


class Slo(SpecSection):
    """What counts as good for goodput, in milliseconds; what is omitted sets no limit.

    `ttft_ms`: to the first token, from when the request was due. `tpot_ms`: for each token after
    it. `itl_ms`: between chunks, the mean of a request. `e2e_ms`: to the last byte.
    """

    ttft_ms: float | None = Field(default=None, gt=0)
    tpot_ms: float | None = Field(default=None, gt=0)
    itl_ms: float | None = Field(default=None, gt=0)
    e2e_ms: float | None = Field(default=None, gt=0)


class Performance(SpecSection):
    """What load is offered, and which answers count as good.

    `traffic_shape` is the load; `slo` is what an answer has to keep.
    """

    traffic_shape: TrafficShape
    slo: Slo = Slo()


class Limits(SpecSection):
    """When a run is no measurement: requests failed, or the client, not the server, is what was measured.

    `errors`: the share of requests that may fail. `requests`: how many must be measured; of fewer
    than 30 values no report has a p99. `lag_p99`: between a request being due and the
    client taking it up. `loop_lag_p99`: of the event loop. `cpu`: share of one core per load
    process. `achieved`: started per offered request rate. `in_flight`: mean in flight over what an
    on-time client would have had. `cap_full`: share of time above which a rate with a cap reads as
    a closed loop; `littles_residual`: above which the window is not steady; `latencies`: how many
    mean latencies the window should last (these three are remarks, not faults).
    """

    errors: float = Field(default=0.01, ge=0, le=1)
    requests: int = Field(default=30, ge=1)
    lag_p99: Seconds = Field(default=0.05, ge=0)
    loop_lag_p99: Seconds = Field(default=0.05, ge=0)
    cpu: float = Field(default=0.9, gt=0)
    achieved: float = Field(default=0.97, ge=0)
    in_flight: float = Field(default=0.8, ge=0)
    cap_full: float = Field(default=0.05, ge=0)
    littles_residual: float = Field(default=0.1, ge=0)
    latencies: float = Field(default=5.0, ge=0)


class Target(SpecSection):
    """How to speak to the server.

    `api` names a request processor; its options are the processor's fields. `model` is the model
    that is asked for; omitted, the first that the server lists. `path` replaces the API's own.
    `stream`: whether answers come in pieces, without which there is no time to first token.
    `headers` and `body` are added to every request; `timeout` is how long an answer may take.
    `api_key_env` names the environment variable with the key. A bearer token that changes comes
    from `token_file`, read anew every `token_refresh` and when the server refuses it. An `https`
    endpoint is verified: `SSL_CERT_FILE` in the environment names an authority of your own.
    `endpoint_header` is the response header with the endpoint; `tokenizer` a local `tokenizer.json`
    for servers that report no usage.
    """

    api: Component = Component(name="openai-chat")
    model: str | None = None
    path: str | None = None
    is_streaming: bool = Field(default=True, alias="stream")
    headers: dict[str, str] = Field(default_factory=dict)
    body: dict[str, object] = Field(default_factory=dict)
    api_key_env: str | None = None
    token_file: Path | None = None
    token_refresh: Seconds = Field(default=60.0, gt=0)
    endpoint_header: str = "x-served-by"
    tokenizer: Path | None = None
    timeout: Seconds = Field(default=600.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _refuses_removed(cls, value: object) -> object:
        if isinstance(value, dict) and "sign" in value:
            raise ValueError(
                "sign was removed in 0.2: send requests through a proxy that signs them"
            )
        if isinstance(value, dict) and {"token-command", "token_command"} & value.keys():
            raise ValueError(
                "token-command was removed in 0.2: have the command write to token-file"
            )
        return value

    @model_validator(mode="after")
    def _shows_one_thing(self) -> Self:
        if self.api_key_env and self.token_file:
            raise ValueError("give one of api-key-env and token-file")
        return self


class Stack(SpecSection):
    """What serves, for a catalogue of results: it changes nothing of a run.

    `count` pieces of an `accelerator`, over all endpoints; `engine` and its `version`;
    `price_per_hour` of all that serves, in dollars.
    """

    accelerator: str | None = None
    count: int | None = Field(default=None, gt=0)
    engine: str | None = None
    version: str | None = None
    price_per_hour: float | None = Field(default=None, gt=0)


class Watching(SpecSection):
    """Looks at the endpoints every few seconds: how many are ready, what waits, how full KV caches are.

    `every` is how often. With `admin` (`ip:port` of the router's admin port) it looks at the ready
    endpoints of `pool`, or of the first pool. Without it looks at those of `scrape`; they are ready
    if they answer.
    """

    every: Seconds = Field(default=5.0, ge=0.1)
    admin: str | None = None
    pool: str | None = None


class Spec(SpecSection):
    """A whole benchmark.

    `endpoint` is the server, as host, `host:port` or URL; `port` may stand beside a host. `target`
    is how to speak to it; `performance` is what is offered. `seed` makes prompts and arrivals: the
    same for the same seed. `processes` offer the load, in each Pod or on each machine. `limits` say
    when a run is no measurement. `plugins` are modules, or `.py` files, with datasets, shapes,
    processors and reports of your own. `ab`, `sweep` and `saturate` are for the commands, or modes,
    of these names. `scrape` lists `ip:port` whose `/metrics` hold prefix-cache counters; `watch`
    has them looked at while the run goes. `labels` and `stack` describe the run in a catalogue.
    `thresholds` are what the figures must meet, such as `ttft_ms.p95 < 500`.
    """

    name: str = "benchmark"
    endpoint: str
    port: int | None = Field(default=None, gt=0, lt=65536)
    target: Target = Target()
    performance: Performance
    scrape: tuple[str, ...] = ()
    watch: Watching | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    stack: Stack = Stack()
    seed: int = Field(default=0, ge=0)
    processes: int = Field(default=1, gt=0)
    limits: Limits = Limits()
    thresholds: tuple[Threshold, ...] = ()
    plugins: tuple[str, ...] = ()
    ab: Ab = Ab()
    saturate: Ladder = Ladder()
    sweep: Sweep = Sweep()

    @model_validator(mode="before")
    @classmethod
    def _from_resource(cls, value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError("give fields, such as `endpoint: 127.0.0.1:8000`")  # noqa: TRY004
        if "dcgm" in value:
            raise ValueError("dcgm was removed in 0.2: Prometheus has the GPUs' power and use")
        if not isinstance(value.get("spec"), dict):
            return lend_load(value)
        metadata = value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return lend_load({"name": name or "benchmark", **value["spec"]})

    @model_validator(mode="after")
    def _has_one_address(self) -> Self:
        url = self._url
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise ValueError(
                f"endpoint: {self.endpoint!r} is neither host, host:port nor an http(s) URL"
            )
        try:
            port = url.port
        except ValueError as error:
            raise ValueError(f"endpoint: {self.endpoint!r}: {error}") from None
        if port is not None and self.port not in {None, port}:
            raise ValueError(f"endpoint has port {port}, port says {self.port}: give one of them")
        return self

    @model_validator(mode="after")
    def _has_limits_that_can_be_missed(self) -> Self:
        """A figure that no request has would break no limit, and look like one that is kept."""
        streamed = self.performance.slo.model_dump(exclude={"e2e_ms"}, exclude_none=True)
        if streamed and not self.target.is_streaming:
            names = ", ".join(name.replace("_", "-") for name in streamed)
            raise ValueError(
                f"slo: {names} can only be seen of streamed answers; `stream: false` has e2e-ms"
            )
        return self

    @model_validator(mode="after")
    def _has_something_to_watch(self) -> Self:
        if self.watch is not None and self.watch.admin is None and not self.scrape:
            raise ValueError("watch: give its admin, the router's ip:port, or endpoints in scrape")
        return self

    @model_validator(mode="after")
    def _can_be_shared(self) -> Self:
        concurrency = self.traffic.concurrency
        if concurrency is not None and concurrency < self.processes:
            raise ValueError(
                f"{self.processes} processes cannot share a concurrency of {concurrency}"
            )
        return self

    @property
    def traffic(self) -> TrafficShape:
        return self.performance.traffic_shape

    @property
    def flushed(self) -> tuple[str, ...]:
        """The endpoints whose caches a comparison empties before each run."""
        return self.scrape if self.ab.flush is None else self.ab.flush

    @property
    def base_url(self) -> str:
        """The server's URL, without a `/v1` at its end; `http` unless `endpoint` says otherwise."""
        url = self._url
        has_port = self.port is None or url.port is not None
        host = url.netloc if has_port else f"{url.netloc}:{self.port}"
        return f"{url.scheme}://{host}{url.path.rstrip('/').removesuffix('/v1')}"

    @property
    def _url(self) -> SplitResult:
        return urlsplit(self.endpoint if "://" in self.endpoint else f"http://{self.endpoint}")


def lend_load(spec: dict[str, object]) -> dict[str, object]:
    """A sweep says how many ask at once: a traffic shape without a load of its own has the first of these."""
    performance, sweep = spec.get("performance"), spec.get("sweep")
    loads = sweep.get("concurrency") if isinstance(sweep, dict) else None
    if not isinstance(performance, dict) or not isinstance(loads, list | tuple) or not loads:
        return spec
    name = "traffic_shape" if "traffic_shape" in performance else "traffic-shape"
    shape = performance.get(name)
    first = loads[0].get("concurrency") if isinstance(loads[0], dict) else loads[0]
    if not isinstance(shape, dict):
        return spec
    given = {str(field).replace("-", "_") for field in shape}
    if given & {"req_rate", "vus", "max_concurrency", "shape", "preset"}:
        return spec
    return {**spec, "performance": {**performance, name: {**shape, "vus": first}}}


def read_spec(
    path: Path, find_faults: Callable[[Spec], Iterable[PlacedText]] = lambda _: ()
) -> Spec:
    """Reads a spec file, YAML or JSON, or a configuration of inference-perf.

    Raises `SettingsError` that lists every fault and where it is. `find_faults` says what is wrong
    with a spec whose fields are right, by places in it.
    """
    return _build(read_document(path), find_faults)


def parse_spec(text: str) -> Spec:
    """Parses the text of one, see `read_spec`."""
    return _build(parse_document(text, "spec"))


def spec_text(spec: Spec) -> str:
    """Returns the text of a spec file, without what is as it is when it is left out."""
    tree = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return yaml.safe_dump(tree, sort_keys=False)


def _build(
    document: Document, find_faults: Callable[[Spec], Iterable[PlacedText]] = lambda _: ()
) -> Spec:
    if is_inference_perf(document.tree):
        document = replace(document, tree=translate(document, os.environ))
    is_resource = isinstance(document.tree, dict) and isinstance(document.tree.get("spec"), dict)
    inside = ("spec",) if is_resource else ()
    spec = document.validate(Spec.model_validate, inside, list_places(Spec))
    if faults := [document.fault((*inside, *place), text) for place, text in find_faults(spec)]:
        raise refuse_faults(faults)
    return spec
