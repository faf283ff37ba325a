"""vLLM 0.32.0's `/metrics`: gauges and counters read off the engine, and distributions of requests.

Names, labels and buckets are its own. Times are the engine's seconds, so that `--speed` does not
change what is measured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.simulator.engine.profiles import Profile
from extproc.simulator.engine.records import StepResult
from extproc.simulator.http.driver import Generation

_HELP = "As vLLM's metric of this name."
TOKENS = (
    1,
    2,
    5,
    10,
    20,
    50,
    100,
    200,
    500,
    1000,
    2000,
    5000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
)
ITERATION_TOKENS = tuple(2**power for power in (0, *range(3, 15)))
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
# fmt: off
FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
    160, 640, 2560,
)
TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)
REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)
# fmt: on
PHASES = ("queue", "inference", "prefill", "decode")
OF_TOKENS = (
    *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens"),
    *("request_params_max_tokens", "request_prefill_kv_computed_tokens"),
)
OTHERS: dict[str, Sequence[float]] = {
    "iteration_tokens_total": ITERATION_TOKENS,
    "time_to_first_token_seconds": FIRST_TOKEN_S,
    "inter_token_latency_seconds": TOKEN_S,
    "request_time_per_output_token_seconds": TOKEN_S,
    "e2e_request_latency_seconds": REQUEST_S,
    "request_num_preemptions": PREEMPTIONS,
    "request_params_n": (1, 2, 5, 10, 20),
}
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
# Counters of things that the simulator has not: they are always zero, as on a text model without
# a KV connector.
ABSENT = (
    *("estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu"),
    *(
        "external_prefix_cache_queries",
        "external_prefix_cache_hits",
        "mm_cache_queries",
        "mm_cache_hits",
    ),
)
# The cache's labels in a CPU build of 0.32.0; the sizes are filled in from the profile.
CACHE_CONFIG_LABELS = """
    _block_size_resolved=True cache_dtype=auto cache_hit_alignment_tokens=None
    enable_mamba_shared_prefix_checkpoint=False enable_prefix_caching=True gpu_memory_utilization=0.92
    hash_block_size=None is_attention_free=False kv_cache_dtype_skip_layers=[] kv_cache_layout=None
    kv_cache_memory_bytes=None kv_offloading_backend=native kv_offloading_size=None
    kv_sharing_fast_prefill=False mamba_block_size=None mamba_cache_dtype=auto mamba_cache_mode=none
    mamba_page_size_padded=None mamba_ssm_cache_dtype=auto num_cpu_blocks=None num_gpu_blocks_override=None
    prefix_cache_retention_interval=0 prefix_caching_hash_algo=sha256 prefix_match_unit=None
    replayssm_buffer_len=16 skip_page_size_padded=None sliding_window=None swa_bounded_replay=True
    use_kda_recoverssm=False use_replayssm=False user_specified_block_size=True
"""


@dataclass(frozen=True, slots=True)
class EndpointReading:
    """One scrape's numbers. Tokens count as vLLM's counters of the same names do."""

    running: int
    waiting: int
    kv_usage: float
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    ended: Mapping[str, int]
    max_loras: int = 0
    running_adapters: str = ""
    waiting_adapters: str = ""


@dataclass(frozen=True, eq=False)
class EndpointCollector(Collector):
    """Collects an endpoint's gauges and counters. `started_at` and `now()` are seconds since the epoch."""

    model: str
    profile: Profile
    read: Callable[[], EndpointReading]
    started_at: float
    now: Callable[[], float]

    def collect(self) -> Iterator[Metric]:
        reading = self.read()
        yield from self._collect_gauges(reading)
        yield from self._collect_counters(reading)
        yield self._info(self.profile)
        if reading.max_loras:
            yield self._adapters(reading)

    def _collect_gauges(self, reading: EndpointReading) -> Iterator[Metric]:
        yield self._family(GaugeMetricFamily, "num_requests_running", reading.running)
        yield self._family(GaugeMetricFamily, "num_requests_waiting", reading.waiting)
        reasons = {"capacity": reading.waiting, "deferred": 0}
        yield self._family(GaugeMetricFamily, "num_requests_waiting_by_reason", reasons, "reason")
        awake = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        yield self._family(GaugeMetricFamily, "engine_sleep_state", awake, "sleep_state")
        yield self._family(GaugeMetricFamily, "kv_cache_usage_perc", reading.kv_usage)

    def _collect_counters(self, reading: EndpointReading) -> Iterator[Metric]:
        computed = reading.prompt_tokens - reading.cached_tokens
        sources = {
            "local_compute": computed,
            "local_cache_hit": reading.cached_tokens,
            "external_kv_transfer": 0,
        }
        tiers = {
            "device": reading.prefix_hits,
            "host": 0,
            "p2p": 0,
            "disk": 0,
            "external_unspecified": 0,
        }
        plain = {
            **dict.fromkeys(ABSENT, 0),
            "prefix_cache_queries": reading.prefix_queries,
            "prefix_cache_hits": reading.prefix_hits,
            "num_preemptions": reading.preemptions,
            "prompt_tokens": reading.prompt_tokens,
            "prompt_tokens_cached": reading.cached_tokens,
            "generation_tokens": reading.generation_tokens,
        }
        for name, value in plain.items():
            yield self._family(CounterMetricFamily, name, value)
        yield self._family(CounterMetricFamily, "prompt_tokens_by_source", sources, "source")
        yield self._family(CounterMetricFamily, "prompt_tokens_cached_by_source", tiers, "source")
        yield self._family(CounterMetricFamily, "request_success", reading.ended, "finished_reason")
        rejections = CounterMetricFamily(
            "vllm:admission_rejections", _HELP, labels=["model_name", "reason"]
        )
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            rejections.add_metric([self.model, reason], 0, created=self.started_at)
        yield rejections

    def _family(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        values: float | Mapping[str, float],
        label: str = "",
    ) -> Metric:
        """One value, or one for each value of a label."""
        labels = ["model_name", "engine", *filter(None, [label])]
        family = kind(f"vllm:{name}", _HELP, labels=labels)
        for key, value in values.items() if isinstance(values, Mapping) else [("", values)]:
            named = [self.model, "0", *filter(None, [key])]
            if isinstance(family, CounterMetricFamily):
                family.add_metric(named, value, created=self.started_at)
            else:
                family.add_metric(named, value)
        return family

    def _info(self, profile: Profile) -> Metric:
        tokens = profile.blocks * profile.block_size
        labels = dict(pair.split("=") for pair in CACHE_CONFIG_LABELS.split()) | {
            "block_size": str(profile.block_size),
            "effective_attention_block_size": str(profile.block_size),
            "engine": "0",
            "kv_cache_max_concurrency": str(tokens / profile.max_model_len),
            "kv_cache_size_tokens": str(tokens),
            "num_gpu_blocks": str(profile.blocks),
        }
        family = GaugeMetricFamily("vllm:cache_config_info", _HELP, labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        return family

    def _adapters(self, reading: EndpointReading) -> Metric:
        family = GaugeMetricFamily(
            "vllm:lora_requests_info",
            _HELP,
            labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
        )
        adapters = [str(reading.max_loras), reading.waiting_adapters, reading.running_adapters]
        family.add_metric(adapters, self.now())
        return family


class Distributions:
    """Histograms of requests, tokens and steps; filled in by the driver.

    `ended` counts requests by vLLM's `finished_reason`.
    """

    def __init__(self, registry: CollectorRegistry, model: str, profile: Profile) -> None:
        tokens = [bound for bound in TOKENS if bound <= profile.max_model_len]
        buckets_of = OTHERS | dict.fromkeys(OF_TOKENS, tokens)
        buckets_of |= {f"request_{phase}_time_seconds": REQUEST_S for phase in PHASES}
        labels = ["model_name", "engine"]
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", _HELP, labels, buckets=buckets, registry=registry
            ).labels(model, "0")
            for name, buckets in buckets_of.items()
        }
        # These two are read for every token.
        self._first_token = self._histograms["time_to_first_token_seconds"]
        self._between = self._histograms["inter_token_latency_seconds"]
        self.ended = dict.fromkeys(FINISHED_REASONS, 0)

    def stepped(self, result: StepResult) -> None:
        self._histograms["iteration_tokens_total"].observe(
            result.prefill_tokens + len(result.emitted)
        )

    def emitted(self, since_last_s: float, *, is_first: bool) -> None:
        (self._first_token if is_first else self._between).observe(since_last_s)

    def finished(self, generation: Generation, *, is_abort: bool) -> None:
        self.ended["abort" if is_abort else generation.job.reason] += 1
        if generation.emitted:
            for name, value in measure_generation(generation).items():
                self._histograms[name].observe(value)


def measure_generation(generation: Generation) -> dict[str, float]:
    """Returns what vLLM measures of a request that got at least one token; no times of one that was late."""
    job = generation.job
    measured: dict[str, float] = {
        "request_prompt_tokens": len(job.prompt),
        "request_generation_tokens": generation.emitted,
        "request_max_num_generation_tokens": generation.emitted,
        "request_params_max_tokens": len(job.output),
        "request_prefill_kv_computed_tokens": len(job.prompt) - generation.cached_tokens,
        "request_params_n": job.n,
        "request_num_preemptions": generation.preemptions,
    }
    if generation.is_late:
        return measured
    decode_s = generation.last_token_at - generation.first_token_at
    measured |= {
        "e2e_request_latency_seconds": generation.last_token_at - generation.arrived_at,
        "request_queue_time_seconds": generation.admitted_at - generation.arrived_at,
        "request_inference_time_seconds": generation.last_token_at - generation.admitted_at,
        "request_prefill_time_seconds": generation.first_token_at - generation.admitted_at,
        "request_decode_time_seconds": decode_s,
    }
    if generation.emitted > 1:
        measured["request_time_per_output_token_seconds"] = decode_s / (generation.emitted - 1)
    return measured
