"""Benchmark as code: every part that a spec file names, by name, and a user's own beside them."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, create_model

from extproc.bench.datasets import chats, synthetic, traces
from extproc.bench.datasets.conversation import BYTES, Conversation, Ruler
from extproc.bench.datasets.tokens import read_ruler
from extproc.bench.load.shapes import (
    RampOptions,
    ShapeFactory,
    build_constant,
    build_ramp,
    build_steps,
)
from extproc.bench.processors.http import HttpClient
from extproc.bench.processors.openai import (
    AnthropicMessages,
    OpenAIChat,
    OpenAICompletions,
    OpenAIResponses,
)
from extproc.bench.processors.processor import Client, ClientFactory, Processor, Wiring
from extproc.bench.spec.section import Component, SpecSection
from extproc.bench.spec.traffic import Dataset, StepsOptions
from extproc.bench.spec.tree import Spec
from extproc.documents import Place, PlacedText, describe_options, suggest_name
from extproc.errors import SettingsError
from extproc.router.routing.strategies.registry import STRATEGIES

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
_SHAPE_OPTIONS: Mapping[str, type[SpecSection]] = MappingProxyType(
    {"ramp": RampOptions, "steps": StepsOptions}
)
PROCESSORS: Mapping[str, OpenAIChat | OpenAIResponses | AnthropicMessages] = MappingProxyType(
    {
        "openai-chat": OpenAIChat(),
        "openai-completions": OpenAICompletions(),
        "openai-responses": OpenAIResponses(),
        "anthropic": AnthropicMessages(),
        "vllm": OpenAIChat(forces_length=True),
        "vllm-completions": OpenAICompletions(forces_length=True),
        "sglang": OpenAIChat(forces_length=True),
    }
)
# The field of a recorded body that has the prompt.
_PROMPTS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(PROCESSORS, "messages"),
        "openai-completions": "prompt",
        "vllm-completions": "prompt",
        "openai-responses": "input",
    }
)
_REMOVED = frozenset(
    {"tgi", "triton", "triton-grpc", "kserve-grpc", "grpc", "jetstream", "jetstream-http"}
)
_OWN_API = (
    "write a plugin, as in examples/model-servers: docs/how-to/benchmark.md#benchmark-as-code"
)


@dataclass(slots=True)
class Registry:
    """What there is to choose from. A plugin's `register(registry)` adds to it or replaces in it.

    `datasets` yield conversations, `shapes` request rates, `clients` carry requests (an HTTP API
    needs only a processor: `add_processor`). `ruler` counts tokens. `left_out`: rows of a file that
    became nothing, by reason, once it is read.
    """

    datasets: dict[str, chats.Source] = field(default_factory=dict)
    shapes: dict[str, ShapeFactory] = field(default_factory=dict)
    clients: dict[str, ClientFactory] = field(default_factory=dict)
    ruler: Ruler = BYTES
    left_out: dict[str, int] = field(default_factory=dict)

    def add_processor(self, name: str, processor: Processor) -> None:
        """Makes an HTTP API known as a target's `api`; the api's options are the processor's fields."""

        def build(wiring: Wiring) -> Client:
            return HttpClient(wiring, _configure(processor, wiring.target.api))

        self.clients[name] = build

    def dataset(self, name: str) -> chats.Source:
        return _find(self.datasets, name, "dataset")

    def shape(self, name: str) -> ShapeFactory:
        if name == "sine" and name not in self.shapes:
            raise SettingsError("shape sine was removed in 0.2: give `steps`")
        return _find(self.shapes, name, "shape")

    def client(self, name: str) -> ClientFactory:
        if name in _REMOVED and name not in self.clients:
            raise SettingsError(f"api {name} was removed in 0.2: {_OWN_API}")
        return _find(self.clients, name, "api")

    @property
    def reports(self) -> None:
        raise SettingsError("registry.reports was removed in 0.2: read report.json or requests.csv")


def open_registry(spec: Spec) -> Registry:
    """Returns what there is to choose from for a spec, its plugins and its tokenizer included."""
    return build_registry(spec.plugins, read_ruler(spec.target), spec.target.api.name)


def build_registry(
    plugins: Iterable[str] = (), ruler: Ruler = BYTES, api: str | None = None
) -> Registry:
    """Returns everything built in, then what each plugin registers.

    A plugin is a module's name or a path to a `.py` file. Raises `SettingsError` if it cannot be
    imported or has no `register`.
    """
    registry = Registry(ruler=ruler)
    files: dict[str, Callable[[Dataset], list[Conversation]]] = {
        "share-gpt": partial(chats.read_sharegpt, ruler=ruler, left_out=registry.left_out),
        "sharegpt": partial(chats.read_sharegpt, ruler=ruler, left_out=registry.left_out),
        "open-orca": partial(chats.read_openorca, ruler=ruler, left_out=registry.left_out),
        "openorca": partial(chats.read_openorca, ruler=ruler, left_out=registry.left_out),
        "kubeai-sharegpt": partial(chats.read_kubeai_sharegpt, ruler=ruler),
        "openai-bodies": partial(chats.read_bodies, wanted=_PROMPTS.get(api or "")),
        "prepared": partial(chats.read_prepared, wanted=_PROMPTS.get(api or "")),
    }
    registry.datasets.update({name: _draw_nothing(read) for name, read in files.items()})
    registry.datasets |= {
        "synthetic": partial(synthetic.generate_conversations, ruler=ruler),
        "shared-prefix": partial(synthetic.generate_shared_prefix, ruler=ruler),
        "random": partial(synthetic.generate_random, ruler=ruler),
        "trace": partial(traces.replay_trace, ruler=ruler),
    }
    registry.shapes.update(constant=build_constant, ramp=build_ramp, steps=build_steps)
    for name, processor in PROCESSORS.items():
        registry.add_processor(name, processor)
    for plugin in plugins:
        _import(plugin).register(registry)
    return registry


def _draw_nothing(read: Callable[[Dataset], list[Conversation]]) -> chats.Source:
    """A file holds what it holds: however many requests are needed, and with any seed."""
    return lambda dataset, _need, _rng: read(dataset)


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


def find_part_faults(spec: Spec) -> Iterator[PlacedText]:
    """Says which part that a spec names there is not, and which of its options.

    With plugins nothing: they may bring any part, or replace one. It is told when the part is
    built.
    """
    if spec.plugins:
        return
    registry, shape = build_registry(), ("performance", "traffic-shape")
    apis: dict[str, type[BaseModel]] = {}
    for name, api in PROCESSORS.items():
        options: dict[str, Any] = {each.name: (Any, None) for each in fields(api) if each.init}
        apis[name] = create_model("ApiOptions", __base__=SpecSection, **options)
    yield from _check((*shape, "dataset"), spec.traffic.dataset, registry.dataset, DATASET_OPTIONS)
    if spec.traffic.shape.name != "trace":
        yield from _check((*shape, "shape"), spec.traffic.shape, registry.shape, _SHAPE_OPTIONS)
    yield from _check(("target", "api"), spec.target.api, registry.client, apis)
    # A command may switch another router, whose strategies nobody knows here.
    for number, arm in enumerate(() if spec.ab.urls or spec.ab.command else spec.ab.arms):
        kinds = {name: kind.settings for name, kind in STRATEGIES.kinds.items()}
        yield from _check(
            ("ab", "arms", number), arm, partial(_find, kinds, kind="strategy"), kinds
        )


def _check(
    place: Place,
    part: Component,
    find: Callable[[str], object],
    models: Mapping[str, type[BaseModel]],
) -> Iterator[PlacedText]:
    try:
        find(part.name)
    except SettingsError as error:
        yield (*place, "name"), f"{'.'.join(map(str, place))}: {error}"
        return
    model = models.get(part.name, SpecSection)
    try:
        model.model_validate(part.section if "name" in model.model_fields else part.options)
    except ValidationError as error:
        yield from describe_options(error, place, part, model)


def _configure(processor: Processor, api: Component) -> Processor:
    if not api.options:
        return processor
    try:
        return replace(processor, **api.options)  # type: ignore[type-var]  # TypeError if it is no dataclass
    except (TypeError, ValueError):
        raise SettingsError(
            f"target.api: {api.name} has no such options: {', '.join(api.options)}"
        ) from None


def _find(known: Mapping[str, _T], name: str, kind: str) -> _T:
    if name not in known:
        nearest = suggest_name(name, known)
        raise SettingsError(f"no {kind} {name!r}{nearest} (choose from {', '.join(sorted(known))})")
    return known[name]


def _import(plugin: str) -> ModuleType:
    try:
        module = (
            _import_file(Path(plugin))
            if plugin.endswith(".py")
            else importlib.import_module(plugin)
        )
    except (ImportError, OSError, SyntaxError) as error:
        raise SettingsError(f"plugin {plugin}: {error}") from error
    if not callable(getattr(module, "register", None)):
        raise SettingsError(f"plugin {plugin}: it has no function register(registry)")
    return module


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    # A file may import its neighbours, as a script may: gRPC's generated messages are such.
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
