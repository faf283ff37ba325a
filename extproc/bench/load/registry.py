"""Benchmark as code: every part that a spec file names, by name, and a user's own beside them."""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from extproc.bench.datasets import chats, synthetic, traces
from extproc.bench.datasets.conversation import BYTES, Ruler
from extproc.bench.datasets.tokens import read_ruler
from extproc.bench.load.shapes import ShapeFactory, build_constant, build_ramp, build_steps
from extproc.bench.processors.http import HttpClient
from extproc.bench.processors.openai import AnthropicMessages, OpenAIChat, OpenAICompletions, OpenAIResponses
from extproc.bench.processors.processor import Client, ClientFactory, Processor, Wiring
from extproc.bench.spec.section import Component, SpecSection
from extproc.bench.spec.tree import Spec
from extproc.errors import SettingsError

_T = TypeVar("_T")
# The other datasets have no options of their own.
DATASET_OPTIONS: Mapping[str, type[SpecSection]] = MappingProxyType(
    {
        "synthetic": synthetic.SyntheticOptions,
        "random": synthetic.RandomOptions,
        "shared-prefix": synthetic.SharedPrefixOptions,
        "trace": traces.TraceOptions,
        "kubeai-sharegpt": chats.KubeaiOptions,
    }
)
_REMOVED = frozenset({"tgi", "triton", "triton-grpc", "kserve-grpc", "grpc", "jetstream", "jetstream-http"})
_OWN_PROCESSOR = "write a processor of your own in ten lines, docs/how-to/benchmark.md#benchmark-as-code"


@dataclass(slots=True)
class Registry:
    """What there is to choose from. A plugin's `register(registry)` adds to it or replaces in it.

    `datasets` yield conversations, `shapes` request rates, `clients` carry requests (an HTTP API needs
    only a processor: `add_processor`). `ruler` counts tokens.
    """

    datasets: dict[str, chats.Source] = field(default_factory=dict)
    shapes: dict[str, ShapeFactory] = field(default_factory=dict)
    clients: dict[str, ClientFactory] = field(default_factory=dict)
    ruler: Ruler = BYTES

    def add_processor(self, name: str, processor: Processor) -> None:
        """Makes an HTTP API known as a target's `api`; the api's options are the processor's fields."""

        def build(wiring: Wiring) -> Client:
            return HttpClient(wiring, _configure(processor, wiring.target.api))

        self.clients[name] = build

    def dataset(self, name: str) -> chats.Source:
        return _find(self.datasets, name, "dataset")

    def shape(self, name: str) -> ShapeFactory:
        if name == "sine" and name not in self.shapes:
            raise SettingsError("shape: sine was removed in 0.2: give `steps`")
        return _find(self.shapes, name, "shape")

    def client(self, name: str) -> ClientFactory:
        if name in _REMOVED and name not in self.clients:
            raise SettingsError(f"target.api: {name} was removed in 0.2: {_OWN_PROCESSOR}")
        return _find(self.clients, name, "api")

    @property
    def reports(self) -> None:
        raise SettingsError("registry.reports was removed in 0.2: read report.json or requests.csv")


def open_registry(spec: Spec) -> Registry:
    """Returns what there is to choose from for a spec, its plugins and its tokenizer included."""
    return build_registry(spec.plugins, read_ruler(spec.target))


def build_registry(plugins: Iterable[str] = (), ruler: Ruler = BYTES) -> Registry:
    """Returns everything built in, then what each plugin registers.

    A plugin is a module's name or a path to a `.py` file. Raises `SettingsError` if it cannot be
    imported or has no `register`.
    """
    registry = Registry(ruler=ruler)
    counted = {
        "share-gpt": chats.read_sharegpt,
        "sharegpt": chats.read_sharegpt,
        "open-orca": chats.read_openorca,
        "openorca": chats.read_openorca,
        "synthetic": synthetic.generate_conversations,
        "shared-prefix": synthetic.generate_shared_prefix,
        "random": synthetic.generate_random,
        "trace": traces.replay_trace,
        "kubeai-sharegpt": chats.read_kubeai_sharegpt,
    }
    registry.datasets.update({name: partial(read, ruler=ruler) for name, read in counted.items()})
    registry.datasets.update({"openai-bodies": chats.read_bodies, "prepared": chats.read_prepared})
    registry.shapes.update(constant=build_constant, ramp=build_ramp, steps=build_steps)
    for name, processor in (
        ("openai-chat", OpenAIChat()),
        ("openai-completions", OpenAICompletions()),
        ("openai-responses", OpenAIResponses()),
        ("anthropic", AnthropicMessages()),
        ("vllm", OpenAIChat(forces_length=True)),
        ("vllm-completions", OpenAICompletions(forces_length=True)),
        ("sglang", OpenAIChat(forces_length=True)),
    ):
        registry.add_processor(name, processor)
    for plugin in plugins:
        _import(plugin).register(registry)
    return registry


def build_schema() -> dict[str, Any]:
    """Returns the JSON schema of a spec file, with the options of each dataset that is built in."""
    schema = Spec.model_json_schema()
    _, dataset = schema["$defs"]["Dataset"]["anyOf"]
    dataset["allOf"] = []
    for name in build_registry().datasets:
        model = DATASET_OPTIONS.get(name, SpecSection)
        own = model.model_json_schema(ref_template="#/$defs/{model}").get("properties", {})
        for option in own.values():
            if isinstance(option.get("default"), dict):  # a distribution's: JSON has no infinity
                del option["default"]
        fields = [*dataset["properties"], *own]
        names = {"enum": [*fields, *(each.replace("-", "_") for each in fields if "-" in each)]}
        then = {"properties": own, "propertyNames": names}
        dataset["allOf"].append({"if": {"properties": {"name": {"const": name}}}, "then": then})
    return schema


def _configure(processor: Processor, api: Component) -> Processor:
    if not api.options:
        return processor
    try:
        return replace(processor, **api.options)  # type: ignore[type-var]  # TypeError if it is no dataclass
    except (TypeError, ValueError):
        raise SettingsError(f"target.api: {api.name} has no such options: {', '.join(api.options)}") from None


def _find(known: dict[str, _T], name: str, kind: str) -> _T:
    if name not in known:
        raise SettingsError(f"no {kind} {name!r}: there are {', '.join(sorted(known))}")
    return known[name]


def _import(plugin: str) -> ModuleType:
    try:
        module = _import_file(Path(plugin)) if plugin.endswith(".py") else importlib.import_module(plugin)
    except (ImportError, OSError, SyntaxError) as error:
        raise SettingsError(f"plugin {plugin}: {error}") from error
    if not callable(getattr(module, "register", None)):
        raise SettingsError(f"plugin {plugin}: it has no function register(registry)")
    return module


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
