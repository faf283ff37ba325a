"""The docs and the registry say the same, and nothing is counted before it is shown."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from prometheus_client import Metric

from extproc.router import telemetry
from extproc.router.app import Application, Start
from extproc.router.events.kv_log import EventLog
from extproc.router.feedback.feedback_metrics import EXPECTED_CLASSES
from extproc.router.routing.queue import QueueEnd
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.settings.reading import parse_settings
from extproc.router.share.courier import RESULTS as SHARE_RESULTS
from extproc.router.share.letters import Echo, Letter
from tests.router.cluster.api_server import ApiServer, serving_api, write_access
from tests.router.cluster.pool_objects import pool_object, running_pod
from tests.waiting import until

DOCS = Path(__file__).parents[3] / "docs"
# Of the reference the part of the service.
TEXT = (DOCS / "reference/metrics.md").read_text().partition("## The operator")[0]
TEXT += (DOCS / "how-to/monitoring.md").read_text()
SETTINGS = """
server: {xds: true}
pools:
- name: llama
  models: [llama]
  endpoints: {static: ["10.0.0.1:8000"]}
  record: {file: t}
  prefill: {endpoints: {static: []}}
- {name: qwen, models: [qwen], endpoints: {static: [10.0.0.2:8000]}, hold: {}, strategy: {name: round_robin}}
- {name: mixtral, models: [mixtral], endpoints: {static: ["10.0.0.3:8000"]}, strategy: {name: prefix_cache}, shadow: {}}
- {name: lost, models: [lost], endpoints: {file: none.yaml}}
- name: gie
  models: [gie]
  endpoints: {inference_pool: {namespace: default, name: vllm, kubeconfig: KUBECONFIG}}
  max_in_flight: 1
share: {cluster: llm, secret: {file: secret}, mesh: {peers: {static: []}}}
"""

EMPTY_MESSAGE = b"\x92\xcb%b\x90" % bytes(8)


@pytest.fixture
async def families(tmp_path: Path) -> list[Metric]:
    """What the first scrape of a service that has served nobody shows."""
    async with serving_api(ApiServer()) as server:
        server.put(pool_object())
        server.put(running_pod("p", "10.0.0.4"))
        text = SETTINGS.replace("KUBECONFIG", str(write_access(tmp_path, server.url)))
        (tmp_path / "secret").write_text("a secret of 16 bytes or more")
        return await _first_scrape(
            Application(Start(parse_settings(text, {}), tmp_path / "extproc.yaml"))
        )


async def _first_scrape(app: Application) -> list[Metric]:
    app.start()
    try:
        await until(lambda: app.pools["lost"].keeper.fault is not None)
        await until(lambda: sum(each.keeper.synced.is_set() for each in app.pools) == 5)
        await until(lambda: app.pools["gie"].objectives.age_s is not None)
        # vLLM's own counters are shown once an endpoint has sent them: they do not begin at 0.
        feedback = app.pools["mixtral"].feedback
        feedback.apply_signals(feedback.pool.snapshot.ready["10.0.0.3:8000"], EndpointSignals())
        app.pools["mixtral"].heard["10.0.0.3:8000"] = [EventLog(0.0)]
        [*app.pools["mixtral"].heard["10.0.0.3:8000"][0].receive(0, EMPTY_MESSAGE, 0.0)]
        _meet(app)
        return list(app.metrics.registry.collect())
    finally:
        await app.pools.stop()


def _meet(app: Application) -> None:
    """A peer with a measured delay: it answered a letter of ours."""
    assert app.courier is not None
    share = app.courier.shares()["llama"]
    ours = share.heartbeat(10.0)
    share.receive(
        Letter(ours.peer + 1, ours.pool, 1, [], [Echo(ours.peer, ours.sent_us, 0)]), 10.001
    )


def documented_families() -> dict[str, tuple[str, set[str]]]:
    """The families of the docs with type and labels."""
    rows = re.findall(r"^\| `(extproc_\w+)` \| (\w+) \|([^|]*)\|", TEXT, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def scraped_families(families: list[Metric]) -> Iterator[tuple[str, tuple[str, set[str]]]]:
    for family in families:
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        yield family.name + suffix, ("gauge" if family.type == "info" else family.type, labels)


async def test_every_family_is_in_the_docs_with_its_labels(families: list[Metric]) -> None:
    ours = {name: facts for name, facts in scraped_families(families) if name.startswith("extproc")}

    assert ours == documented_families()


async def test_every_metric_that_the_docs_name_anywhere_is_shown(families: list[Metric]) -> None:
    """And the process as they say; no `_created` series."""
    samples = {sample.name for family in families for sample in family.samples}
    names = {name for name, _ in scraped_families(families)}

    assert sorted(set(re.findall(r"extproc_\w+", TEXT)) - names - samples) == []
    assert {each for each in names if each.startswith("process_")} == set(
        re.findall(r"`(process_\w+)`", TEXT)
    )
    assert [name for name in samples if name.endswith("_created")] == []


def test_every_label_value_is_in_the_docs() -> None:
    from extproc.errors import PromptError  # noqa: PLC0415  # with every error that exists by now

    values = {
        *(
            *telemetry.OUTCOMES,
            *telemetry.POOL_OUTCOMES,
            *telemetry.RELOADS,
            *telemetry.STREAM_FAULTS,
        ),
        *(*telemetry.LOG_FAULTS, *telemetry.SPAN_RESULTS, *chain(*telemetry.RESTARTS.values())),
        *(*SHARE_RESULTS, *EXPECTED_CLASSES, *STRATEGIES.reasons, *QueueEnd),
        *telemetry.prompt_error_whys(PromptError),
    }

    assert sorted(value for value in values if f"`{value}`" not in TEXT) == []


async def test_what_may_be_counted_is_shown_before_the_first_time(families: list[Metric]) -> None:
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }

    for name, labels in (
        ("extproc_config_reloads_total", {"result": "refused"}),
        ("extproc_requests_total", {"pool": "llama", "outcome": "routed"}),
        ("extproc_requests_total", {"pool": "qwen", "outcome": "overloaded"}),
        ("extproc_requests_total", {"pool": "", "outcome": "model_not_found"}),
        ("extproc_picks_total", {"pool": "llama", "strategy": "prefix_cache", "reason": "spill"}),
        ("extproc_picks_total", {"pool": "qwen", "strategy": "round_robin", "reason": "turn"}),
        ("extproc_picks_served_elsewhere_total", {"pool": "llama"}),
        ("extproc_objectives_watch_restarts_total", {"pool": "gie", "why": "forbidden"}),
        ("extproc_prompt_errors_total", {"why": "budget"}),
        ("extproc_stream_errors_total", {"why": "internal"}),
        ("extproc_watch_restarts_total", {"pool": "llama", "why": "internal"}),
        ("extproc_watch_restarts_total", {"pool": "lost", "why": "file_invalid"}),
        ("extproc_xds_nacks_total", {"type": "Cluster"}),
        ("extproc_answers_total", {"pool": "llama", "endpoint": "10.0.0.1:8000", "class": "5xx"}),
        ("extproc_endpoint_coolings_total", {"pool": "qwen", "endpoint": "10.0.0.2:8000"}),
        ("extproc_access_log_faults_total", {"why": "unreadable"}),
        ("extproc_spans_total", {"result": "dropped"}),
        ("extproc_share_letters_total", {"result": "flood"}),
        ("extproc_share_peers", {"pool": "llama", "state": "lost"}),
        ("extproc_first_byte_seconds_count", {"pool": "llama", "zone": "", "class": "2xx"}),
        ("extproc_saved_prefill_seconds_total", {"pool": "mixtral", "reason": "session"}),
    ):
        assert samples[name, *sorted(labels.items())] == 0
    theirs = {"pool": "qwen", "reason": "home", "strategy": "round_robin"}
    assert ("extproc_picks_total", *sorted(theirs.items())) not in samples
