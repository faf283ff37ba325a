"""What the arguments of `vllm bench serve` mean here: a spec, and how its result is told."""

import argparse
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from extproc.bench.spec.section import list_faults
from extproc.bench.spec.serve_arguments import HARMLESS, REFUSED, SAMPLING, list_foreign
from extproc.bench.spec.tree import Spec
from extproc.errors import SettingsError

# vLLM waits this long for an answer.
_TIMEOUT_S = 6 * 60 * 60
_METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue")
_GOODPUT = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class _Backend:
    """The request processor for one of vLLM's backends, its options, and how its paths end."""

    api: str
    ending: str
    options: Mapping[str, object] = field(default_factory=dict)
    is_openai: bool = True


_COMPLETIONS = _Backend("openai-completions", "completions")
_BACKENDS: Mapping[str, _Backend] = MappingProxyType(
    {
        "openai": _COMPLETIONS,
        "vllm": _COMPLETIONS,
        "sglang": _COMPLETIONS,
        "lmdeploy": _COMPLETIONS,
        "scalellm": _COMPLETIONS,
        "openai-chat": _Backend("openai-chat", "chat/completions", {"length-field": "max_completion_tokens"}),
        "openai-responses": _Backend("openai-responses", "responses"),
        "tgi": _Backend("tgi", "generate_stream", is_openai=False),
        "tensorrt-llm": _Backend("triton", "generate_stream", is_openai=False),
    }
)


@dataclass(frozen=True, slots=True)
class Telling:
    """What the arguments say about vLLM's text and result file. `limits_ms` are those of goodput."""

    backend: str
    label: str | None
    model_id: str | None
    tokenizer_id: str | None
    num_prompts: int
    request_rate: float
    burstiness: float
    max_concurrency: int | None
    metrics: tuple[str, ...]
    percentiles: tuple[float, ...]
    limits_ms: Mapping[str, float]
    metadata: Mapping[str, str]
    is_detailed: bool


@dataclass(frozen=True, slots=True)
class Serve:
    """A benchmark as vLLM's arguments ask for it. `warnings` say which do nothing, or something else."""

    spec: Spec
    telling: Telling
    warnings: tuple[str, ...]


def translate(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Serve:
    """Translates parsed arguments; raises `SettingsError` with every fault."""
    faults = list(_find_faults(arguments))
    if faults:
        raise SettingsError("\n".join(faults))
    tokenizer = find_tokenizer(arguments.tokenizer or arguments.model, environment)
    try:
        spec = Spec.model_validate(_build_tree(arguments, tokenizer, environment))
    except ValidationError as error:
        raise SettingsError(list_faults(error)) from None
    return Serve(spec, _tell(arguments), tuple(_find_warnings(arguments, tokenizer)))


def _find_faults(arguments: argparse.Namespace) -> Iterator[str]:
    for name, instead in REFUSED.items():
        if getattr(arguments, name) is not None:
            yield f"--{name.replace('_', '-')}: not done here; {instead}"
    if arguments.no_self_timed:
        yield "--no-self-timed: timed traces are run from a spec"
    backend = _BACKENDS.get(arguments.backend)
    if backend is None:
        yield f"--backend {arguments.backend}: does not generate text; there are {', '.join(_BACKENDS)}"
    elif not arguments.endpoint.endswith(backend.ending):
        yield f"--backend {arguments.backend} asks an --endpoint that ends in {backend.ending}"
    elif not backend.is_openai and _list_sampling(arguments):
        yield f"--backend {arguments.backend} takes no sampling parameters"
    if arguments.num_prompts < 1:
        yield "--num-prompts: give 1 or more"
    yield from _find_dataset_faults(arguments)
    yield from _find_result_faults(arguments)


def _find_dataset_faults(arguments: argparse.Namespace) -> Iterator[str]:
    name, path = arguments.dataset_name, arguments.dataset_path
    if name not in _DATASETS:
        yield (
            f"--dataset-name {name}: no such dataset; there are {', '.join(_DATASETS)}. For others write a "
            "spec, or give the prompts as JSON lines to `custom`"
        )
    elif name in {"sharegpt", "custom"} and path is None:
        yield f"--dataset-name {name} needs a local file: --dataset-path"
    elif name not in {"sharegpt", "custom"} and path is not None:
        yield f"--dataset-name {name} reads no --dataset-path"
    if arguments.max_conversations is not None and name != "sharegpt":
        yield "--max-conversations: read with --dataset-name sharegpt only"
    if foreign := list_foreign(arguments):
        yield f"{', '.join(foreign)}: of a dataset that is not here"


def _find_result_faults(arguments: argparse.Namespace) -> Iterator[str]:
    if unknown := [metric for metric in arguments.percentile_metrics if metric not in _METRICS]:
        yield f"--percentile-metrics: no {', '.join(unknown)}; there are {', '.join(_METRICS)}"
    for pair in arguments.goodput:
        name, _, value = pair.partition(":")
        if name not in _GOODPUT or not _is_number(value):
            yield f"--goodput {pair}: give METRIC:MILLISECONDS, a metric of {', '.join(_GOODPUT)}"
    for flag, pairs in (("--header", arguments.header), ("--metadata", arguments.metadata)):
        yield from (f"{flag} {pair}: give KEY=VALUE" for pair in pairs if "=" not in pair)


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def _find_warnings(arguments: argparse.Namespace, tokenizer: Path | None) -> Iterator[str]:
    for name, why in HARMLESS.items():
        if getattr(arguments, name) is not None:
            yield f"--{name.replace('_', '-')} does nothing: {why}"
    if tokenizer is None:
        wanted = arguments.tokenizer or arguments.model
        yield (
            f"{wanted or 'the tokenizer'}: nothing is downloaded, and it is not on this machine: lengths of "
            "prompts are counted at four bytes a token, figures by the server's usage"
        )
    if arguments.dataset_name == "custom" and not arguments.skip_chat_template:
        yield "prompts are sent as they are: no chat template is applied, as with --skip-chat-template"
    if arguments.logprobs is not None and arguments.backend == "openai-chat":
        yield "--logprobs does nothing: vLLM does not send it to a chat endpoint either"


def find_tokenizer(name: str | None, environment: Mapping[str, str]) -> Path | None:
    """Returns a tokenizer.json on this machine: a file, in a folder, or in the hub's cache; else `None`."""
    if name is None:
        return None
    given = Path(name)
    if given.is_file():
        return given
    if (given / "tokenizer.json").is_file():
        return given / "tokenizer.json"
    home = Path(environment.get("HF_HOME") or Path.home() / ".cache/huggingface")
    cache = Path(environment.get("HF_HUB_CACHE") or home / "hub")
    found = sorted(cache.glob(f"models--{name.replace('/', '--')}/snapshots/*/tokenizer.json"))
    return found[-1] if found else None


def _build_tree(
    arguments: argparse.Namespace, tokenizer: Path | None, environment: Mapping[str, str]
) -> dict[str, object]:
    limits = dict(_read_goodput(arguments))
    return {
        "name": arguments.label or arguments.dataset_name,
        "endpoint": arguments.base_url or f"http://{_join_host(arguments.host, arguments.port)}",
        "seed": arguments.seed,
        "processes": arguments.processes,
        "target": _build_target(arguments, tokenizer, environment),
        "performance": {
            "traffic-shape": _build_traffic(arguments),
            "slo": {f"{name.replace('e2el', 'e2e')}-ms": value for name, value in limits.items()},
        },
    }


def _join_host(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _build_target(
    arguments: argparse.Namespace, tokenizer: Path | None, environment: Mapping[str, str]
) -> dict[str, object]:
    backend = _BACKENDS[arguments.backend]
    target: dict[str, object] = {
        "api": {"name": backend.api, **backend.options},
        "path": arguments.endpoint,
        "timeout": _TIMEOUT_S,
        "headers": dict(_read_pairs(arguments.header)),
        "body": _build_body(arguments),
    }
    if model := arguments.served_model_name or arguments.model:
        target["model"] = model
    if tokenizer is not None:
        target["tokenizer"] = str(tokenizer)
    if environment.get("OPENAI_API_KEY"):
        target["api-key-env"] = "OPENAI_API_KEY"
    return target


def _build_body(arguments: argparse.Namespace) -> dict[str, object]:
    """What is added to each body. Random prompts are answered to their full length, as vLLM has it."""
    body: dict[str, object] = {}
    if _BACKENDS[arguments.backend].is_openai:
        body |= _list_sampling(arguments)
        if arguments.ignore_eos or arguments.dataset_name == "random":
            body["ignore_eos"] = True
    if arguments.logprobs is not None and _BACKENDS[arguments.backend] is _COMPLETIONS:
        body["logprobs"] = arguments.logprobs
    return {**body, **arguments.extra_body}


def _list_sampling(arguments: argparse.Namespace) -> dict[str, object]:
    given = {name: getattr(arguments, name) for name in SAMPLING}
    return {name: value for name, value in given.items() if value is not None}


def _build_traffic(arguments: argparse.Namespace) -> dict[str, object]:
    traffic: dict[str, object] = {
        "req-rate": arguments.request_rate,
        "total-prompts": arguments.num_prompts,
        "dataset": _DATASETS[arguments.dataset_name](arguments),
    }
    if arguments.max_concurrency is not None:
        traffic["max-concurrency"] = arguments.max_concurrency
    if math.isinf(arguments.request_rate):
        return traffic
    if arguments.burstiness == 1:
        return {**traffic, "arrivals": "poisson"}
    if math.isinf(arguments.burstiness):
        return traffic
    return {**traffic, "arrivals": "gamma", "burstiness": arguments.burstiness}


def _build_random(arguments: argparse.Namespace) -> dict[str, object]:
    in_ratio, out_ratio = arguments.random_range_ratio
    return {
        "name": "random",
        "prefix-tokens": arguments.random_prefix_len,
        "input-tokens": _spread(arguments.input_len or arguments.random_input_len, in_ratio),
        "output-tokens": _spread(arguments.output_len or arguments.random_output_len, out_ratio),
    }


def _spread(tokens: int, ratio: float) -> object:
    if not ratio:
        return tokens
    return {
        "kind": "uniform",
        "min": math.floor(tokens * (1 - ratio)),
        "max": math.ceil(tokens * (1 + ratio)),
    }


def _build_sharegpt(arguments: argparse.Namespace) -> dict[str, object]:
    dataset = _build_file(arguments, arguments.output_len or arguments.sharegpt_output_len)
    if arguments.max_conversations is None:
        return {"name": "vllm-sharegpt", **dataset}
    return {"name": "kubeai-sharegpt", "max-prompts": arguments.max_conversations, **dataset}


def _build_custom(arguments: argparse.Namespace) -> dict[str, object]:
    length = arguments.output_len or arguments.custom_output_len
    return {"name": "vllm-custom", **_build_file(arguments, None if length == -1 else length)}


def _build_file(arguments: argparse.Namespace, output_len: int | None) -> dict[str, object]:
    dataset = {"path": arguments.dataset_path, "seed": arguments.seed}
    if arguments.disable_shuffle:
        dataset["is-in-order"] = True
    return dataset if output_len is None else {**dataset, "output-len": output_len}


def _build_repetition(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "name": "prefix-repetition",
        "prefix-len": arguments.prefix_repetition_prefix_len,
        "suffix-len": arguments.prefix_repetition_suffix_len,
        "num-prefixes": arguments.prefix_repetition_num_prefixes,
        "output-len": arguments.output_len or arguments.prefix_repetition_output_len,
        "is-in-order": arguments.disable_shuffle,
    }


_DATASETS = MappingProxyType(
    {
        "random": _build_random,
        "sharegpt": _build_sharegpt,
        "custom": _build_custom,
        "prefix_repetition": _build_repetition,
    }
)


def _read_pairs(pairs: list[str]) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        name, _, value = pair.partition("=")
        yield name.strip(), value.strip()


def _read_goodput(arguments: argparse.Namespace) -> Iterator[tuple[str, float]]:
    for pair in arguments.goodput:
        name, _, value = pair.partition(":")
        yield name, float(value)


def _tell(arguments: argparse.Namespace) -> Telling:
    return Telling(
        backend=arguments.backend,
        label=arguments.label,
        model_id=arguments.model,
        tokenizer_id=arguments.tokenizer or arguments.model,
        num_prompts=arguments.num_prompts,
        request_rate=arguments.request_rate,
        burstiness=arguments.burstiness,
        max_concurrency=arguments.max_concurrency,
        metrics=arguments.percentile_metrics,
        percentiles=arguments.metric_percentiles,
        limits_ms=dict(_read_goodput(arguments)),
        metadata=dict(_read_pairs(arguments.metadata)),
        is_detailed=arguments.save_detailed,
    )
