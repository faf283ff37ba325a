"""What a proof on a GPU will do: the engines' commands, the load, the windows, the benchmark's spec. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MODEL: Final = "m"
ENVOY, ENVOY_ADMIN, EXT_PROC, ADMIN = 8080, 9901, 9002, 9090
FIRST_ENGINE: Final = 8001

# Bytes of keys and values a token: layers x KV heads x head x 2 x 2 (BF16).
_KV_BYTES: Final = {"3b": 28 * 8 * 128 * 4, "8b": 32 * 8 * 128 * 4}
# A run's switching, emptying of caches, and reports.
OVERHEAD_S: Final = 8.0
WARM_UP_S: Final = 8.0
_SHORTEST_S, _LONGEST_S = 15.0, 60.0
# Of a cache, the prompts of requests in flight.
_OPEN_PROMPTS: Final = 8
# What a rung does without: the first uses all, each later one less.
RUNGS: Final = ("mps", "graphs", "eager")


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines of one kind. `kind` is `vllm`, `vllm-cpu` or `simulated`; `profile` is of the last."""

    kind: str
    model: str
    count: int
    kv_tokens: int
    max_model_len: int
    batched_tokens: int
    block_size: int = 16
    profile: str = "h200-llama8b-bf16"

    @property
    def ports(self) -> Sequence[int]:
        return range(FIRST_ENGINE, FIRST_ENGINE + self.count)

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    @property
    def rungs(self) -> Sequence[str]:
        """In the order in which they are tried. One engine alone has nobody to share a card with."""
        if self.kind != "vllm":
            return RUNGS[-1:]
        return RUNGS if self.count > 1 else RUNGS[1:]


@dataclass(frozen=True, slots=True)
class Load:
    """Tenants with a system prompt each. `utilisation` is the share of an engine that round robin's prefills take."""

    groups: int = 40
    prefix_tokens: int = 4_000
    question_tokens: int = 120
    output_tokens: int = 80
    utilisation: float = 0.6
    slo_ms: int = 500


@dataclass(frozen=True, slots=True)
class Windows:
    """How often each rule is measured, and for how long."""

    repeats: int
    duration_s: float


def engine_command(
    engines: Engines, number: int, rung: str, kit: Path, python: str
) -> tuple[list[str], dict[str, str]]:
    """Returns an engine's command, and what it needs in its environment beside the caller's."""
    port = str(FIRST_ENGINE + number)
    if engines.kind == "simulated":
        words = [python, "-m", "extproc", "simulate", "vllm", "--port", port, "--model", MODEL]
        return [*words, "--profile", engines.profile, "--prompt-tokens-details"], {}
    blocks = engines.kv_tokens // engines.block_size
    command = [
        *(python, "-m", "vllm.entrypoints.cli.main", "serve", str(kit / "models" / engines.model)),
        *(
            "--served-model-name",
            MODEL,
            "--load-format",
            "dummy",
            "--host",
            "127.0.0.1",
            "--port",
            port,
        ),
        *("--max-model-len", str(engines.max_model_len), "--max-num-seqs", "128"),
        *(
            "--max-num-batched-tokens",
            str(engines.batched_tokens),
            "--block-size",
            str(engines.block_size),
        ),
        *(
            "--enable-prefix-caching",
            "--enable-prompt-tokens-details",
            "--disable-uvicorn-access-log",
        ),
    ]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # the kit has no FlashInfer
        "VLLM_HOST_IP": "127.0.0.1",
        "TORCHDYNAMO_DISABLE": "1",  # a few small functions compile themselves otherwise, for a minute
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if engines.kind == "vllm-cpu":
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        cpu = ["--dtype", "float32", "--enforce-eager", "--num-gpu-blocks-override", str(blocks)]
        return [*command, *cpu], environment
    # So many bytes, and no look at what the neighbours take meanwhile.
    cache = (blocks + 1) * engines.block_size * _KV_BYTES[engines.model]
    command += ["--kv-cache-memory-bytes", str(cache)]
    command += ["--gpu-memory-utilization", f"{0.9 / engines.count:.3f}"]
    if rung == "eager":
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        return [*command, "--enforce-eager", "--attention-backend", "TRITON_ATTN"], environment
    # Graphs for decoding, no compiler: a real engine's steps without its minutes of compilation.
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    return [*command, "--compilation-config", json.dumps(graphs)], environment


def choose_rate(load: Load, engines: Engines, costs: Mapping[str, float]) -> float:
    """The requests a second at which round robin's prefills take `utilisation` of an engine, by its measured costs.

    Each engine then sees every prefix; a cache that evicts the least recently used one keeps a share of them.
    """
    prompt = load.prefix_tokens + load.question_tokens
    room = max(0.0, engines.kv_tokens - _OPEN_PROMPTS * prompt)
    kept = min(1.0, room / (load.groups * load.prefix_tokens))
    missing = (1 - kept) * load.prefix_tokens + load.question_tokens
    pairs = missing * prompt / 2
    work_ms = (
        costs["base_ms"]
        + missing * costs["prefill_ms_per_token"]
        + pairs * costs["attention_ns"] / 1e6
    )
    return load.utilisation * 1000 * engines.count / max(work_ms, costs["floor_ms"], 0.1)


def choose_windows(arms: int, repeats: int, left_s: float) -> Windows:
    """Fits arms and repeats into the time that is left: fewer repeats first, then shorter windows."""
    for count in range(repeats, 0, -1):
        duration_s = left_s / (arms * count) - OVERHEAD_S - WARM_UP_S
        if duration_s >= _SHORTEST_S or count == 1:
            return Windows(count, min(_LONGEST_S, max(_SHORTEST_S / 2, duration_s)))
    raise ValueError("no repeat was asked for")


def write_proof_spec(
    load: Load,
    engines: Engines,
    windows: Windows,
    *,
    arms: Sequence[str],
    costs: Mapping[str, float],
    rate: float,
    settings: Path,
) -> dict[str, Any]:
    """The spec of `extproc bench ab`; `prefix_cache` is told what was measured."""
    own = {
        "prefill_ms_per_token": costs["usual_prefill_ms"],
        "step_ms": costs["base_ms"],
        "kv_tokens": engines.kv_tokens,
    }
    return {
        "name": f"{engines.count} engines",
        "endpoint": f"127.0.0.1:{ENVOY}",
        "target": {
            "api": "openai-chat" if engines.kind == "simulated" else "vllm",
            "model": MODEL,
            "endpoint-header": "x-served-by",
            "timeout": "120s",
        },
        "scrape": engines.addresses,
        "seed": 1,
        "performance": {
            "traffic-shape": {
                "req-rate": f"{rate:.3g} qps",
                "arrivals": "poisson",
                "duration": f"{windows.duration_s + WARM_UP_S + 2:.0f}s",
                "warm-up": f"{WARM_UP_S:.0f}s",
                "cool-down": "2s",
                "dataset": {
                    "name": "shared-prefix",
                    "turns": "prompts",
                    "groups": load.groups,
                    "prefix-tokens": load.prefix_tokens,
                    "question-tokens": _lognormal(load.question_tokens, 0.8, 8, 1_000),
                    "output-tokens": _lognormal(load.output_tokens, 0.6, 4, 400),
                },
            },
            "slo": {"ttft-ms": load.slo_ms},
        },
        "ab": {
            "arms": [
                {"name": arm, "engine": own} if arm == "prefix_cache" else arm for arm in arms
            ],
            "settings-file": str(settings),
            "admin": f"127.0.0.1:{ADMIN}",
            "repeats": windows.repeats,
        },
    }


def _lognormal(mean: int, sigma: float, least: int, most: int) -> dict[str, Any]:
    return {"kind": "lognormal", "mean": mean, "sigma": sigma, "min": least, "max": most}


def write_gateway(engines: Engines) -> dict[str, Any]:
    """The router's configuration: a pool of the engines."""
    pool = {
        "name": "pool",
        "endpoints": {"static": engines.addresses},
        "fallbacks": 1,
        "signals": {"scrape_s": 5},
        "strategy": "round_robin",
    }
    server = {"listen": f"127.0.0.1:{EXT_PROC}", "admin": f"127.0.0.1:{ADMIN}"}
    return {"server": server, "pools": [pool]}
