from pathlib import Path

import pytest
import yaml

from extproc.bench.experiments.plan import ClientHost, Plan, plan, plan_text
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload
from extproc.errors import SettingsError
from tests.bench.running import call
from tests.bench.synthetic import spec
from tests.tables import table

HOST = ClientHost(cores=2, ports=28_000, files=1024)
TRAFFIC = {
    "req_rate": 10,
    "duration": 20,
    "total_prompts": None,
    "dataset": {"name": "random", "turns": "prompts"},
}


def plan_of(host: ClientHost = HOST, processes: int = 1, **traffic: object) -> Plan:
    made = spec(**{**TRAFFIC, **traffic}).model_copy(update={"processes": processes})
    return plan(made, build_workload(made, build_registry()), host, latency_s=2.0)


def test_plan_counts_starts_requests_and_connections() -> None:
    made = plan_of()

    assert sum(made.starts) == made.honesty.prompts == 200
    assert made.offered_rps == pytest.approx(10, rel=0.01)
    assert made.peak_rps == pytest.approx(10, rel=0.1)
    assert made.in_flight == pytest.approx(20, abs=2)
    assert made.faults == ()


def test_plan_of_a_closed_loop_has_no_schedule_and_one_connection_per_user() -> None:
    dataset = {"name": "random", "turns": "prompts", "max_prompts": 50}
    made = plan_of(req_rate=None, vus=7, dataset=dataset)

    assert (made.starts, made.in_flight) == ((), 7)
    assert made.honesty.prompts == 50  # one cycle
    assert "none: users ask again" in plan_text(made)


@table(
    ("host", "traffic", "fault"),
    [
        (ClientHost(2, 10, 1024), {}, "20 connections at once from 10 local ports"),
        (ClientHost(2, 28_000, 70), {}, "84 open files per process, 70 allowed"),
        (HOST, {"req_rate": 5000, "duration": 1}, "cores are needed"),
    ],
)
def test_impossible_runs_are_refused(
    host: ClientHost, traffic: dict[str, object], fault: str
) -> None:
    assert any(fault in found for found in plan_of(host, 1, **traffic).faults)


def test_plan_says_what_sessions_really_offer_in_a_short_window() -> None:
    """Turns of ten seconds each do not come in a window of twenty; prompts of their own do."""
    sessions = plan_of(req_rate=3, arrivals="poisson", dataset={"name": "synthetic"}, think_time=8)
    prompts = plan_of(req_rate=3, dataset={"name": "synthetic", "turns": "prompts"}, think_time=8)

    assert sessions.due_rps is not None
    assert sessions.due_rps < 0.5 * (sessions.offered_rps or 0)
    assert any("would be due in the window" in remark for remark in sessions.remarks)
    assert "due in the window" in plan_text(sessions)
    assert prompts.due_rps == pytest.approx(prompts.offered_rps, rel=0.05)
    assert not any("would be due" in remark for remark in prompts.remarks)


def test_more_processes_make_a_fast_run_possible() -> None:
    host = ClientHost(cores=8, ports=60_000, files=100_000)

    assert plan_of(host, req_rate=1000, duration=1).faults
    assert not plan_of(host, req_rate=1000, duration=1, processes=8).faults
    assert "4 processes share 2 core(s)" in plan_of(processes=4).remarks
    capped = plan_of(max_concurrency=5).remarks
    assert any("5 at once are 2.5 req/s at most: the cap" in remark for remark in capped)


def test_text_shows_the_schedule_as_bars() -> None:
    text = plan_text(plan_of(shape={"name": "ramp", "to": 20, "over": 20}))

    assert all(part in text for part in ("▅▅", "█", "ideal hit rate"))


def write_spec_file(path: Path, traffic: dict[str, object]) -> str:
    tree = {"endpoint": "127.0.0.1", "port": 8000, "performance": {"traffic-shape": traffic}}
    path.write_text(yaml.safe_dump(tree))
    return str(path)


@pytest.mark.parametrize("latency", ["-5", "0", "soon"])
def test_plan_command_prints_and_refuses_a_latency_that_nobody_takes(
    latency: str, tmp_path: Path
) -> None:
    path = write_spec_file(tmp_path / "a.yaml", {"req-rate": "5 qps", "duration": "10s"})
    result = call("plan", path)

    assert result.exit_code == 0, result.output
    assert "schedule" in result.stdout
    assert "possible" in result.stderr
    assert call("plan", path, "--latency", latency).exit_code == 2


REFUSED = yaml.safe_load((Path(__file__).parent / "data" / "refused.yaml").read_text())
RIGHT = {"req-rate": 5, "duration": 10, "dataset": "random"}


@pytest.mark.parametrize(
    ("kind", "number"),
    [(kind, n) for kind in ("fields", "traffic") for n in range(len(REFUSED[kind]))],
)
def test_plan_calls_impossible_what_run_does(kind: str, number: int, tmp_path: Path) -> None:
    fields, fault = REFUSED[kind][number]
    traffic, own = ({**RIGHT, **fields}, {}) if kind == "traffic" else (RIGHT, fields)
    path = tmp_path / "spec.yaml"
    tree = {"endpoint": "127.0.0.1", "port": 8000, "performance": {"traffic-shape": traffic}, **own}
    path.write_text(yaml.safe_dump(tree))

    plan_of = call("plan", path)
    run = call("run", path, "--quiet")

    assert plan_of.exit_code == 2
    # A panel breaks its lines, long words too.
    assert "".join(fault.split()) in "".join(plan_of.stderr.replace("│", " ").split())
    assert isinstance(run.exception, SettingsError)
    assert fault in str(run.exception)


def test_plan_and_dataset_give_one_account(tmp_path: Path) -> None:
    path = write_spec_file(
        tmp_path / "a.yaml",
        {
            "req-rate": 5,
            "duration": 20,
            "dataset": "random",
            "traffic-spike": {"burst": 5, "after": 5},
        },
    )
    plan_of = call("plan", path)
    result = call("dataset", path)

    assert result.exit_code == 0
    assert "conversations    125, requests 125" in result.output
    assert result.output in plan_of.output


def test_plan_says_that_answers_last_longer_than_the_warm_up() -> None:
    """A thousand tokens take about 45 s: nothing ends in the first part of the window."""
    made = spec(
        **{
            **TRAFFIC,
            "duration": 120,
            "warm_up": 30,
            "dataset": {"name": "random", "output_tokens": 1000},
        }
    )
    found = plan(made, build_workload(made, build_registry()), HOST)

    assert found.latency_s == 45.0
    assert "short warm-up" in found.remarks[-1]
    assert "warm up for 54 s" in found.remarks[-1]
