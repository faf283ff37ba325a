"""The distributions that vLLM 0.32.0 measures: names, labels and buckets are its own.

Times are the engine's seconds, so that `--speed` does not change what is measured.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Histogram

from extproc.vllm.driver import Generation
from extproc.vllm.profiles import Profile
from extproc.vllm.step import StepResult

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
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


class Distributions:
    """Histograms of requests, tokens and steps; hears of them as the driver's observer."""

    def __init__(self, registry: CollectorRegistry, model: str, profile: Profile) -> None:
        tokens = [bound for bound in TOKENS if bound <= profile.max_model_len]

        def histogram(name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
            family = Histogram(
                f"vllm:{name}", help_text, ["model_name", "engine"], buckets=buckets, registry=registry
            )
            return family.labels(model, "0")

        def of_tokens(name: str, help_text: str) -> Histogram:
            return histogram(name, help_text, tokens)

        def of_phase(name: str, phase: str) -> Histogram:
            return histogram(name, f"Histogram of time spent in {phase} phase for request.", REQUEST_S)

        self._prompt = of_tokens("request_prompt_tokens", "Number of prefill tokens processed.")
        self._generated = of_tokens("request_generation_tokens", "Number of generation tokens processed.")
        self._step = histogram(
            "iteration_tokens_total", "Histogram of number of tokens per engine_step.", ITERATION_TOKENS
        )
        self._most_generated = of_tokens(
            "request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens."
        )
        self._n = histogram("request_params_n", "Histogram of the n request parameter.", (1, 2, 5, 10, 20))
        self._asked = of_tokens("request_params_max_tokens", "Histogram of the max_tokens request parameter.")
        self._first_token = histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", FIRST_TOKEN_S
        )
        self._between = histogram(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", TOKEN_S
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            TOKEN_S,
        )
        self._whole = histogram(
            "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", REQUEST_S
        )
        self._queued = of_phase("request_queue_time_seconds", "WAITING")
        self._inference = of_phase("request_inference_time_seconds", "RUNNING")
        self._prefill = of_phase("request_prefill_time_seconds", "PREFILL")
        self._decode = of_phase("request_decode_time_seconds", "DECODE")
        self._preempted = histogram(
            "request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            PREEMPTIONS,
        )
        self._computed = of_tokens(
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        )
        self.ended = dict.fromkeys(FINISHED_REASONS, 0)

    def stepped(self, result: StepResult) -> None:
        self._step.observe(result.prefill_tokens + len(result.emitted))

    def emitted(self, since_last_s: float, *, is_first: bool) -> None:
        (self._first_token if is_first else self._between).observe(since_last_s)

    def finished(self, generation: Generation, *, is_abort: bool) -> None:
        job = generation.job
        self.ended["abort" if is_abort else job.reason] += 1
        if not generation.emitted:
            return
        decode_s = generation.last_token_at - generation.first_token_at
        self._prompt.observe(len(job.prompt))
        self._generated.observe(generation.emitted)
        self._most_generated.observe(generation.emitted)
        self._n.observe(job.n)
        self._asked.observe(len(job.output))
        self._whole.observe(generation.last_token_at - generation.arrived_at)
        self._queued.observe(generation.admitted_at - generation.arrived_at)
        self._inference.observe(generation.last_token_at - generation.admitted_at)
        self._prefill.observe(generation.first_token_at - generation.admitted_at)
        self._decode.observe(decode_s)
        self._preempted.observe(generation.preemptions)
        self._computed.observe(len(job.prompt) - generation.cached_tokens)
        if generation.emitted > 1:
            self._per_token.observe(decode_s / (generation.emitted - 1))
