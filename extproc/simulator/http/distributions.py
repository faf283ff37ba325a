"""The distributions that vLLM 0.32.0 measures: names, labels and buckets are its own.

Times are the engine's seconds, so that `--speed` does not change what is measured.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Histogram

from extproc.simulator.engine.profiles import Profile
from extproc.simulator.engine.step import StepResult
from extproc.simulator.http.driver import Generation

TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
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
PHASES = {
    "request_queue_time_seconds": "WAITING",
    "request_inference_time_seconds": "RUNNING",
    "request_prefill_time_seconds": "PREFILL",
    "request_decode_time_seconds": "DECODE",
}
OF_TOKENS = {
    "request_prompt_tokens": "Number of prefill tokens processed.",
    "request_generation_tokens": "Number of generation tokens processed.",
    "request_max_num_generation_tokens": "Histogram of maximum number of requested generation tokens.",
    "request_params_max_tokens": "Histogram of the max_tokens request parameter.",
    "request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens)."
    ),
}
OTHERS: dict[str, tuple[str, Sequence[float]]] = {
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", ITERATION_TOKENS),
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", FIRST_TOKEN_S),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", TOKEN_S),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        TOKEN_S,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", REQUEST_S),
    "request_num_preemptions": ("Histogram of the number of times a request was preempted.", PREEMPTIONS),
    "request_params_n": ("Histogram of the n request parameter.", (1, 2, 5, 10, 20)),
}
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


class Distributions:
    """Histograms of requests, tokens and steps; hears of them as the driver's observer.

    `ended` counts requests by vLLM's `finished_reason`.
    """

    def __init__(self, registry: CollectorRegistry, model: str, profile: Profile) -> None:
        tokens = [bound for bound in TOKENS if bound <= profile.max_model_len]
        specs = OTHERS | {name: (help_text, tokens) for name, help_text in OF_TOKENS.items()}
        for name, phase in PHASES.items():
            specs[name] = (f"Histogram of time spent in {phase} phase for request.", REQUEST_S)
        labels = ["model_name", "engine"]
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, labels, buckets=buckets, registry=registry).labels(
                model, "0"
            )
            for name, (text, buckets) in specs.items()
        }
        # These two are asked for with every token.
        self._first_token = self._histograms["time_to_first_token_seconds"]
        self._between = self._histograms["inter_token_latency_seconds"]
        self.ended = dict.fromkeys(FINISHED_REASONS, 0)

    def stepped(self, result: StepResult) -> None:
        self._histograms["iteration_tokens_total"].observe(result.prefill_tokens + len(result.emitted))

    def emitted(self, since_last_s: float, *, is_first: bool) -> None:
        (self._first_token if is_first else self._between).observe(since_last_s)

    def finished(self, generation: Generation, *, is_abort: bool) -> None:
        self.ended["abort" if is_abort else generation.job.reason] += 1
        if generation.emitted:
            for name, value in describe(generation).items():
                self._histograms[name].observe(value)


def describe(generation: Generation) -> dict[str, float]:
    """Returns what vLLM measures of a request that got at least one token."""
    job = generation.job
    decode_s = generation.last_token_at - generation.first_token_at
    measured = {
        "request_prompt_tokens": len(job.prompt),
        "request_generation_tokens": generation.emitted,
        "request_max_num_generation_tokens": generation.emitted,
        "request_params_max_tokens": len(job.output),
        "request_prefill_kv_computed_tokens": len(job.prompt) - generation.cached_tokens,
        "request_params_n": job.n,
        "request_num_preemptions": generation.preemptions,
        "e2e_request_latency_seconds": generation.last_token_at - generation.arrived_at,
        "request_queue_time_seconds": generation.admitted_at - generation.arrived_at,
        "request_inference_time_seconds": generation.last_token_at - generation.admitted_at,
        "request_prefill_time_seconds": generation.first_token_at - generation.admitted_at,
        "request_decode_time_seconds": decode_s,
    }
    if generation.emitted > 1:
        measured["request_time_per_output_token_seconds"] = decode_s / (generation.emitted - 1)
    return measured
