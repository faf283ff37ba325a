"""What a run is made of, what it is planned to be, and its last words."""

import base64
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.bench.report.brief import Brief, build_brief, decode_brief, encode_brief
from extproc.bench.spec.tree import parse_spec
from extproc.operator.objects import Object, PreparedDataset, Run, list_objects, merge_job
from extproc.operator.planning import plan_apart, plan_benchmark, read_cpu
from extproc.operator.resource import parse_benchmark
from extproc.operator.state import Planned
from tests.bench.kube_fields import unknown_fields
from tests.operator.made import EVERYTHING, objects_of
from tests.operator.world import NOON, SPEC, World, brief


@pytest.mark.parametrize("spec", [{}, EVERYTHING], ids=["least", "everything"])
def test_objects_have_only_fields_of_their_kind(spec: Object) -> None:
    for made in objects_of(**spec):
        assert list(unknown_fields(made, f"V1{made['kind']}")) == []


@pytest.mark.parametrize("spec", [{}, EVERYTHING], ids=["least", "everything"])
def test_whatever_is_made_belongs_to_the_benchmark_and_is_hardened(spec: Object) -> None:
    for made in objects_of(**spec):
        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Benchmark", "u", True)
        assert len(made["metadata"]["name"]) <= 57
        if made["kind"] == "Job":
            pod = made["spec"]["template"]["spec"]
            assert pod["automountServiceAccountToken"] is False
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
            mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
            assert mounts == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("name", ["llama-3.1-8b", "8b", "a" * 32])
def test_parts_have_names_that_can_be_hosts_whatever_the_benchmark_is_called(name: str) -> None:
    """An Indexed Job's Pods are hosts of its name: a DNS label that begins with a letter."""
    world = World(spec={**SPEC, "workers": 100})
    body = world.body()
    benchmark = parse_benchmark(body | {"metadata": body["metadata"] | {"name": name}})
    [*_, parts] = list_objects(Run(benchmark, f"{benchmark.stem}-29881500", NOON), "image:1", NOON)

    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", f"{parts['metadata']['name']}-99")


def test_merging_needs_the_results_alone() -> None:
    benchmark = parse_benchmark(World(spec={**SPEC, **EVERYTHING}).body())
    made = merge_job(Run(benchmark, "b-1", NOON), "image:1")
    command = made["spec"]["template"]["spec"]["containers"][0]["command"]

    assert list(unknown_fields(made, "V1Job")) == []
    assert command[2:5] == ["report", "/results/b/b-1", "--output"]


def test_reports_outlive_the_benchmark_if_that_is_asked() -> None:
    (kept,) = [made for made in objects_of(results={"keep": True}) if made["kind"] == "PersistentVolumeClaim"]

    assert "ownerReferences" not in kept["metadata"]
    kinds = [made["kind"] for made in objects_of(results={"claim": "mine"})]
    assert "PersistentVolumeClaim" not in kinds


def test_small_dataset_is_an_object_that_every_run_of_a_schedule_has() -> None:
    """It is made once, does not change, and belongs to the Benchmark."""
    dataset = PreparedDataset("d1", b"zipped")
    world = World(spec={**SPEC, "schedule": "* * * * *"}, planned=Planned(dataset=dataset))
    for _ in range(3):
        world.after(minutes=1)
        world.settle()
        leader = world.objects["Job", world.active()[0].name]["spec"]["template"]["spec"]
        world.end(brief())
        world.settle()
    made = world.objects["ConfigMap", "b-data-d1"]

    assert world.made.count("ConfigMap/b-data-d1") == 1
    assert made["immutable"] is True
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert "extproc.dev/run" not in made["metadata"]["labels"]
    assert base64.b64decode(made["binaryData"]["d1.jsonl.gz"]) == b"zipped"
    assert world.status["dataset"] == "configmap/b-data-d1"
    volumes = [each["configMap"]["name"] for each in leader["volumes"] if "configMap" in each]
    assert "b-data-d1" in volumes
    command = leader["containers"][0]["command"]
    folders = [command[i + 1] for i, word in enumerate(command) if word == "--datasets"]
    assert folders == ["/etc/benchmark-dataset", "/results/b/datasets"]


def test_dataset_that_is_no_object_is_kept_on_the_claim() -> None:
    world = World()
    world.settle()

    assert world.status["dataset"] == "b-results/b/datasets"
    assert [key for key in world.objects if "data" in key[1]] == []


@pytest.mark.parametrize(
    ("prompts", "mode", "has_object"), [(100, "run", True), (20_000, "run", False), (100, "ab", False)]
)
def test_plan_has_the_dataset_of_a_run_if_it_is_small(prompts: int, mode: str, has_object: bool) -> None:
    shape = {"req-rate": 10, "total-prompts": prompts, "dataset": {"name": "random", "input_tokens": 200}}
    planned = plan_of(shape, mode=mode, ab={"command": ["x"]})

    assert planned.faults == ()
    assert (planned.dataset is not None) is has_object


def test_spec_file_of_a_run_is_the_resources_own() -> None:
    (made,) = [made for made in objects_of(**EVERYTHING) if made["kind"] == "ConfigMap"]
    text = made["data"]["benchmark.yaml"]

    assert parse_spec(text) == parse_benchmark(World(spec={**SPEC, **EVERYTHING}).body()).spec
    assert set(yaml.safe_load(text)) == {"name", *SPEC}


def plan_of(shape: Object, **spec: object) -> Planned:
    body = World(spec={"endpoint": "llm", "performance": {"traffic-shape": shape}, **spec}).body()
    return plan_benchmark(parse_benchmark(body))


RANDOM = {"name": "random", "input_tokens": 8}


@pytest.mark.parametrize(
    ("shape", "spec", "fault"),
    [
        ({"req-rate": 10, "duration": 10, "dataset": "no-such"}, {}, "no dataset"),
        ({"vus": 3, "duration": 10, "dataset": RANDOM}, {"workers": 5}, "cannot share"),
        ({"req-rate": 10, "duration": 10, "warm-up": 10, "dataset": RANDOM}, {}, "leave nothing"),
        (
            {"req-rate": 1000, "duration": 10, "dataset": RANDOM},
            {"mode": "ab", "ab": {"command": ["x"]}},
            "cores",
        ),
        (
            {"req-rate": 10, "duration": 10, "dataset": RANDOM},
            {"mode": "sweep", "ab": {"command": ["x"]}},
            "sweep.concurrency",
        ),
    ],
)
def test_plan_refuses_what_cannot_be(shape: Object, spec: Object, fault: str) -> None:
    assert fault in " ".join(plan_of(shape, **spec).faults)


def test_plan_of_many_workers_allows_more() -> None:
    shape = {"req-rate": 1000, "duration": 2, "dataset": RANDOM}

    assert "cores are needed" in plan_of(shape).faults[0]
    assert plan_of(shape, workers=8).faults == ()


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ({"vus": 1, "dataset": {"name": "share-gpt", "path": "/data/x.json"}}, {}),
        ({"vus": 1, "duration": 10}, {"plugins": ["/data/mine.py"]}),
    ],
)
def test_operator_reads_and_runs_nothing_of_a_spec(shape: Object, spec: Object) -> None:
    assert plan_of(shape, **spec).faults == ()


ENDLESS = {"name": "synthetic", "turns_min": 100_000_000}


@pytest.mark.parametrize(
    ("dataset", "longest_s", "expected"),
    [
        (RANDOM, 60, True),
        ({"name": "random", "input_tokens": 1_000_000_000}, 60, False),
        ({"name": "random", "input_tokens": 10_000_000}, 60, False),
        (ENDLESS, 0.01, False),
    ],
    ids=["small", "one prompt too large", "together too large", "too long"],
)
def test_plan_takes_no_more_memory_and_time_than_it_may(
    dataset: Object, longest_s: float, expected: bool
) -> None:
    """A dataset that only a Pod can hold is no fault of the spec, and no end of the operator."""
    shape = {"req-rate": 10, "total-prompts": 100, "dataset": dataset}
    body = World(spec={"endpoint": "llm", "performance": {"traffic-shape": shape}}).body()
    planned = plan_apart(parse_benchmark(body), longest_s=longest_s)

    assert planned.faults == ()
    assert (planned.dataset is not None) is expected


def test_cpu_is_read_as_kubernetes_writes_it() -> None:
    assert (read_cpu("2"), read_cpu("500m"), read_cpu("1.5")) == (2.0, 0.5, 1.5)


@settings(deadline=None)
@given(
    st.lists(st.text(max_size=400), max_size=30),
    st.lists(st.text(max_size=400), max_size=30),
    st.dictionaries(st.text("abc_", max_size=8), st.floats(0, 1e9) | st.none(), max_size=15),
)
def test_last_words_fit_and_are_understood(
    faults: list[str], remarks: list[str], figures: dict[str, float | None]
) -> None:
    made = build_brief("t" * 500, False, faults, remarks, figures)
    text = encode_brief(made)

    assert len(text) <= 4096
    read = decode_brief(text.decode())
    assert isinstance(read, Brief)
    assert read.faults == made.faults[: len(read.faults)]
    assert set(read.figures) == {name for name, value in figures.items() if value is not None}


@pytest.mark.parametrize("text", ["", "extproc: no such model", "{}", "[1]"])
def test_other_last_words_are_no_brief(text: str) -> None:
    assert decode_brief(text) is None
