"""The Benchmark resource's definition: structural, complete, and readable by `kubectl explain`."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner
from pydantic import BaseModel

from extproc.bench.spec.tree import Spec
from extproc.cli import cli
from extproc.operator.crd import build_crd, build_spec_schema
from extproc.operator.resource import Operation, SpecRefused, parse_benchmark
from tests.hosting import hosting
from tests.manifests.rendering import KUBECTL
from tests.operator.structural import find_faults, list_refusals
from tests.tables import table

ROOT = Path(__file__).parents[2]
SCHEMA = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
PROPOSED = (ROOT / "tests/bench/data/proposed.yaml").read_text()


def with_metadata(spec: dict[str, Any], name: str = "b") -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": "u",
        "creationTimestamp": "2026-11-22T00:00:00Z",
    }
    return {
        "apiVersion": "extproc.dev/v1alpha1",
        "kind": "Benchmark",
        "metadata": metadata,
        "spec": spec,
    }


def test_schema_is_structural() -> None:
    spoilt = {"type": "object", "properties": {"a": {"type": "array"}}}

    assert list(find_faults(SCHEMA)) == []
    assert list(find_faults(spoilt)) == ["root.a: items must be specified"]


def test_definition_on_disk_is_that_of_the_model() -> None:
    """Client-side apply keeps the whole object in an annotation of 256 KiB at most."""
    result = CliRunner().invoke(cli, ["operate", "--print-crd"])

    assert result.exit_code == 0
    assert (
        ROOT / "manifests" / "components" / "operator" / "crd.yaml"
    ).read_text() == result.output
    assert yaml.safe_load(result.output) == build_crd()
    assert len(json.dumps(build_crd())) < 200_000


def list_fields(model: type[BaseModel], at: str = "") -> Iterator[str]:
    """Every field of a model and of the models in it, as the file spells it."""
    for name, field in model.model_fields.items():
        path = f"{at}.{field.alias or name}"
        yield path
        for inner in _models(field.annotation):
            yield from list_fields(inner, path)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def has_field(schema: dict[str, Any], path: str) -> bool:
    for name in path.strip(".").split("."):
        schema = schema.get("items", schema)
        if name not in schema.get("properties", {}):
            return False
        schema = schema["properties"][name]
    return True


@table("model", [Spec, Operation])
def test_every_field_of_the_model_is_in_the_schema(model: type[BaseModel]) -> None:
    schema = build_spec_schema()
    missing = {path for path in list_fields(model) if not has_field(schema, path)}

    # The object's own name is the run's.
    assert missing <= {".name"}


def test_proposed_resource_is_taken_as_it_was_written() -> None:
    tree = yaml.safe_load(PROPOSED)

    assert list_refusals(SCHEMA["properties"]["spec"], tree["spec"]) == []
    benchmark = parse_benchmark(with_metadata(tree["spec"], tree["metadata"]["name"]))
    assert (benchmark.spec.name, benchmark.spec.traffic.req_rate) == ("llama3-405b-2024-07-01", 10)
    assert (benchmark.spec.traffic.dataset.name, benchmark.operation) == ("share-gpt", Operation())


@table(
    "spec",
    [
        {"req-rate": "0.5", "duration": "10m", "dataset": {"name": "random", "input_tokens": 8}},
        {"vus": 5, "duration": 60, "think-time": {"kind": "exponential", "mean": 10}},
        {"preset": "kubeai-8xl4", "req-rate": "200 qps", "max-concurrency": 1600},
        {"req-rate": "inf", "total-prompts": 100},
        {"req-rate": 10, "duration": 60, "shape": {"name": "ramp", "to": "50 qps", "over": "5m"}},
    ],
)
def test_what_a_spec_file_may_say_the_schema_takes(spec: dict[str, Any]) -> None:
    tree = {"endpoint": "llm:8000", "performance": {"traffic-shape": spec}}

    assert list_refusals(SCHEMA["properties"]["spec"], tree) == []
    parse_benchmark(with_metadata(tree))


@table(
    ("spec", "at"),
    [
        ({"port": "http"}, "port"),
        ({"workers": 0}, "workers"),
        ({"mode": "race"}, "mode"),
        ({"wokers": 2}, ""),
        ({"seed": 1.5}, "seed"),
        (
            {"performance": {"traffic-shape": {"duration": "soon"}}},
            "performance.traffic-shape.duration",
        ),
        (
            {"performance": {"traffic-shape": {"req-rate": True}}},
            "performance.traffic-shape.req-rate",
        ),
    ],
)
def test_misspelt_resource_is_refused_by_the_api_server_already(
    spec: dict[str, Any], at: str
) -> None:
    tree = {"endpoint": "llm:8000", "performance": {"traffic-shape": {"vus": 1}}} | spec
    (refusal,) = list_refusals(SCHEMA["properties"]["spec"], tree)

    assert refusal.partition(":")[0] == at


def test_every_fault_of_a_spec_is_reported_at_once_and_a_schedule_is_crons() -> None:
    faulty = {"performance": {"traffic-shape": {}}, "workers": 0, "schedule": "soon"}
    good = {"endpoint": "x", "performance": {"traffic-shape": {"vus": 1, "duration": 1}}}

    with pytest.raises(SpecRefused) as refused:
        parse_benchmark(with_metadata(faulty, "n" * 40))
    for fault in ("metadata.name", "endpoint", "traffic-shape", "workers", "schedule"):
        assert fault in str(refused.value)
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"a": deep}
    odd = {"target": {"body": deep}}, {"start-within-seconds": 10**12}, {"deadline-seconds": 10**12}
    for each in odd:
        with pytest.raises(SpecRefused, match=r"nested deeper|within-seconds|deadline-seconds"):
            parse_benchmark(with_metadata({**good, **each}))
    for schedule in ("0 3 * * * *", "* * *", "61 * * * *", ""):
        with pytest.raises(SpecRefused, match="schedule"):
            parse_benchmark(with_metadata({**good, "schedule": schedule}))


def test_what_does_not_make_another_run_does_not_change_its_name() -> None:
    tree: dict[str, Any] = {
        "endpoint": "x",
        "performance": {"traffic-shape": {"vus": 1, "duration": 1}},
    }
    same = [tree, tree | {"suspend": True}, tree | {"history-limit": 3}]
    other = [tree, tree | {"seed": 1}, tree | {"workers": 2}]

    assert len({parse_benchmark(with_metadata(each)).digest for each in same}) == 1
    assert len({parse_benchmark(with_metadata(each)).digest for each in other}) == 3


def test_definition_has_the_columns_that_one_looks_for() -> None:
    columns = build_crd()["spec"]["versions"][0]["additionalPrinterColumns"]

    assert [column["name"] for column in columns if not column.get("priority")] == [
        *("Phase", "Verdict", "Progress", "Req/s", "TTFT p95", "Message", "Age")
    ]
    for column in columns:
        assert column["jsonPath"].startswith((".metadata.", ".status."))


def list_unexplained(schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """Every section of which `kubectl explain` would say nothing."""
    for name, field in schema.get("properties", {}).items():
        section = field.get("items", field)
        if "properties" in section and not section.get("description"):
            yield f"{at}.{name}"
        yield from list_unexplained(section, f"{at}.{name}")


def test_every_section_is_explained() -> None:
    assert list(list_unexplained(SCHEMA["properties"]["spec"])) == []


@asynccontextmanager
async def serving_definition() -> AsyncIterator[str]:
    """The paths of an API server that `kubectl explain` reads, with our definition as it would publish it."""
    kind = {"group": "extproc.dev", "version": "v1alpha1", "kind": "Benchmark"}
    resource = {
        "name": "benchmarks",
        "singularName": "benchmark",
        "namespaced": True,
        "kind": "Benchmark",
    }
    version = {"groupVersion": "extproc.dev/v1alpha1", "version": "v1alpha1"}
    group = {"name": "extproc.dev", "versions": [version], "preferredVersion": version}
    post = {"post": {"x-kubernetes-group-version-kind": kind, "responses": {}}}
    schema = {**SCHEMA, "x-kubernetes-group-version-kind": [kind]}
    path = "apis/extproc.dev/v1alpha1"
    answers: dict[str, dict[str, Any]] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
        f"/{path}": {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": "extproc.dev/v1alpha1",
            "resources": [resource | {"verbs": ["get", "list", "create"]}],
        },
        "/openapi/v3": {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"}}},
        f"/openapi/v3/{path}": {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": "v1.36"},
            "paths": {f"/{path}/namespaces/{{namespace}}/benchmarks": post},
            "components": {"schemas": {"dev.extproc.v1alpha1.Benchmark": schema}},
        },
    }

    async def answer(request: web.Request) -> web.Response:
        found = answers.get(request.path)
        return web.Response(status=404) if found is None else web.json_response(found)

    async with hosting({"/{path:.*}": answer}) as address:
        yield f"http://{address}"


@table(
    ("path", "text"),
    [
        ("benchmark", "A benchmark of a model server"),
        ("benchmark.spec.performance.traffic-shape", "With `req-rate` the loop is open"),
        ("benchmark.spec.performance.traffic-shape.traffic-spike", "A burst on top of the shape"),
        ("benchmark.spec.performance.traffic-shape.dataset", "max-prompts"),
        ("benchmark.spec.workers", "Default: 1."),
        ("benchmark.spec.limits", "`errors`: the share of requests that may fail"),
        ("benchmark.spec.router", "at the end, however that comes, what was there before"),
        ("benchmark.status", "written by the operator alone"),
    ],
)
async def test_kubectl_explains_the_resource(path: str, text: str, tmp_path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    async with serving_definition() as url:
        command = [str(KUBECTL), "explain", path, "--server", url, "--cache-dir", str(tmp_path)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=pipe, stderr=pipe, env={"HOME": str(tmp_path)}
        )
        out, err = await process.communicate()

    assert process.returncode == 0, err.decode()
    assert text in " ".join(out.decode().split())
