"""What is done about a Benchmark: what there is, what follows, and a crash between any two acts."""

import base64
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.bench.board import Notice
from extproc.bench.report.brief import Brief, build_brief, decode_brief, encode_brief
from extproc.bench.spec.tree import parse_spec
from extproc.controller.objects import LEADER, WORKERS, Dataset, Object, Run, list_objects
from extproc.controller.planning import plan_benchmark, read_cpu
from extproc.controller.resource import parse_benchmark
from extproc.controller.runs import find_due
from extproc.controller.state import Create, Delete, Planned, WriteStatus
from tests.bench.test_bench_manifests import unknown_fields
from tests.controller.world import NOON, SPEC, World, brief


def test_benchmark_that_was_applied_is_run_once() -> None:
    """A Job is made and the status says so; it ends, and the status has verdict and figures; nothing more."""
    world = World()
    world.settle()
    (leader,) = world.active()
    assert world.status["phase"] == "Running"
    assert world.condition("Running") == ("True", "JobIsActive")
    assert world.status["run"] == leader.run

    world.after(seconds=110)
    world.end(brief(req_per_s=9.87, ttft_p95_ms=123.4))
    world.settle()
    assert world.status["phase"] == "Valid"
    assert world.status["verdict"] == "valid"
    assert world.status["summary"] == {"requestsPerSecond": "9.87", "ttftP95": "123 ms"}
    assert world.status["report"] == f"b-results/b/{leader.run}"
    assert world.condition("Valid") == ("True", "Measured")
    assert "percentiles" in world.status["definitions"]

    world.after(hours=100)
    world.settle()
    assert world.made.count(f"Job/{leader.run}") == 1


def test_refused_spec_is_a_condition_with_the_reason_and_no_job() -> None:
    world = World(spec={**SPEC, "performance": {"traffic-shape": {}}})
    world.settle()

    assert world.objects == {}
    assert world.status["phase"] == "Refused"
    assert world.condition("Planned") == ("False", "SpecRefused")
    assert "give req-rate" in world.status["faults"][0]


def test_spec_that_the_plan_finds_impossible_makes_no_job() -> None:
    world = World(planned=Planned(faults=("3.1 cores are needed",)))
    world.settle()

    assert world.objects == {}
    assert (world.status["phase"], world.status["faults"]) == ("Refused", ["3.1 cores are needed"])


def test_refused_spec_that_is_mended_runs() -> None:
    world = World(spec={**SPEC, "workers": 0})
    world.settle()
    assert world.status["phase"] == "Refused"
    world.change(workers=1)
    world.settle()

    assert world.status["phase"] == "Running"
    assert world.condition("Planned") == ("True", "Possible")


def test_several_workers_are_an_indexed_job_behind_a_service_and_end_with_their_leader() -> None:
    world = World(spec={**SPEC, "workers": 3})
    world.settle()
    jobs = {job.part: job for job in world.active()}
    workers = world.objects["Job", jobs[WORKERS].name]["spec"]
    leader = world.objects["Job", jobs[LEADER].name]["spec"]["template"]["spec"]["containers"][0]["command"]

    assert (workers["completionMode"], workers["completions"], workers["parallelism"]) == ("Indexed", 3, 3)
    service = jobs[WORKERS].name
    assert leader[leader.index("--workers") + 1] == ",".join(
        f"{service}-{i}.{service}:9200" for i in range(3)
    )
    assert ("Service", service) in world.objects
    assert ("Secret", service) in world.objects

    world.end(brief())
    world.settle()
    assert [job.part for job in world.jobs.values()] == [LEADER]


@pytest.mark.parametrize(
    ("words", "exit_code", "phase", "valid", "failed"),
    [
        (brief(), 0, "Valid", "True", "False"),
        (
            brief(is_good=False, title="invalid: client-limited", faults=["late"]),
            3,
            "Invalid",
            "False",
            "False",
        ),
        ("extproc: target.model: there is none", 2, "Failed", "Unknown", "True"),
        ("", 137, "Failed", "Unknown", "True"),
    ],
    ids=["valid", "invalid", "refused", "killed"],
)
def test_end_of_a_run_is_a_verdict_or_a_failure(
    words: str, exit_code: int, phase: str, valid: str, failed: str
) -> None:
    world = World()
    world.settle()
    world.end(words, exit_code, None if exit_code == 0 else "BackoffLimitExceeded")
    world.settle()

    assert world.status["phase"] == phase
    assert world.condition("Valid")[0] == valid
    assert world.condition("Failed")[0] == failed
    assert (
        world.status["faults"]
        == {
            "Valid": [],
            "Invalid": ["late"],
            "Failed": [words or "BackoffLimitExceeded"],
        }[phase]
    )


def test_changed_spec_ends_what_runs_and_begins_when_its_pods_are_gone() -> None:
    world = World()
    world.settle()
    (old,) = world.active()
    world.change(seed=5)
    for action in world.decide():
        world.act(action)
    assert world.jobs[old.name].is_deleting
    # Its Pods write what they know: nothing is begun beside them.
    assert [type(action) for action in world.decide()] == []
    world.collect()
    world.settle()

    (new,) = world.active()
    assert new.run != old.run
    assert world.status["run"] == new.run


def test_suspended_benchmark_ends_what_runs_begins_nothing_and_goes_on_later() -> None:
    world = World(spec={**SPEC, "workers": 2})
    world.settle()
    world.change(suspend=True)
    world.settle()
    assert world.jobs == {}
    assert world.status["phase"] == "Suspended"
    assert world.condition("Running") == ("False", "Suspended")
    world.change(suspend=False)
    world.settle()

    assert len(world.active()) == 2
    assert world.status["phase"] == "Running"


def test_jobs_that_somebody_deleted_are_made_again() -> None:
    world = World()
    world.settle()
    (job,) = world.active()
    del world.jobs[job.name], world.objects["Job", job.name]
    world.settle()

    assert [each.name for each in world.active()] == [job.name]


def test_schedule_runs_again_and_again_and_leaves_out_what_is_due_meanwhile() -> None:
    """Every ten minutes; the run of 12:10 takes until 12:25, so that the one of 12:20 is left out."""
    world = World(spec={**SPEC, "schedule": "*/10 * * * *"}, now=datetime(2026, 11, 22, 11, 5, tzinfo=UTC))
    world.settle()
    assert world.jobs == {}
    assert (world.status["phase"], world.status["nextRunAt"]) == ("Waiting", "2026-11-22T11:10:00Z")

    world.after(minutes=6)
    world.settle()
    first = world.active()[0].run
    world.after(minutes=14)
    world.settle()
    assert [job.run for job in world.active()] == [first]
    world.end(brief(req_per_s=10))
    world.settle()
    assert world.active() == []
    assert world.status["lastScheduledAt"] == "2026-11-22T11:20:00Z"

    world.after(minutes=6)
    world.settle()
    assert len(world.active()) == 1
    assert world.active()[0].run != first


def test_history_has_a_limit_and_what_it_forgets_loses_its_job() -> None:
    world = World(spec={**SPEC, "schedule": "* * * * *", "history-limit": 3})
    runs = []
    for _ in range(6):
        world.after(minutes=1)
        world.settle()
        runs.append(world.end(brief(req_per_s=10)))
        world.settle()

    assert [entry["run"] for entry in world.status["history"]] == runs[:2:-1]
    assert sorted(job.run for job in world.jobs.values()) == sorted(runs[3:])


def test_run_that_got_worse_is_told_beside_its_verdict() -> None:
    world = World(spec={**SPEC, "schedule": "* * * * *"})
    for rate in (10.0, 10.1, 9.9, 8.0):
        world.after(minutes=1)
        world.settle()
        world.end(brief(req_per_s=rate))
        world.settle()
        assert ("regressions" in world.status) == (rate == 8.0)

    assert "req/s 8.00, before 10.00" in world.status["regressions"][0]


def test_invalid_run_is_no_regression() -> None:
    world = World(spec={**SPEC, "schedule": "* * * * *"})
    for words in (brief(req_per_s=10), brief(is_good=False, title="invalid: client-limited", req_per_s=1)):
        world.after(minutes=1)
        world.settle()
        world.end(words)
        world.settle()

    assert "regressions" not in world.status


def test_condition_says_since_when() -> None:
    world = World()
    world.settle()
    since = {each["type"]: each["lastTransitionTime"] for each in world.status["conditions"]}
    world.after(minutes=1)
    world.end(brief())
    world.settle()
    later = {each["type"]: each["lastTransitionTime"] for each in world.status["conditions"]}

    assert later["Planned"] == since["Planned"]
    assert later["Valid"] == later["Running"] == "2026-11-22T12:01:00Z"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_operator_that_dies_between_any_two_acts_ends_up_where_it_would_have(data: st.DataObject) -> None:
    """Whenever it is cut off: one run at a time, none that ended is forgotten or done again, and it rests."""
    schedule = data.draw(st.sampled_from([None, "*/2 * * * *"]))
    world = World(spec={**SPEC, "workers": data.draw(st.integers(1, 2)), "history-limit": 50})
    if schedule:
        world.spec["schedule"] = schedule
    ended: set[str] = set()
    for _ in range(data.draw(st.integers(1, 12))):
        actions = world.decide()
        for action in actions[: data.draw(st.integers(0, len(actions)))]:
            world.act(action)
        match data.draw(st.sampled_from(["time", "end", "collect", "change", "suspend", "look"])):
            case "time":
                world.after(minutes=data.draw(st.integers(1, 5)))
            case "end" if world.active(lambda job: job.part == LEADER):
                ended.add(world.end(brief(req_per_s=1)))
            case "collect":
                world.collect()
            case "change":
                world.change(seed=data.draw(st.integers(0, 2)))
            case "suspend":
                world.change(suspend=data.draw(st.booleans()))
        leaders = world.active(lambda job: job.part == LEADER)
        assert len(leaders) <= 1
    world.change(suspend=False)
    world.collect()
    world.settle()

    known = {entry["run"] for entry in world.status["history"]}
    assert ended <= known
    assert len(known) == len(world.status["history"])
    assert {job.run for job in world.active()}.isdisjoint(known)
    assert schedule or world.active() or world.status["run"] in known


def test_run_that_ended_is_in_the_status_before_its_jobs_go() -> None:
    world = World(spec={**SPEC, "workers": 2})
    world.settle()
    world.end(brief())

    assert [type(action) for action in world.decide()] == [WriteStatus, Delete]


def test_leader_is_made_last_and_what_was_made_before_a_crash_is_enough() -> None:
    world = World(spec={**SPEC, "workers": 2})
    created = [action.body for action in world.decide() if isinstance(action, Create)]

    kinds = [body["kind"] for body in created]
    assert kinds == ["ConfigMap", "PersistentVolumeClaim", "Secret", "Service", "Job", "Job"]
    assert created[-1]["metadata"]["labels"]["extproc.dev/part"] == LEADER
    for action in world.decide()[:5]:
        world.act(action)
    world.settle()
    assert len(world.active()) == 2


@pytest.mark.parametrize(
    ("after", "now", "due"),
    [
        ("11:00", "11:09", None),
        ("11:00", "11:10", "11:10"),
        ("11:10", "11:10", None),
        ("11:00", "11:35", "11:30"),
    ],
)
def test_schedule_is_due_once_however_late_one_looks(after: str, now: str, due: str | None) -> None:
    def at(text: str) -> datetime:
        return datetime.fromisoformat(f"2026-11-22T{text}:00+00:00")

    assert find_due("*/10 * * * *", at(after), at(now)) == (None if due is None else at(due))


def test_long_silence_is_not_gone_through_minute_by_minute() -> None:
    assert find_due("* * * * *", NOON - timedelta(days=3650), NOON) == NOON


def test_progress_is_what_the_leader_says() -> None:
    """1. Nothing is known before it says something. 2. Its figures so far are what `kubectl get` shows."""
    world = World()
    world.settle()
    (leader,) = world.active()
    assert "progress" not in world.status
    figures = {"req_per_s": 9.5, "ttft_p95_ms": 210.4}
    world.notices[leader.run] = Notice("b", "45%", 450, 1000, figures)
    world.settle()

    assert world.status["progress"] == "45%"
    assert world.status["soFar"] == {"doing": "b", "finished": 450, "planned": 1000, "figures": figures}
    assert world.status["summary"] == {"requestsPerSecond": "9.50", "ttftP95": "210 ms"}
    world.end(brief(req_per_s=9.87))
    world.settle()
    assert world.status["progress"] == "100%"
    assert "soFar" not in world.status
    assert world.status["summary"] == {"requestsPerSecond": "9.87"}


def test_status_is_written_when_a_leader_has_come_further_and_not_at_every_look() -> None:
    world = World()
    world.settle()
    (leader,) = world.active()
    world.notices[leader.run] = Notice("b", "45%", 450, 1000)
    world.settle()
    world.notices[leader.run] = Notice("b", "45%", 457, 1000)
    assert world.decide() == []
    del world.notices[leader.run]  # it could not be asked this time
    assert world.decide() == []
    world.notices[leader.run] = Notice("b", "46%", 460, 1000)
    assert [type(action) for action in world.decide()] == [WriteStatus]


def objects_of(**spec: object) -> list[Object]:
    benchmark = parse_benchmark(World(spec={**SPEC, **spec}).body())
    return list(list_objects(Run(benchmark, f"b-{benchmark.digest}", NOON), "image:1", "token"))


EVERYTHING = {
    "workers": 2,
    "files": {"claim": "data"},
    "results": {"size": "2Gi", "storage-class": "fast"},
    "pods": {"cpu": "2", "env-secret": "keys", "node-selector": {"pool": "load"}},
}


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


def test_reports_outlive_the_benchmark_if_that_is_asked() -> None:
    (kept,) = [made for made in objects_of(results={"keep": True}) if made["kind"] == "PersistentVolumeClaim"]

    assert "ownerReferences" not in kept["metadata"]
    kinds = [made["kind"] for made in objects_of(results={"claim": "mine"})]
    assert "PersistentVolumeClaim" not in kinds


def test_small_dataset_is_an_object_that_every_run_of_a_schedule_has() -> None:
    """It is made once, does not change, and belongs to the Benchmark."""
    dataset = Dataset("d1", b"zipped")
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


def test_workers_see_neither_spec_nor_results() -> None:
    jobs = [made for made in objects_of(**EVERYTHING) if made["kind"] == "Job"]
    paths = [
        [mount["mountPath"] for mount in job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]]
        for job in jobs
    ]

    assert paths[0] == ["/tmp", "/etc/benchmark-token"]
    assert set(paths[1]) - set(paths[0]) == {"/etc/benchmark", "/results", "/data"}


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
        ({"req-rate": 1000, "duration": 86400}, {}),
    ],
)
def test_operator_reads_and_runs_nothing_of_a_spec(shape: Object, spec: Object) -> None:
    assert plan_of(shape, **spec).faults == ()


def test_cpu_is_read_as_kubernetes_writes_it() -> None:
    assert (read_cpu("2"), read_cpu("500m"), read_cpu("1.5")) == (2.0, 0.5, 1.5)


@settings(max_examples=50, deadline=None)
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
