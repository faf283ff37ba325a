"""A configuration of inference-perf, read as it is: what it asks for, as the tree of a spec of ours.

The keys are those of kubernetes-sigs/inference-perf (docs/config.md there), older names included. A
key that is not done here is refused by its name. What says nothing of the load (where reports go,
how many workers there are) is set aside, and the log names it.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from extproc.bench.spec.section import find_tokenizer
from extproc.documents import Document, describe, refuse_faults

log = logging.getLogger(__name__)

_SET_ASIDE: Final = (
    *("metrics", "report", "storage", "tokenizer.trust_remote_code", "tokenizer.token"),
    *("data.input_distribution.total_count", "data.output_distribution.total_count"),
    *("load.num_workers", "load.worker_max_concurrency", "load.worker_max_tcp_connections"),
    *("load.request_retry_backoff_sec", "load.stage_teardown_grace_seconds"),
)
# Where there is something better to say than that a key is not known; false, empty or 0 they are no
# wish.
_REFUSED: Final = {
    "circuit_breakers": "a run ends early only where nobody listens",
    "load.circuit_breakers": "a run ends early only where nobody listens",
    "load.sweep": "`extproc bench saturate` looks for the limit",
    "load.lora_traffic_split": "a run has one model; make a run for each adapter",
    "load.request_retries": "each request is sent once, and one that fails is counted",
    "server.api_key": "no key stands in a file; `bench init --from` makes a spec, which has api-key-env",
    "data.multimodal": "prompts are text only",
    "data.shared_prefix.multimodal": "prompts are text only",
    "data.shared_prefix.enable_multi_turn_chat": "prompts stand alone; `dataset: synthetic` has sessions",
}


# What a type of theirs is in a spec of ours.
_INSTEAD: Final = {
    "load.type": {
        "trace_replay": "a spec has it as `shape: trace`",
        "trace_session_replay": "a spec has sessions as `dataset: {name: share-gpt, path: FILE}`, with `vus`",
    },
    "data.type": {
        "sharegpt": "a spec has it as `dataset: {name: share-gpt, path: FILE}`",
        "cnn_dailymail": "write prompts as bodies, for `dataset: {name: openai-bodies, path: FILE}`",
    },
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class _Lengths(_Section):
    """Tokens; the defaults are inference-perf's, whose older files write a number for a fixed length."""

    type: Literal["normal", "lognormal", "uniform", "fixed"] = "normal"
    min: float = 10
    max: float = 1024
    mean: float = Field(default=512, gt=0)
    std_dev: float = Field(default=200, ge=0, validation_alias=AliasChoices("std_dev", "std"))

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        return {"type": "fixed", "mean": value} if isinstance(value, int | float) else value

    @property
    def distribution(self) -> dict[str, object]:
        if self.type == "fixed":
            return {"value": self.mean}
        # Their deviation is that of the values, a lognormal's of ours that of the logarithms.
        sigma = math.sqrt(math.log1p((self.std_dev / self.mean) ** 2))
        spread = {"normal": {"std": self.std_dev}, "lognormal": {"sigma": sigma}}.get(self.type)
        own = {"mean": self.mean, **spread} if spread else {}
        return {"kind": self.type, "min": self.min, "max": self.max, **own}


class _SharedPrefix(_Section):
    groups: int = Field(
        default=10, validation_alias=AliasChoices("num_unique_system_prompts", "num_groups")
    )
    per_group: int = Field(
        default=10,
        validation_alias=AliasChoices("num_users_per_system_prompt", "num_prompts_per_group"),
    )
    system_prompt_len: _Lengths = _Lengths(type="fixed", mean=100)
    question_len: _Lengths = _Lengths(type="fixed", mean=50)
    output_len: _Lengths = _Lengths(type="fixed", mean=50)
    question_distribution: _Lengths | None = None
    output_distribution: _Lengths | None = None
    seed: int = 0


class _Trace(_Section):
    file: str
    format: Literal["AzurePublicDataset"] = "AzurePublicDataset"


class _Data(_Section):
    type: Literal["random", "shared_prefix"]
    input_distribution: _Lengths = _Lengths()
    output_distribution: _Lengths = _Lengths()
    shared_prefix: _SharedPrefix = _SharedPrefix()
    trace: _Trace | None = None

    def build(self) -> dict[str, object]:
        prompts, answers = self.input_distribution, self.output_distribution
        if self.trace:
            return {"name": "trace", "layout": "azure", "path": self.trace.file}
        if self.type == "random":
            lengths = {"input-tokens": prompts.distribution, "output-tokens": answers.distribution}
            return {"name": "random", **lengths}
        shared = self.shared_prefix
        return {
            "name": "shared-prefix",
            "groups": shared.groups,
            "per-group": shared.per_group,
            # All of them, then all again in the same order.
            "max-prompts": shared.groups * shared.per_group,
            "prefix-tokens": shared.system_prompt_len.distribution,
            "question-tokens": (shared.question_distribution or shared.question_len).distribution,
            "output-tokens": (shared.output_distribution or shared.output_len).distribution,
        }


class _Stage(_Section):
    rate: float = 0.0
    duration: float = 0.0
    concurrency_level: int = 0
    num_requests: int = 0


class _Load(_Section):
    type: Literal["constant", "poisson", "concurrent"] = "constant"
    interval: float = Field(default=1.0, ge=0)
    stages: tuple[_Stage, ...] = Field(min_length=1)
    request_timeout: float = 600.0
    base_seed: int | None = None

    @model_validator(mode="after")
    def _has_whole_stages(self) -> Self:
        is_closed = self.type == "concurrent"
        wanted = {"concurrency_level", "num_requests"} if is_closed else {"rate", "duration"}
        if any(stage.model_dump(exclude_defaults=True).keys() != wanted for stage in self.stages):
            raise ValueError(f"a stage of type {self.type} has {' and '.join(sorted(wanted))}")
        if is_closed and len(self.stages) > 1:
            raise ValueError(
                "stages of type concurrent are a run each: `extproc bench sweep` makes them"
            )
        return self

    def build(self) -> dict[str, object]:
        first, *others = self.stages
        if self.type == "concurrent":
            return {"vus": first.concurrency_level, "total-prompts": first.num_requests}
        steps = [{"req-rate": first.rate, "duration": first.duration}]
        for stage in others:
            steps += [{"req-rate": 0.0, "duration": self.interval}] if self.interval else []
            steps += [{"req-rate": stage.rate, "duration": stage.duration}]
        shape = {"name": "steps", "steps": steps} if others else "constant"
        duration = sum(step["duration"] for step in steps)
        return {"arrivals": self.type, "req-rate": first.rate, "duration": duration, "shape": shape}


class _Api(_Section):
    type: Literal["completion", "chat"] = "completion"
    streaming: bool = False
    headers: dict[str, str] = Field(default_factory=dict)


class _Server(_Section):
    type: Literal["vllm", "sglang"] = "vllm"
    model_name: str = ""
    base_url: str
    ignore_eos: bool = True


class _Config(_Section):
    api: _Api = _Api()
    server: _Server
    data: _Data
    load: _Load
    tokenizer: dict[Literal["pretrained_model_name_or_path"], str] = Field(default_factory=dict)


def is_inference_perf(tree: object) -> bool:
    """Whether a file's tree is one of inference-perf's: it has `load`, and nothing that ours has."""
    return (
        isinstance(tree, dict)
        and "load" in tree
        and not {"performance", "endpoint", "spec"} & tree.keys()
    )


def translate(document: Document, environment: Mapping[str, str]) -> dict[str, object]:
    """The spec that a configuration is; raises `SettingsError` that names every key that is not done."""
    aside: list[str] = []
    try:
        config = _Config.model_validate(_clear(document.tree, "", aside))
    except ValidationError as error:
        found = [(".".join(map(str, fault["loc"])), fault) for fault in error.errors()]
        # A section whose type is not known has other keys, which are no faults of their own.
        foreign = {
            fault["loc"][0]
            for key, fault in found
            if key in _INSTEAD and fault["type"] == "literal_error"
        }
        faults = []
        for key, fault in found:
            if fault["loc"][0] in foreign:
                if key in _INSTEAD:
                    name = str(fault["input"])
                    instead = _INSTEAD[key].get(name.lower(), describe(fault))
                    why = f"{key}: {name} is not done here: {instead}"
                    faults.append(document.fault(fault["loc"], why))
                continue
            why = f"{key}: not done here: {_REFUSED.get(key, 'no such key is known')}"
            is_unknown = fault["type"] == "extra_forbidden"
            faults.append(document.fault(fault["loc"], why if is_unknown else describe(fault)))
        raise refuse_faults(faults) from None
    name = config.tokenizer.get("pretrained_model_name_or_path") or config.server.model_name
    tokenizer = find_tokenizer(name, environment) if name else None
    if tokenizer is None:
        aside.append(
            f"tokenizer {name or 'of the model'} (not on this machine: four bytes are a token)"
        )
    if aside:
        log.warning("%s: set aside: %s", document.where, ", ".join(aside))
    return _build_tree(config, tokenizer)


def _build_tree(config: _Config, tokenizer: Path | None) -> dict[str, object]:
    server, api, seed = config.server, config.api, config.load.base_seed
    kinds = {
        "chat": ("openai-chat", "vllm"),
        "completion": ("openai-completions", "vllm-completions"),
    }
    target: dict[str, object] = {
        "api": kinds[api.type][server.ignore_eos],
        "model": server.model_name or None,
    }
    target |= {
        "stream": api.streaming,
        "headers": api.headers,
        "timeout": config.load.request_timeout,
    }
    return {
        "name": "inference-perf",
        "endpoint": server.base_url,
        "seed": config.data.shared_prefix.seed if seed is None else seed,
        "target": {**target, "tokenizer": tokenizer},
        "performance": {"traffic-shape": {**config.load.build(), "dataset": config.data.build()}},
    }


def _clear(tree: object, place: str, aside: list[str]) -> object:
    """A tree without what is empty and what is set aside, whose names are added to `aside`."""
    if not isinstance(tree, dict):
        return [_clear(item, "", aside) for item in tree] if isinstance(tree, list) else tree
    kept = {}
    for name, value in tree.items():
        key = f"{place}{name}"
        if value is not None and key in _SET_ASIDE:
            aside.append(key)
        elif value is not None and (value or key not in _REFUSED):
            kept[name] = _clear(value, f"{key}.", aside)
    return kept
