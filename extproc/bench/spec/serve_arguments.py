"""The arguments of `vllm bench serve` (0.32), and those of KubeAI's copy of its predecessor.

Only what there is and its defaults; what it means to us is in `serve`.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from extproc.bench.spec.section import parse_duration
from extproc.errors import SettingsError

# Real flags that change nothing here, and why.
HARMLESS: Mapping[str, str] = MappingProxyType(
    {
        "tokenizer_mode": "a local tokenizer.json is read, whatever the mode",
        "trust_remote_code": "no code of a model is run",
        "use_beam_search": "vLLM does not send it either",
        "request_id_prefix": "requests carry no x-request-id of ours",
        "skip_tokenizer_init": "no tokenizer is needed",
        "no_stream": "nothing is downloaded, so nothing is streamed",
        "plot_timeline": "give --output: report.html has the run over time",
        "timeline_itl_thresholds": "give --output: report.html has the run over time",
        "plot_dataset_stats": "`extproc bench dataset` gives an account of the prompts",
        "random_batch_size": "read for embeddings only",
        "no_reranker": "read for reranking only",
        "enable_multimodal_chat": "prompts are text",
    }
)
# Real flags that would make it another benchmark, and what to do instead.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "profile": "call /start_profile and /stop_profile yourself",
        "probe_request_rate": "run a second benchmark beside this one",
        "lora_modules": "one model is asked for: run one benchmark for each",
        "lora_assignment": "one model is asked for: run one benchmark for each",
        "ramp_up_strategy": "its rate goes by the request's number; write a spec with a ramp, by time",
        "ramp_up_start_rps": "write a spec with `shape: {name: ramp}`",
        "ramp_up_end_rps": "write a spec with `shape: {name: ramp}`",
        "insecure": "certificates are verified: name your authority in SSL_CERT_FILE",
        "self_timed": "write a spec with `shape: trace`",
        "no_oversample": "requests begin again until there are --num-prompts: give a smaller number",
        "chat_template_kwargs": 'no template is applied here: give --extra-body {"chat_template_kwargs": …}',
        "best_of": "removed from vLLM: an answer is one",
    }
)
# Flags of datasets that there are none of here; a value for one of them means such a dataset.
_OTHER = [
    "hf-subset",
    "hf-split",
    "hf-name",
    "hf-output-len",
    "spec-bench-output-len",
    "spec-bench-category",
    "speed-bench-dataset-subset",
    "speed-bench-output-len",
    "speed-bench-category",
    "bfcl-categories",
    "blazedit-min-distance",
    "blazedit-max-distance",
    "asr-max-audio-len-sec",
    "asr-min-audio-len-sec",
    "timed-trace-chunk-hash-size",
    "timed-trace-sec-multiplier",
    "timed-trace-label-timestamp",
    "timed-trace-label-input-length",
    "timed-trace-label-output-length",
    "timed-trace-label-hash-ids",
    "random-mm-base-items-per-request",
    "random-mm-num-mm-items-range-ratio",
    "random-mm-limit-mm-per-prompt",
    "random-mm-bucket-config",
    "custom-ensure-client-side-data",
    "sonnet-input-len",
    "sonnet-output-len",
    "sonnet-prefix-len",
]


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; `extproc bench serve --help` lists what there is")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments; names may have underscores, as vLLM's may. Raises `SettingsError`."""
    return build_parser().parse_args([_normalise(argument) for argument in arguments])


def _normalise(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument


def build_parser() -> argparse.ArgumentParser:
    # An abbreviation could mean another flag in the next version.
    parser = _Parser(
        prog="extproc bench serve",
        description="Takes the arguments of `vllm bench serve`, prints vLLM's text and writes its JSON.",
        allow_abbrev=False,
    )
    _add_target(parser.add_argument_group("server"))
    _add_traffic(parser.add_argument_group("traffic"))
    _add_datasets(parser.add_argument_group("dataset"))
    _add_sampling(parser.add_argument_group("sampling"))
    _add_results(parser.add_argument_group("results"))
    _add_own(parser.add_argument_group("not vLLM's"))
    _add_rest(parser)
    return parser


def _add_target(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--backend", default="openai")
    group.add_argument("--base-url")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--endpoint", default="/v1/completions")
    group.add_argument("--header", metavar="KEY=VALUE", nargs="*", default=[])
    group.add_argument("--model")
    group.add_argument("--served-model-name")
    group.add_argument(
        "--tokenizer", help="a local folder or tokenizer.json, or a name in the local hub cache"
    )
    group.add_argument("--extra-body", metavar="JSON", type=_parse_object, default={})
    group.add_argument("--ready-check-timeout-sec", type=float, default=0)


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--num-prompts", type=int, default=1000)
    group.add_argument("--request-rate", type=float, default=math.inf)
    group.add_argument("--burstiness", type=float, default=1.0)
    group.add_argument("--max-concurrency", type=int)
    group.add_argument("--num-warmups", type=int, default=0)
    group.add_argument("--seed", type=int, default=0)


def _add_datasets(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dataset-name", default="random", help="random, sharegpt, custom or prefix_repetition"
    )
    group.add_argument("--dataset-path")
    group.add_argument("--disable-shuffle", action="store_true")
    group.add_argument("--input-len", type=int)
    group.add_argument("--output-len", type=int)
    group.add_argument("--random-input-len", type=int, default=1024)
    group.add_argument("--random-output-len", type=int, default=128)
    group.add_argument("--random-range-ratio", type=_parse_ratios, default=(0.0, 0.0))
    group.add_argument("--random-prefix-len", type=int, default=0)
    group.add_argument("--sharegpt-output-len", type=int)
    group.add_argument(
        "--max-conversations", type=int, help="KubeAI's: prompts of whole conversations, so many"
    )
    group.add_argument("--custom-output-len", type=int, default=256)
    group.add_argument("--skip-chat-template", action="store_true")
    group.add_argument("--prefix-repetition-prefix-len", type=int, default=256)
    group.add_argument("--prefix-repetition-suffix-len", type=int, default=256)
    group.add_argument("--prefix-repetition-num-prefixes", type=int, default=10)
    group.add_argument("--prefix-repetition-output-len", type=int, default=128)


SAMPLING = (
    "top_p",
    "top_k",
    "min_p",
    "temperature",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    for name in SAMPLING:
        kind = int if name == "top_k" else float
        group.add_argument(f"--{name.replace('_', '-')}", type=kind)
    group.add_argument("--ignore-eos", action="store_true")
    group.add_argument("--logprobs", type=int)


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--percentile-metrics", type=_split, default=("ttft", "tpot", "itl"))
    group.add_argument("--metric-percentiles", type=_parse_percentiles, default=(99.0,))
    group.add_argument("--goodput", metavar="METRIC:MS", nargs="+", default=[])
    group.add_argument("--save-result", action="store_true")
    group.add_argument("--save-detailed", action="store_true")
    group.add_argument("--append-result", action="store_true")
    group.add_argument("--result-dir")
    group.add_argument("--result-filename")
    group.add_argument("--metadata", metavar="KEY=VALUE", nargs="*", default=[])
    group.add_argument("--label")
    group.add_argument("--disable-tqdm", action="store_true")


def _add_own(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--output", help="folder for all reports of this benchmark")
    group.add_argument("--metrics-port", type=int)
    group.add_argument("--linger", type=_parse_linger, default=0.0, help="serve metrics that much longer")
    group.add_argument("--pushgateway", metavar="URL", help="push the final figures there")
    group.add_argument("--processes", type=int, default=1)
    group.add_argument(
        "--allow-client-limited", action="store_true", help="exit 0 even if the client was the limit"
    )
    group.add_argument(
        "--print-spec", action="store_true", help="print the spec that this is, and run nothing"
    )


def _add_rest(parser: argparse.ArgumentParser) -> None:
    for name in (*HARMLESS, *REFUSED):
        parser.add_argument(f"--{name.replace('_', '-')}", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--no-self-timed", action="store_true", help=argparse.SUPPRESS)
    for name in _OTHER:
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)


def list_foreign(arguments: argparse.Namespace) -> list[str]:
    """The flags given that belong to datasets which are not here."""
    return [f"--{name}" for name in _OTHER if getattr(arguments, name.replace("-", "_")) is not None]


def _parse_linger(text: str) -> float:
    return float(str(parse_duration(text)))


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_percentiles(text: str) -> tuple[float, ...]:
    points = tuple(map(float, _split(text)))
    if not all(0 <= point <= 100 for point in points):
        raise argparse.ArgumentTypeError(f"{text!r}: percentiles are from 0 to 100")
    return points


def _parse_object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value


def _parse_ratios(text: str) -> tuple[float, float]:
    """Reads one ratio for both lengths, or `{"input": …, "output": …}`."""
    try:
        value = json.loads(text)
        pair = (value["input"], value["output"]) if isinstance(value, dict) else (value, value)
        ratios = (float(pair[0]), float(pair[1]))
    except (ValueError, TypeError, LookupError):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a ratio nor a JSON object of two") from None
    if not all(0 <= ratio < 1 for ratio in ratios):
        raise argparse.ArgumentTypeError(f"{text!r}: a range ratio is at least 0 and below 1")
    return ratios
