"""What is found in what was seen; and what is near a fault, and is none."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from msgspec import convert

from extproc.doctor.admin_ports import EnvoySeen, ExtProcFilter, PoolSeen, read_version
from extproc.doctor.evidence import ClusterSeen, EngineSeen, Evidence, MetricsPage
from tests.doctor.looking import doctor_settings, rules
from tests.tables import table

ROOT = Path(__file__).parents[2]
A = "10.0.0.1:8000"
FILTER = ExtProcFilter("clients", "extproc", True, 605.0, True, [("all", 0.0)])
OFF = ExtProcFilter("clients", "extproc", True, 605.0, True, [], ["all"])
INSIDE: dict[str, Any] = {"endpoints": {"kubernetes": {"service": "vllm", "port": 8000}}}
SHARE = {"cluster": "lab", "secret": {"env": "S"}, "mesh": {"peers": {"static": []}}}
RUNNING: dict[str, Any] = {"name": "tiny", "endpoints": []}
TWO = ClusterSeen(replicas=2)
LOST = {"presumed_share": 0.5, "predicted_hit_rate": 0.8, "measured_hit_rate": 0.1}


def metrics_page(text: str) -> MetricsPage:
    """Reads `picks_total{reason="session"} 5` as of the pool, `vllm:…` as of an engine; `;` parts them."""
    lines = [line if line.startswith("vllm:") else f"extproc_{line}" for line in text.split("; ")]
    return MetricsPage.parse("\n".join(lines).replace("{reason", '{pool="tiny",reason') + "\n")


def seen(metrics: str = "", engine: str = "", **fields: Any) -> Evidence:
    """The service's metrics, an engine's, and what else there is; the settings by their names."""
    given = doctor_settings(
        A, **{name: fields.pop(name) for name in {*fields} - {*Evidence.__dataclass_fields__}}
    )
    fields["pools"] = convert(fields.get("pools", ()), list[PoolSeen])
    one = EngineSeen("tiny", A, A, "ready", "200", metrics_page(engine), metrics_page(engine))
    known: dict[str, Any] = {
        "first": metrics_page(metrics),
        "last": metrics_page(metrics),
        "engines": [one],
        **fields,
    }
    return Evidence(given, **known)


def envoy_seen(counters: Any = None, **change: Any) -> EnvoySeen:
    return EnvoySeen(True, [replace(FILTER, **change)], counters or {})


def cache_seen(looked: int, found: int, sessions: int) -> Evidence:
    counts = f"vllm:prefix_cache_queries_total {looked}; vllm:prefix_cache_hits_total {found}"
    metrics = f'picks_total{{reason="session"}} {sessions}; answers_total{{reason=""}} {sessions}'
    return seen(metrics, f'vllm:cache_config_info{{kv_cache_size_tokens="84000"}} 1; {counts}')


def prefills_seen(count: int, seconds: float, tokens: int = 100_000, **strategy: Any) -> Evidence:
    took, strategy = "vllm:request_prefill_time_seconds", {"name": "prefix_cache", **strategy}
    metrics = (
        f"{took}_count {count}; {took}_sum {seconds}; vllm:prefix_cache_queries_total {tokens}"
    )
    return seen("", metrics, strategy=strategy)


def answers_seen(picks: int, in_flight: int, answers: int, **fields: Any) -> Evidence:
    kinds = {"picks_total": picks, "endpoint_in_flight": in_flight, "answers_total": answers}
    return seen(
        "; ".join(f'{name}{{reason=""}} {count}' for name, count in kinds.items()), **fields
    )


def arrivals_seen(count: int, picks: int, **fields: Any) -> Evidence:
    before, after = (
        metrics_page(f"vllm:request_success_total {number}") for number in (100, 100 + count)
    )
    engine = EngineSeen("tiny", A, A, "ready", "200", before, after)
    known: dict[str, Any] = {
        "first": metrics_page("picks_total 7"),
        "last": metrics_page(f"picks_total {7 + picks}"),
    }
    return seen(**known | {"engines": [engine], **fields})


def rows() -> Iterator[tuple[Evidence, set[str]]]:
    yield seen(), set()
    yield seen(faults=["no pool is ready"]), {"not_ready"}
    yield seen('info{version="0.0.1"} 1'), {"version_differs"}
    yield seen("config_refused 1"), {"config_refused"}
    yield seen(pools=[RUNNING | {"fault": "no Service vllm"}]), {"list_old"}
    yield (
        seen(engines=[EngineSeen("tiny", A, A, state) for state in ("busy", "cooling")]),
        {"busy", "cooling"},
    )
    yield seen(engines=[EngineSeen("tiny", A, A, "unknown", "503")]), {"unknown"}
    yield seen(engines=[EngineSeen("tiny", A, A, "unknown", "200")]), set()
    yield answers_seen(100, 0, 49), {"outcomes_missing"}
    yield answers_seen(100, 0, 50), set()
    yield answers_seen(100, 0, 0, cool_after=None), set()
    yield seen(envoy=EnvoySeen(True)), {"not_asked"}
    yield seen(envoy=EnvoySeen(True, [OFF])), {"not_asked_on_routes"}
    yield seen(envoy=EnvoySeen(True, [OFF, FILTER])), set()
    yield seen(envoy=EnvoySeen(silence=("http://a", "no answer"))), {"envoy_silent"}
    for old in ((1, 30, 12), (1, 36, 9), (1, 38, 3), (1, 39, 0)):
        yield seen(envoy=replace(EnvoySeen(True, [FILTER]), version=old)), {"envoy_old"}
    for new in ((1, 36, 10), (1, 39, 1), (1, 40, 0), (2, 0, 0), None):
        yield seen(envoy=replace(EnvoySeen(True, [FILTER]), version=new)), set()
    yield seen(silence=("http://a", "no answer")), {"not_running"}
    yield seen(engines=[EngineSeen("tiny", A, A, "", "no answer")]), {"engine_silent"}
    yield seen(engines=[EngineSeen("tiny", A, A, "", "503")]), set()
    yield seen(engines=[EngineSeen("tiny", A, A, "ready", "200", refusal=401)]), {"engine_key"}
    yield seen(envoy=EnvoySeen(True, [FILTER], hosts={"10.0.0.9:9002": False})), {"not_reached"}
    yield seen(envoy=envoy_seen({"streams_started": 100, "message_timeouts": 6})), {"passed_by"}
    yield seen(envoy=envoy_seen({"streams_started": 3, "failure_mode_allowed": 3})), set()
    yield seen(envoy=envoy_seen(routes=[("a", 300.0)])), set()
    yield seen(envoy=envoy_seen(fails_open=False), when_down="closed"), set()
    yield seen(envoy=envoy_seen(wait_s=31.0), hold={"wait_s": 30.0}), {"hold_cut"}
    yield seen(envoy=envoy_seen(wait_s=32.0), hold={"wait_s": 30.0}), set()
    yield seen(envoy=replace(envoy_seen(), clock=(3.0, 5.0)), clock=(3.5, 5.5)), set()
    yield seen(listen="0.0.0.0:9002"), {"port_open"}
    yield seen(listen=":9002", **INSIDE), {"port_unseen"}
    yield seen(listen=":9002", cluster=ClusterSeen(is_guarded=False), **INSIDE), {"port_open"}
    yield seen(listen=":9002", cluster=ClusterSeen(is_guarded=True), **INSIDE), set()
    yield seen(cluster=TWO), {"not_shared"}
    yield (
        seen(envoy=replace(envoy_seen(), hosts={"10.0.0.8:9002": True, "10.0.0.9:9002": True})),
        {"not_shared"},
    )
    yield seen(cluster=TWO, strategy={"name": "prefix_cache", "gateways": 2}), {"not_shared_told"}
    yield seen(cluster=TWO, strategy={"name": "prefix_hash"}), set()
    yield (
        seen(cluster=TWO, share=SHARE, pools=[RUNNING | {"share": {"heard": 0}}]),
        {"share_unheard"},
    )
    yield arrivals_seen(40, picks=30), set()
    yield arrivals_seen(40, picks=5, first=MetricsPage()), set()
    yield seen(pools=[RUNNING | {"learnt": {"endpoints": {A: LOST}}}]), {"affinity_lost"}
    for why, found in (
        ("", {"events_missing"}),
        ("gap", {"events_missing"}),
        ("silent", set[str]()),
    ):
        metrics = {
            "name": A,
            "address": A,
            "state": "ready",
            "events": {"state": "degraded", "why": why},
        }
        yield seen(pools=[RUNNING | {"endpoints": [metrics]}]), found
    for times, silent_s, slow in (
        ((0.3, 0.3, 3.0), 0.0, {"endpoint_slow"}),
        ((0.3, 0.3, 1.1), 0.0, set[str]()),
        ((3.0, 3.0, 9.0), 0.0, set[str]()),
        ((0.3, 3.0), 0.0, set[str]()),  # of two, neither is usual
        ((None, 0.3, 0.3), 59.9, set[str]()),
        ((None,), 60.0, {"endpoint_hangs"}),
    ):
        answers = [{"first_byte_s": first_s, "silent_s": silent_s} for first_s in times]
        listed = [{"name": A, "address": A, "state": "ready", **each} for each in answers]
        yield seen(pools=[RUNNING | {"endpoints": listed}]), slow
    yield cache_seen(1_000_000, 100_000, sessions=50), {"working_set"}
    yield cache_seen(1_000_000, 100_000, sessions=0), set()  # nobody repeats a prompt
    yield seen("", "vllm:num_preemptions_total 21"), {"preemptions"}
    for running in ("NaN", "+Inf", "-1", "1e308"):
        yield (
            seen("", f"vllm:num_preemptions_total 21; vllm:num_requests_running {running}"),
            {"preemptions"},
        )
    for size in ("None", "²", "9" * 5_000):
        yield (
            seen(
                "", f'vllm:cache_config_info{{kv_cache_size_tokens="84000",block_size="{size}"}} 1'
            ),
            set(),
        )
    yield prefills_seen(100, 19.0), set()
    yield prefills_seen(100, 80.0), {"engine_slower"}
    yield prefills_seen(1000, 80.0), set()  # short prompts: a step each


@table("evidence, expected", rows())
def test_a_fault_is_found_and_what_is_near_one_is_not(
    evidence: Evidence, expected: set[str]
) -> None:
    assert rules(evidence).keys() == expected


@table(
    ("version", "read"),
    [
        ("9e5580933739775e/1.40.0/Clean/RELEASE/BoringSSL", (1, 40, 0)),
        ("9e5580933739775e/1.38.2-dev/Clean/RELEASE/BoringSSL", None),  # may have been mended
        ("my own", None),
        ("a/1.40/b/c", None),
        ("a/99999.1.1/b", None),
    ],
)
def test_only_a_release_has_a_version(version: str, read: object) -> None:
    assert read_version(json.dumps({"state": "LIVE", "version": version}, indent=1)) == read


def test_every_rule_has_its_words_and_its_line_in_the_docs() -> None:
    """A rule is a text in the code of the checks; one in a comment or a docstring is none."""
    advice = yaml.safe_load((ROOT / "extproc/doctor/advice.yaml").read_text())
    checks, docs = (
        (ROOT / path).read_text() for path in ("extproc/doctor/checks.py", "docs/how-to/doctor.md")
    )
    texts = {node.value for node in ast.walk(ast.parse(checks)) if isinstance(node, ast.Constant)}
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", docs, re.MULTILINE)

    assert advice.keys() - texts == set()
    assert [(rule, words["severity"]) for rule, words in advice.items()] == rows
