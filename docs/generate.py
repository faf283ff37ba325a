"""`make reference`: writes docs/reference/ from the models, the commands and the collectors.

Nobody edits these pages: `--check` compares them with what they are made from.
"""

import argparse
import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from copy import copy
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import click
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from extproc.bench.load import shapes
from extproc.bench.load.registry import DATASET_OPTIONS, build_registry
from extproc.bench.spec import traffic
from extproc.bench.spec.presets import PRESETS
from extproc.bench.spec.section import Component, parse_duration, parse_rate
from extproc.bench.spec.traffic import Dataset, Distribution
from extproc.bench.spec.tree import Spec
from extproc.cli import cli
from extproc.operator.crd import build_crd
from extproc.operator.resource import Operation
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.settings.tree import Settings

ROOT: Final = Path(__file__).parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"
_BOUNDS: Final = {
    "gt": ">",
    "ge": "≥",
    "lt": "<",
    "le": "≤",
    "min_length": "length ≥",
    "max_length": "length ≤",
}
_PLAIN: Final = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true, false",
    dict: "map",
    Path: "path",
}
_COLLECTORS: Final = (
    *(
        "router/telemetry.py",
        "router/service/pool_metrics.py",
        "router/feedback/feedback_metrics.py",
    ),
    *("router/share/share_metrics.py", "operator/web.py", "bench/progress.py"),
)
# What makes a family in the collectors, its type, and what stands before and behind its name.
_MAKERS: Final = {
    "counters": ("counter", "", "_total"),
    "_counter": ("counter", "extproc_", "_total"),
    "Counter": ("counter", "", "_total"),
    "gauges": ("gauge", "", ""),
    "Gauge": ("gauge", "", ""),
    "GaugeMetricFamily": ("gauge", "", ""),
    "histograms": ("histogram", "", ""),
    "summaries": ("summary", "", ""),
    "HistogramMetricFamily": ("histogram", "", ""),
    "Info": ("gauge", "", "_info"),
}


def pages() -> dict[str, str]:
    """Returns the text of every page by its name."""
    texts = {
        "settings": _settings(),
        "commands": _commands("Commands", _COMMANDS, lambda name: not name.startswith(_MEASURING)),
        "commands-benchmark": _commands(
            "Commands of the benchmark",
            _BENCH,
            lambda name: name.startswith(_MEASURING) and " " in name,
        ),
        "metrics": _metrics(),
        "benchmark-spec": _spec(),
        "benchmark-datasets": _datasets(),
        "benchmark-resource": _resource(),
    }
    made = "<!-- Made by `make reference`; change the code that it is made from. -->\n\n"
    return {
        name: made + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n" for name, text in texts.items()
    }


def stale() -> list[str]:
    """Returns the pages that are not what they would be made now."""
    made = pages()
    there = {path.stem: path.read_text() for path in REFERENCE.glob("*.md")}
    return sorted(name for name in {*made, *there} if made.get(name) != there.get(name))


# Models


def _sections(field: FieldInfo) -> list[type[BaseModel]]:
    if STRATEGIES in field.metadata:
        return [kind.settings for kind in STRATEGIES.kinds.values()]
    return [
        kind
        for kind in _parts(field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    ]


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _kind(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What may be given, in words: `integer ≥ 1`, `one of open, closed`."""
    args = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _kind(args[0], [*annotation.__metadata__, *metadata])
    kind = get_origin(annotation)
    if kind is Literal:
        return ", ".join(f"`{json.dumps(arg) if arg is False else arg}`" for arg in args)
    if kind in {list, tuple, dict}:
        return f"map to {_kind(args[1])}" if kind is dict else f"list of {_kind(args[0])}"
    if args:
        return " or ".join(
            dict.fromkeys(_kind(arg, metadata) for arg in args if arg is not type(None))
        )
    return _plain(annotation, metadata)


def _plain(annotation: Any, metadata: Iterable[Any]) -> str:
    """The word for a type without parts; durations and rates are told by how a text is read."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        forms = {Distribution: "number or distribution", Component: "name or section"}
        return forms.get(annotation, "section")
    read = {each.func for each in metadata if isinstance(each, BeforeValidator)}
    word = "duration" if parse_duration in read else "rate" if parse_rate in read else None
    return f"{word or _PLAIN.get(annotation, 'value')}{_bounds(metadata)}"


def _bounds(metadata: Iterable[Any]) -> str:
    found = [
        f"{sign} {getattr(each, name):,}"
        for each in metadata
        for name, sign in _BOUNDS.items()
        if getattr(each, name, None) is not None
    ]
    return f" {', '.join(found)}" if found else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined or default is None or default in ((), [], {}):
        return "none"
    plain = to_jsonable_python(default, inf_nan_mode="constants")
    if isinstance(default, Distribution):
        given = default.model_dump(by_alias=True, exclude_unset=True, mode="json")
        plain = default.value if default.kind == "fixed" else given
    elif isinstance(default, Component):
        plain = default.name
    elif isinstance(default, BaseModel):
        return "none"
    elif isinstance(default, tuple) and isinstance(default[0], Component):
        plain = [each.name for each in default]
    return f"`{json.dumps(plain, ensure_ascii=False)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _rows(
    model: type[BaseModel], place: str = "", told: set[type[BaseModel]] | None = None
) -> Iterator[str]:
    """A row for each setting below `place`; those of a section follow it."""
    told = set() if told is None else told
    for name, field in model.model_fields.items():
        at = f"{place}{name}"
        many = "[]" if get_origin(field.annotation) is list and _sections(field) else ""
        kind = (
            "section" if STRATEGIES in field.metadata else _kind(field.annotation, field.metadata)
        )
        if STRATEGIES in field.metadata:
            yield f"| `{at}` | name or section | `prefix_cache` | {_cell(field.description or '')} |"
        else:
            yield f"| `{at}{many}` | {_cell(kind)} | {_default(field)} | {_cell(field.description or '')} |"
        for section in _sections(field) if STRATEGIES not in field.metadata else ():
            # A section that stands at two places, such as `endpoints`, is told once.
            if section not in told:
                told.add(section)
                yield from _rows(section, f"{at}{many}.", told)


def _settings() -> str:
    head = "| setting | type | default | what it does |\n| --- | --- | --- | --- |\n"
    server, pools, share = (Settings.model_fields[name] for name in ("server", "pools", "share"))
    parts = [_SETTINGS, "## The service: `server`", head + "\n".join(_rows(_sections(server)[0]))]
    parts += ["## Each of `pools`", head + "\n".join(_rows(_sections(pools)[0]))]
    for kind in STRATEGIES.kinds.values():
        rows = [row for row in _rows(kind.settings) if not row.startswith("| `name`")]
        text = _cell(kind.settings.__doc__ or "")
        parts += [
            f"## Strategy `{kind.name}`",
            text,
            head + "\n".join(rows) if rows else "It has no settings.",
        ]
    return "\n\n".join(
        [*parts, "## Sharing: `share`", head + "\n".join(_rows(_sections(share)[0]))]
    )


# The benchmark


def _section(model: type[BaseModel], title: str, level: int = 2) -> str:
    """A section of the spec: what its model says, and its fields in the spelling of files."""
    text = "\n\n".join(_cell(part) for part in _docstring(model).split("\n\n"))
    rows = [
        f"| `{field.alias or name.replace('_', '-')}` | {_cell(_kind(field.annotation, field.metadata))} "
        f"| {_default(field)} |"
        for name, field in model.model_fields.items()
        if not (issubclass(model, Component) and name == "name" and model is not Dataset)
    ]
    table = "| field | type | default |\n| --- | --- | --- |\n" + "\n".join(rows)
    return f"{'#' * level} {title}\n\n{text}\n\n{table if rows else ''}"


def _docstring(model: type[BaseModel]) -> str:
    """Field names as a file spells them."""
    text = textwrap.dedent("    " + (model.__doc__ or ""))
    names = {name: field.alias or name for name, field in model.model_fields.items() if "_" in name}
    return re.sub(r"`(\w+)`", lambda found: f"`{names.get(found[1], found[1])}`", text)


def _spec() -> str:
    parts = [_SPEC, _section(Spec, "The file")]
    ahead: list[tuple[str, type[BaseModel]]] = [("", Spec)]
    while ahead:
        place, model = ahead.pop(0)
        for name, field in model.model_fields.items():
            for each in _sections(field):
                if each not in {Component, Dataset, Distribution}:
                    at = f"{place}{field.alias or name}"
                    parts.append(_section(each, f"`{at}`"))
                    ahead.append((f"{at}.", each))
    return "\n\n".join(parts)


def _datasets() -> str:
    registry = build_registry()
    parts = [_DATASET, _section(Dataset, "Every dataset")]
    parts += [
        _section(DATASET_OPTIONS[name], f"`{name}`")
        for name in registry.datasets
        if name in DATASET_OPTIONS
    ]
    plain = ", ".join(f"`{name}`" for name in registry.datasets if name not in DATASET_OPTIONS)
    parts.append(
        f"## Without options of their own\n\n{plain}: `path` and the fields of every dataset."
    )
    parts.append(_section(Distribution, "Distributions"))
    parts.append("## Shapes\n\n`constant` and `trace` have no options. `shape: {name: ramp, …}`:")
    parts += [
        _section(shapes.RampOptions, "`ramp`", 3),
        _section(traffic.StepsOptions, "`steps`", 3),
    ]
    parts.append(_section(traffic.Step, "A step", 3))
    parts.append(
        "## APIs\n\n`target.api` is one of "
        + ", ".join(f"`{name}`" for name in registry.clients)
        + "."
    )
    parts.append(
        "## Presets\n\n`preset` is one of " + ", ".join(f"`{name}`" for name in PRESETS) + "."
    )
    return "\n\n".join(parts)


def _resource() -> str:
    version = build_crd()["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    columns = "\n".join(
        f"| `{each['name']}` | `{each['jsonPath']}` |"
        for each in version["additionalPrinterColumns"]
    )
    parts = [_RESOURCE, _cell(schema["description"]), _section(Operation, "How it is run")]
    for name, field in Operation.model_fields.items():
        parts += [_section(each, f"`{field.alias or name}`") for each in _sections(field)]
    status = _cell(schema["properties"]["status"]["description"])
    table = f"| column | field |\n| --- | --- |\n{columns}"
    return "\n\n".join(
        [*parts, f"## Status\n\n{status} `kubectl get benchmarks` shows:\n\n{table}"]
    )


# Commands


def _walk(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by its whole name; a group that does something itself is one, too."""
    if not isinstance(command, click.Group) or (name and command.invoke_without_command):
        yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from _walk(found, f"{name} {below}".strip())


def _commands(title: str, text: str, wanted: Any) -> str:
    parts = [f"# {title}", text]
    for name, command in _walk(cli):
        if not wanted(name):
            continue
        # Click keeps the help option of the first context that it sees.
        context = click.Context(
            command, info_name=f"extproc {name}", help_option_names=["-h", "--help"]
        )
        usage = " ".join(["extproc", name, *command.collect_usage_pieces(context)])
        about = _cell((command.help or "").partition("\b")[0].partition("\n\nExample")[0])
        rows = []
        for option in map(copy, command.params):
            if isinstance(option, click.Option) and option.help:
                option.hidden = False  # only programs give it
            record = option.get_help_record(context) if isinstance(option, click.Option) else None
            if record and "--help" not in record[0]:
                rows.append(f"| `{record[0].replace('|', ', ')}` | {_cell(record[1])} |")
        table = "| option | |\n| --- | --- |\n" + "\n".join(rows)
        parts.append(f"## `extproc {name}`\n\n{about}\n\n    {usage}\n\n{table if rows else ''}")
    return "\n\n".join(parts)


# Metrics


def _families(path: Path) -> Iterator[tuple[str, str, list[str], str]]:
    """Yields name, type, labels and text of the families that a collector makes."""
    makers = dict(_MAKERS)
    before = {"web.py": "extproc_benchmark_", "progress.py": "extproc_bench_"}.get(path.name, "")
    own = ["namespace", "benchmark"] if path.name == "web.py" else []
    makers |= {"gauge": ("gauge", before, ""), "histogram": ("histogram", before, "_seconds")}
    tree = ast.parse(path.read_text())
    named = {
        str(getattr(each.target, "id", "")): each.value
        for each in tree.body
        if isinstance(each, ast.AnnAssign)
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        maker = getattr(call.func, "attr", getattr(call.func, "id", ""))
        values = [named.get(getattr(each, "id", ""), each) for each in call.args]
        texts = [
            each.value
            for each in values
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        if maker not in makers or len(texts) < 2 or not re.fullmatch(r"[a-z0-9_]+", texts[0]):
            continue
        kind, head, tail = makers[maker]
        listed = [each for each in call.args if isinstance(each, ast.List)]
        labels = (
            [each.value for each in listed[0].elts if isinstance(each, ast.Constant)]
            if listed
            else texts[2:]
        )
        labels = ["version"] if maker == "Info" else [*(own if maker == "gauge" else []), *labels]
        yield f"{head}{texts[0]}{tail}", kind, [str(label) for label in labels], texts[1]


def _metrics() -> str:
    parts, titles = [_METRICS], {"web.py": _OPERATOR, "progress.py": "## A run of the benchmark"}
    head = "| family | type | labels | what it says |\n| --- | --- | --- | --- |"
    rows: list[str] = []
    for name in _COLLECTORS:
        path = ROOT / "extproc" / name
        if path.name in titles:
            parts += [head + "\n" + "\n".join(rows), titles[path.name]]
            rows = []
        for family, kind, labels, text in _families(path):
            named = ", ".join(f"`{label}`" for label in labels)
            rows.append(f"| `{family}` | {kind} | {named} | {_cell(text)} |")
    return "\n\n".join([*parts, head + "\n" + "\n".join(rows)])


_SETTINGS = """\
# Settings

`extproc init > extproc.yaml` writes a file with every setting and what it does; `extproc serve extproc.yaml`
runs it.

- The file is watched: pools, endpoints and strategies change live, without losing a request. The sections
  `server` and `share` take effect with a restart. A bad new file is refused with a log line and a metric,
  and the old one stays.
- `extproc check FILE` lists every fault with its line, also files and variables that are missing and pools
  that no request can reach. `extproc schema` prints a JSON schema for editors, with the names of the
  engines.
- `EXTPROC_SERVER__LISTEN=…` and its like override the section `server`; a variable that overrides nothing is
  an error that names the nearest one.
- The file of `endpoints.file` is a list; `name` may be left out. It is taken when it has been the same for
  0.2 s:

```yaml
- {name: a, address: 10.0.0.1, port: 8000}
- {name: b, address: 10.0.0.2, port: 8000}
```"""
_MEASURING = ("bench", "simulate fleet", "simulate matrix", "simulate advise")
_COMMANDS = """\
`extproc COMMAND --help` prints the same. Those of benchmark and simulator have [a page of their
own](commands-benchmark.md).

Shell completion, in `~/.bashrc`: `eval "$(_EXTPROC_COMPLETE=bash_source extproc)"`; in `~/.zshrc` the same
with `zsh_source`; in `~/.config/fish/config.fish`: `_EXTPROC_COMPLETE=fish_source extproc | source`."""
_BENCH = """\
`extproc bench COMMAND --help` prints the same, without what only programs give (`--board`, `--brief`,
`--linger`). [How to run the benchmark](../how-to/benchmark.md) says which one is for
what. A rate is `10 qps`, `600/m` or `inf`; a duration `30s`, `10m` or `250ms`."""
_METRICS = """\
# Metrics

The service's are at `/metrics` of the admin port. [How to watch it](../how-to/monitoring.md) has queries,
alerts, dashboards and what label values mean. With them come `process_cpu_seconds_total`,
`process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_start_time_seconds`,
`process_open_fds` and `process_max_fds`.

## The service"""
_OPERATOR = """\
## The operator

At `/metrics` of `--listen`. Beside these: `extproc_benchmark_last_run_started_timestamp_seconds`,
`…_last_run_finished_…` and `…_next_run_…`. What a status does not have has no series. There is no counter of
all runs: each series says what an object says now."""
_SPEC = """\
# Benchmark spec

What a spec file of `extproc bench` may hold, section by section. [How to run the
benchmark](../how-to/benchmark.md) has an example. Fields are spelt with hyphens or with underscores. A rate
is `10 qps`, `600/m` or `inf`; a duration `30s`, `10m` or `250ms`. Datasets, shapes, APIs and presets have
[their own page](benchmark-datasets.md)."""
_DATASET = """\
# Datasets, shapes, APIs

What `dataset`, `shape`, `target.api` and `preset` of a [spec](benchmark-spec.md) may be. Options stand
beside the name: `dataset: {name: random, input-tokens: 300}`. `input-length` and `max-output-length` belong to
the traffic shape, for every dataset."""
_RESOURCE = """\
# The resource Benchmark

`apiVersion: extproc.dev/v1alpha1`, `kind: Benchmark`. Its `spec` has every field of a [spec
file](benchmark-spec.md) but `name`, and those below. [How to run benchmarks in a
cluster](../how-to/benchmark-in-cluster.md)."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something differs"
    )
    wrong = stale()
    if parser.parse_args().check:
        print(
            f"run `make reference`: {', '.join(wrong)}"
            if wrong
            else "docs/reference is what the code gives"
        )
        return bool(wrong)
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / f"{name}.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
