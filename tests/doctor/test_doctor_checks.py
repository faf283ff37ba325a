"""What is found in what was seen, in tables; what is near a fault and is none is here, too."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from extproc.doctor.checks import CHECKS
from extproc.doctor.evidence import ClusterSeen, EngineSeen, Evidence, MetricsPage
from extproc.doctor.report import judge_evidence
from extproc.envoy_admin import EnvoySeen, ExtProcFilter
from tests.doctor.looking import pool, rules, settings
from tests.tables import table

ROOT = Path(__file__).parents[2]
A, B = "10.0.0.1:8000", "10.0.0.2:8000"
HASH = {"name": "prefix_hash"}
KUBERNETES = {"endpoints": {"kubernetes": {"service": "vllm", "port": 8000}}}
SHARE = {"cluster": "lab", "secret": {"env": "S"}, "mesh": {"peers": {"static": []}}}
FILTER = ExtProcFilter("clients", "extproc", True, 605.0, True, [("all", 0.0)])


def page(**samples: float) -> MetricsPage:
    """Names with `__` for labels: `picks_total__session` of the pool, `vllm_x` of an engine."""
    lines = []
    for name, value in samples.items():
        family, _, reason = name.partition("__")
        labels = f'{{pool="tiny",reason="{reason}"}}'
        vllm = name.removeprefix("vllm_")
        lines.append(f"vllm:{vllm} {value}" if vllm != name else f"extproc_{family}{labels} {value}")
    return MetricsPage.parse("\n".join(lines) + "\n")


def engine(address: str = A, state: str = "ready", health: str = "200", **samples: float) -> EngineSeen:
    return EngineSeen("tiny", address, address, state, health, page(**samples), page(**samples))


def seen(given: Any = None, **fields: Any) -> Evidence:
    return Evidence(given or settings(pool(A, B)), **fields)


def test_nothing_is_found_where_nothing_was_seen() -> None:
    assert rules(seen()) == {}


@table(
    "picks, in_flight, answers, is_found",
    [(100, 0, 0, True), (100, 0, 40, True), (100, 0, 60, False), (19, 0, 0, False), (100, 90, 0, False)],
)
def test_outcomes_that_do_not_come_are_found(
    picks: int, in_flight: int, answers: int, is_found: bool
) -> None:
    told = page(picks_total=picks, endpoint_in_flight=in_flight, answers_total=answers)

    assert ("outcomes_unheard" in rules(seen(first=told, last=told))) is is_found
    assert "outcomes_unheard" not in rules(seen(settings(pool(A, cool_after=None)), first=told, last=told))


@table(
    "change, fields, expected",
    [
        ({}, {}, set()),
        ({"hears_outcomes": False}, {}, {"outcomes_unheard"}),
        ({"routes": [("a", 15.0), ("b", 0.0)]}, {}, {"route_timeout"}),
        ({"routes": [("a", 60.0)]}, {}, {"route_timeout"}),
        ({"routes": [("a", 300.0)]}, {}, set()),
        ({"fails_open": False}, {}, {"fails_closed"}),
        ({"fails_open": False}, {"when_down": "closed"}, set()),
        ({"wait_s": 31.0}, {"hold": {"wait_s": 30.0}}, {"hold_cut"}),
        ({"wait_s": 32.0}, {"hold": {"wait_s": 30.0}}, set()),
    ],
)
def test_a_filter_of_envoys_is_held_against_the_pool(
    change: dict[str, Any], fields: dict[str, Any], expected: set[str]
) -> None:
    envoy = EnvoySeen(True, [replace(FILTER, **change)])

    assert rules(seen(settings(pool(A, **fields)), envoy=envoy)).keys() == expected


@table(
    "envoy, expected",
    [
        (EnvoySeen(True), {"not_asked"}),
        (EnvoySeen(True, [FILTER], hosts={"10.0.0.9:9002": False}), {"not_reached"}),
        (EnvoySeen(True, [FILTER], {"streams_started": 100, "message_timeouts": 6}), {"passed_by"}),
        (EnvoySeen(True, [FILTER], {"streams_started": 1000, "failure_mode_allowed": 10}), set()),
        (EnvoySeen(True, [FILTER], {"streams_started": 3, "failure_mode_allowed": 3}), set()),
        (EnvoySeen(True, [FILTER], clock=(-1.5, 0.9)), set()),
        (EnvoySeen(True, [FILTER], clock=(3.0, 5.0)), {"clock"}),
    ],
)
def test_an_envoy_that_does_without_us_is_found(envoy: EnvoySeen, expected: set[str]) -> None:
    assert rules(seen(envoy=envoy)).keys() == expected


@table(
    "server, fields, guarded, expected",
    [
        ({"listen": "0.0.0.0:9002"}, {}, None, {"port_open"}),
        ({"listen": "127.0.0.1:9002"}, {}, None, set()),
        ({"listen": "unix:/run/extproc"}, {}, None, set()),
        ({"listen": ":9002", "tls": {"self_signed": True}}, {}, None, {"port_open"}),
        ({"listen": ":9002", "tls": {"certificate": "a", "key": "b", "client_ca": "c"}}, {}, None, set()),
        ({"listen": ":9002"}, KUBERNETES, None, {"port_unseen"}),
        ({"listen": ":9002"}, KUBERNETES, False, {"port_open"}),
        ({"listen": ":9002"}, KUBERNETES, True, set()),
    ],
)
def test_a_port_that_anybody_reaches_is_found(
    server: dict[str, Any], fields: dict[str, Any], guarded: bool | None, expected: set[str]
) -> None:
    given = settings(pool(A, **fields), server=server)

    assert rules(seen(given, cluster=ClusterSeen(is_guarded=guarded))).keys() == expected


@table(
    "strategy, share, heard, expected",
    [
        (None, None, None, {"not_shared"}),
        ({"name": "prefix_cache", "gateways": 3}, None, None, {"not_shared"}),
        ({"name": "prefix_cache", "gateways": 2}, None, None, {"not_shared_told"}),
        (HASH, None, None, set()),
        (None, SHARE, 1, set()),
        (None, SHARE, 0, {"share_unheard"}),
    ],
)
def test_replicas_that_do_not_share_are_found(
    strategy: Any, share: Any, heard: Any, expected: set[str]
) -> None:
    fields = {} if share is None else {"share": share}
    running = {"name": "tiny", "fault": None, "share": heard is not None and {"heard": heard}, "learnt": {}}
    evidence = seen(settings(pool(A, strategy=strategy), **fields), pools=[running], engines=[engine()])
    by_envoy = EnvoySeen(True, [FILTER], hosts={"10.0.0.8:9002": True, "10.0.0.9:9002": True})

    assert rules(evidence).keys() == set()
    assert rules(replace(evidence, cluster=ClusterSeen(replicas=2))).keys() == expected
    assert rules(replace(evidence, envoy=by_envoy)).keys() == expected


CACHE = 'vllm:cache_config_info{kv_cache_size_tokens="84000"} 1\n'


@table(
    "queries, hits, sessions, preemptions, expected",
    [
        (1_000_000, 100_000, 50, 0, {"working_set"}),
        (1_000_000, 100_000, 0, 0, set()),  # prompts that nobody repeats
        (1_000_000, 600_000, 50, 0, set()),
        (200_000, 10_000, 50, 0, set()),
        (0, 0, 0, 21, {"preemptions"}),
        (0, 0, 0, 20, set()),
    ],
)
def test_what_does_not_fit_into_the_caches_is_found(
    queries: int, hits: int, sessions: int, preemptions: int, expected: set[str]
) -> None:
    counts = f"vllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n"
    last = MetricsPage.parse(f"{CACHE}{counts}vllm:num_preemptions_total {preemptions}\n")
    told = page(picks_total__session=sessions, answers_total=sessions)

    assert rules(seen(engines=[replace(engine(), last=last)], first=told, last=told)).keys() == expected


@table(
    "prefills, seconds, tokens, fields, expected",
    [
        (100, 19.0, 100_000, {}, set()),
        (100, 3.0, 100_000, {}, {"engine_faster"}),
        (100, 100.0, 100_000, {}, {"engine_slower"}),
        (100, 3.0, 100_000, {"learn": True}, set()),
        (19, 0.6, 100_000, {}, set()),
        (1000, 100.0, 100_000, {}, set()),  # short prompts: a step each
    ],
)
def test_constants_far_from_what_is_measured_are_found(
    prefills: int, seconds: float, tokens: int, fields: dict[str, Any], expected: set[str]
) -> None:
    of = engine(
        vllm_request_prefill_time_seconds_count=prefills,
        vllm_request_prefill_time_seconds_sum=seconds,
        vllm_prefix_cache_queries_total=tokens,
    )
    given = settings(pool(A, strategy={"name": "prefix_cache", **fields}))

    assert rules(seen(given, engines=[of])).keys() == expected


def test_requests_of_others_are_told_from_ours() -> None:
    before, after = engine(vllm_request_success_total=100), page(vllm_request_success_total=140)
    busy = replace(before, last=after)
    ours = {"first": page(picks_total=50), "last": page(picks_total=90)}

    assert rules(seen(engines=[busy], first=page(picks_total=50), last=page(picks_total=55))).keys() == {
        "strangers"
    }
    assert rules(seen(engines=[busy], **ours)) == {}
    assert rules(seen(engines=[replace(busy, first=MetricsPage())], first=page(picks_total=1))) == {}


def test_what_the_service_says_is_passed_on() -> None:
    learnt = {A: {"presumed_share": 0.5, "predicted_hit_rate": 0.8, "measured_hit_rate": 0.1}}
    running = {"name": "tiny", "fault": "no Service vllm", "learnt": {"endpoints": learnt}}
    info = MetricsPage.parse('extproc_info{version="0.0.1"} 1\n')
    engines = [engine(), engine(B, "cooling"), engine("10.0.0.3:8000", "unknown")]
    evidence = seen(pools=[running], engines=engines, first=info, last=info, faults=["no pool is ready"])

    assert rules(evidence) == {
        "not_ready": "no pool is ready",
        "list_old": "tiny; no Service vllm",
        "cooling": f"pool tiny: {B} is cooling; its health: 200; answers so far: none",
        "affinity_lost": f"pool tiny, {A}: predicted 80% of tokens, found 10%",
        "version_differs": rules(evidence)["version_differs"],
    }


def test_every_rule_has_its_words_and_its_line_in_the_docs() -> None:
    advice = yaml.safe_load((ROOT / "extproc/doctor/advice.yaml").read_text())
    checks = (ROOT / "extproc/doctor/checks.py").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", (ROOT / "docs/how-to/doctor.md").read_text(), re.MULTILINE)

    assert len(CHECKS) == len(set(CHECKS))
    assert [rule for rule in advice if f'"{rule}"' not in checks] == []
    assert [(rule, words["severity"]) for rule, words in advice.items()] == rows


def test_the_worst_comes_first() -> None:
    cluster = ClusterSeen(2, False, [("vllm", 1, 2)])
    found = judge_evidence(
        seen(settings(pool(A, **KUBERNETES), server={"listen": ":9002"}), cluster=cluster, faults=["x"])
    )

    assert [each["severity"] for each in found] == ["critical", "warning", "warning", "warning"]
    assert {each["rule"] for each in found} == {"not_ready", "pods_not_ready", "port_open", "not_shared"}
