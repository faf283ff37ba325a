"""What a run is made of, what is refused before it is made, and its last words."""

import re

import yaml
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.report.brief import Brief, build_brief, decode_brief, encode_brief
from extproc.bench.spec.tree import parse_spec
from extproc.operator.objects import Object, Run, list_objects, merge_job
from extproc.operator.reconcile import find_spec_faults
from extproc.operator.resource import parse_benchmark
from extproc.operator.web import PHASES
from tests.manifests.types_of_kubernetes import KUBERNETES, check
from tests.operator.made import EVERYTHING, objects_of
from tests.operator.statuses import benchmark_named, everything, scrape_operator, searching
from tests.operator.world import NOON, SPEC, World
from tests.tables import table


@table("spec", [{}, EVERYTHING], ids=["least", "everything"])
def test_whatever_is_made_belongs_to_the_benchmark_has_its_kinds_fields_and_is_hardened(
    spec: Object,
) -> None:
    for made in objects_of(**spec):
        check(made, KUBERNETES[-1])
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


@table("name", ["llama-3.1-8b", "8b", "a" * 32])
def test_parts_have_names_that_can_be_hosts_whatever_the_benchmark_is_called(name: str) -> None:
    """An Indexed Job's Pods are hosts of its name: a DNS label that begins with a letter."""
    world = World(spec={**SPEC, "workers": 100})
    body = world.body()
    benchmark = parse_benchmark(body | {"metadata": body["metadata"] | {"name": name}})
    [*_, parts] = list_objects(Run(benchmark, f"{benchmark.stem}-29881500", NOON), "image:1", NOON)

    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", f"{parts['metadata']['name']}-99")


def test_merging_needs_the_results_alone_and_a_spec_file_is_the_resources_own() -> None:
    benchmark = parse_benchmark(World(spec={**SPEC, **EVERYTHING}).body())
    made = merge_job(Run(benchmark, "b-1", NOON), "image:1")
    command = made["spec"]["template"]["spec"]["containers"][0]["command"]
    (config,) = [each for each in objects_of(**EVERYTHING) if each["kind"] == "ConfigMap"]
    text = config["data"]["benchmark.yaml"]

    check(made, KUBERNETES[-1])
    assert command[2:5] == ["report", "/results/b/b-1", "--output"]
    assert parse_spec(text) == benchmark.spec
    assert set(yaml.safe_load(text)) == {"name", *SPEC}


def test_pods_of_runs_are_pulled_and_placed_as_the_benchmark_says() -> None:
    [pod] = [
        made["spec"]["template"]["spec"]
        for made in objects_of(**EVERYTHING)
        if made["kind"] == "Job"
    ]

    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["tolerations"] == EVERYTHING["pods"]["tolerations"]
    assert pod["nodeSelector"] == {"pool": "load"}


def test_reports_outlive_the_benchmark_if_that_is_asked() -> None:
    (kept,) = [
        made
        for made in objects_of(results={"keep": True})
        if made["kind"] == "PersistentVolumeClaim"
    ]

    assert "ownerReferences" not in kept["metadata"]
    kinds = [made["kind"] for made in objects_of(results={"claim": "mine"})]
    assert "PersistentVolumeClaim" not in kinds


RANDOM = {"name": "random", "input_tokens": 8}
SWEEP: Object = {"mode": "sweep", "ab": {"command": ["x"]}}


@table(
    ("shape", "spec", "fault"),
    [
        ({"vus": 3, "duration": 10, "dataset": RANDOM}, {"workers": 5}, "cannot share"),
        ({"req-rate": 10, "duration": 10, "dataset": RANDOM}, SWEEP, "sweep.concurrency"),
        # The operator reads and runs nothing of a spec.
        ({"vus": 1, "dataset": {"name": "share-gpt", "path": "/data/x.json"}}, {}, ""),
        ({"vus": 1, "duration": 10}, {"plugins": ["/data/mine.py"]}, ""),
    ],
)
def test_spec_that_cannot_be_run_is_refused_before_all_else(
    shape: Object, spec: Object, fault: str
) -> None:
    body = World(spec={"endpoint": "llm", "performance": {"traffic-shape": shape}, **spec}).body()
    faults = find_spec_faults(parse_benchmark(body))

    assert fault in " ".join(faults)
    assert bool(faults) == bool(fault)


TEXTS = st.lists(st.text(max_size=400), max_size=30)
FIGURES = st.dictionaries(st.text("abc_", max_size=8), st.floats(0, 1e9) | st.none(), max_size=15)


@given(TEXTS, TEXTS, FIGURES)
def test_last_words_fit_in(
    faults: list[str], remarks: list[str], figures: dict[str, float | None]
) -> None:
    made = build_brief("t" * 500, False, faults, remarks, figures)
    text = encode_brief(made)

    assert len(text) <= 4096
    read = decode_brief(text.decode())
    assert isinstance(read, Brief)
    assert read.faults == made.faults[: len(read.faults)]
    assert set(read.figures) == {name for name, value in figures.items() if value is not None}


@table("text", ["", "extproc: no such model", "{}", "[1]"])
def test_other_last_words_are_no_brief(text: str) -> None:
    assert decode_brief(text) is None


async def test_metrics_say_what_the_statuses_say() -> None:
    samples = await scrape_operator(everything())
    slower = "default", "slower"

    assert samples["extproc_benchmark_info", *slower, "run", "llama"] == 1
    assert samples["extproc_benchmark_figure", *slower, "req_per_s"] == 5
    assert samples["extproc_benchmark_figure", *slower, "ttft_p95_ms"] == 1000
    assert samples["extproc_benchmark_runs", *slower, "Valid"] == 4
    assert samples["extproc_benchmark_regressions", *slower] == 2
    assert samples["extproc_benchmark_last_run_finished_timestamp_seconds", *slower] == 1795363200
    assert samples["extproc_benchmark_next_run_timestamp_seconds", *slower] == 1795366800
    assert samples["extproc_benchmark_runs", "other", "cut-short", "Invalid"] == 1
    assert samples["extproc_benchmark_progress_ratio", "other", "chat"] == 0.45
    phases = {
        key[1:]: value for key, value in samples.items() if key[0] == "extproc_benchmark_phase"
    }
    assert len(phases) == 7 * len(PHASES)
    assert sorted(key for key, value in phases.items() if value) == [
        ("default", "chat", "Valid"),
        ("default", "hostile", "Valid"),
        ("default", "refused", "Refused"),
        ("default", "slower", "Valid"),
        ("other", "chat", "Running"),
        ("other", "cut-short", "Invalid"),
    ]


async def test_figures_of_a_benchmark_are_bounded_and_progress_of_a_search_is_no_number() -> None:
    body = benchmark_named(searching(), "search")
    body["status"]["figures"] = {f"f{number}": number for number in range(1000)}
    names = [key[0] for key in await scrape_operator({("default", "search"): body})]

    assert names.count("extproc_benchmark_figure") == 50
    assert body["status"]["progress"] == "run 3 of at most 12"
    assert "extproc_benchmark_progress_ratio" not in names
