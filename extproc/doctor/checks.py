"""What may be wrong, a table of pure functions over what was seen; and how it is said.

A new check is one function that yields findings, its place in `CHECKS`, and its words in
advice.yaml. None may cry wolf: what may be meant so is a note, and what was not seen is no finding.
"""

import fnmatch
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Final

import yaml

from extproc import __version__
from extproc.doctor.evidence import EngineSeen, Evidence
from extproc.documents import printable
from extproc.router.routing.strategies.prefix_cache.engine import ENGINES
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCacheSettings
from extproc.router.settings.pool_settings import PoolSettings

# A route's timeout that is no longer cuts answers that stream.
_SHORT_S: Final = 60.0
# Fewer requests, or tokens, prove nothing.
_FEW_REQUESTS, _TOKENS = 20, 10_000
# Prefills wait for each other: their time proves that an engine is fast, and hardly that it is
# slow.
_FASTER, _SLOWER, _LONG_PROMPT = 3.0, 4.0, 500
# A cache's size may be wrong by a quarter. Filled so often, it has evicted all that it had.
_NEAR, _REFILLED = 0.25, 3.0
# Clocks differ by so much for certain; Envoy has to wait for so much longer than a request is held.
_SKEW_S, _SPARE_S = 1.0, 2.0
_LOCAL: Final = frozenset({"127.0.0.1", "localhost", "[::1]", "unix"})
# The worst first.
_SEVERITIES: Final = ("critical", "warning", "note")
_LEFT_OUT: Final = frozenset({"cooling", "busy", "unhealthy", "unknown"})


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen, and the rule of advice.yaml that it breaks; `value` fills the gap in its words."""

    rule: str
    seen: str
    value: object = ""


def service(evidence: Evidence) -> Iterator[Finding]:
    if evidence.faults:
        yield Finding("not_ready", "; ".join(evidence.faults))
    if evidence.last.sum("extproc_config_refused"):
        yield Finding("config_refused", "the configuration file was changed, and refused")
    elif evidence.is_other:
        yield Finding("config_differs", "the running service has other pools than the file")
    version = evidence.last.info("extproc_info").get("version", __version__)
    if version != __version__:
        yield Finding(
            "version_differs", f"the service is version {version}, this doctor {__version__}"
        )


def endpoints(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.settings.pools:
        engines, running, source = (
            evidence.of(pool),
            evidence.running(pool),
            pool.endpoints.describe(),
        )
        is_empty = running.name and not any(
            engine.state in {"ready", "unknown"} for engine in engines
        )
        if is_empty or running.fault:
            fault = running.fault or "its list has no fault"
            seen = (
                f"pool {pool.name}: none of {len(engines)} endpoints is ready"
                if is_empty
                else pool.name
            )
            yield Finding("no_endpoint" if is_empty else "list_old", f"{seen}; {fault}", source)
        for engine in engines:
            is_new = engine.state == "unknown" and engine.health == "200"  # not probed yet
            if engine.state in _LEFT_OUT and not is_new:
                counts = evidence.last.count_by(
                    "extproc_answers_total", "class", pool=pool.name, endpoint=engine.name
                )
                seen = f"pool {pool.name}: {engine.name} is {engine.state}; its health: {engine.health}"
                yield Finding(engine.state, f"{seen}; answers so far: {counts}", engine.address)
    for name, ready, count in evidence.cluster.unready:
        yield Finding("pods_not_ready", f"Service {name}: {ready} of {count} Pods are ready", name)


def prefix_caching(evidence: Evidence) -> Iterator[Finding]:
    off = [
        engine
        for engine in evidence.engines
        if engine.cache.get("enable_prefix_caching") == "False"
    ]
    if off:
        yield Finding("prefix_caching_off", f"prefix caching is off in {_some(off)}")


def models(evidence: Evidence) -> Iterator[Finding]:
    named, stray = set[str](), set[str]()
    for pool in evidence.settings.pools:
        engines = [engine for engine in evidence.of(pool) if engine.models is not None]
        served = {engine.address: ", ".join(engine.models or ()) for engine in engines}
        for name in (*(pool.models or ()), *pool.adapters):
            lack = [engine for engine in engines if not fnmatch.filter(engine.models or (), name)]
            if lack and ("*" not in name or lack == engines):
                seen = f"pool {pool.name} names {name}; in {_some(lack)} of {len(engines)} there is"
                yield Finding("model_not_served", f"{seen} {served[lack[0].address]}", name)
            named.add(name)
        bases = {
            frozenset(name for name, parent in (each.models or {}).items() if not parent)
            for each in engines
        }
        if pool.models is None and not pool.learn_models and len(bases) > 1:
            seen = "; ".join(sorted(set(served.values())))
            yield Finding("models_differ", f"pool {pool.name}: its engines serve {seen}")
        stray |= {
            name for engine in engines if not pool.learn_models for name in engine.models or ()
        }
    stray = {name for name in stray if not any(fnmatch.fnmatchcase(name, each) for each in named)}
    if stray and all(pool.models for pool in evidence.settings.pools):
        names = ", ".join(sorted(stray))
        yield Finding("model_unrouted", f"engines serve {names}, which no pool names", names)


def envoy(evidence: Evidence) -> Iterator[Finding]:
    seen, count = evidence.envoy, evidence.envoy.counters.get
    if evidence.envoy.is_seen and not seen.filters:
        yield Finding("not_asked", "Envoy has no ext_proc filter in use")
    if seen.hosts and not any(seen.hosts.values()):
        names = ", ".join(seen.hosts)
        yield Finding("not_reached", f"Envoy finds none of {names} healthy", names)
    kinds = ("message_timeouts", "failure_mode_allowed", "streams_started")
    late, passed, streams = (count(name, 0) for name in kinds)
    if max(late, passed) > max(_FEW_REQUESTS / 4, streams / 100):
        text = f"of {streams:.0f} requests Envoy waited in vain for {late:.0f}, sent {passed:.0f} on unpicked"
        yield Finding("passed_by", text)
    for each in seen.filters:
        short = [(name, limit_s) for name, limit_s in each.routes if 0 < limit_s <= _SHORT_S]
        if short:
            text = (
                f"Envoy, {each.listener}: {len(short)} of {len(each.routes)} routes end an answer"
            )
            yield Finding("route_timeout", f"{text} after {short[0][1]:g} s: {short[0][0]}")


def failing(evidence: Evidence) -> Iterator[Finding]:
    open_pool = evidence.settings.open_pool
    for each in evidence.envoy.filters:
        if open_pool and not each.fails_open:
            text = f"Envoy, {each.listener}: failure_mode_allow is false; pool {open_pool} is to be open"
            yield Finding("fails_closed", f"{text} while the service is away")
        for pool in evidence.settings.pools:
            if pool.hold and pool.hold.wait_s + _SPARE_S > each.wait_s:
                text = f"pool {pool.name} holds for {pool.hold.wait_s:g} s, Envoy, {each.listener}, allows"
                end = "goes on without a pick" if each.fails_open else "gets an error of Envoy's"
                yield Finding("hold_cut", f"{text} {each.wait_s:g} s", end)


def unheard(evidence: Evidence) -> Iterator[Finding]:
    deaf = [each.listener for each in evidence.envoy.filters if not each.hears_outcomes]
    if deaf:
        seen = f"Envoy, {', '.join(deaf)}: no access log and no response headers reach the service"
        yield Finding("outcomes_unheard", seen)
    for pool in evidence.settings.pools if not deaf else ():
        count = partial(evidence.first.sum, pool=pool.name)
        ended = count("extproc_picks_total") - count("extproc_endpoint_in_flight")
        answers = count("extproc_answers_total")
        if pool.cool_after is not None and ended >= _FEW_REQUESTS and answers < ended / 2:
            seen = f"pool {pool.name}: {ended:.0f} requests ended, the service got outcomes of {answers:.0f}"
            yield Finding("outcomes_unheard", seen)


def open_port(evidence: Evidence) -> Iterator[Finding]:
    server, is_guarded = evidence.settings.server, evidence.cluster.is_guarded
    host, _, port = server.listen.rpartition(":")
    if host in _LOCAL or (server.tls and server.tls.client_ca) or is_guarded:
        return
    seen = f"server.listen {server.listen} asks for no client certificate"
    if is_guarded is None and any(pool.endpoints.lists_health for pool in evidence.settings.pools):
        yield Finding("port_unseen", f"{seen}, and NetworkPolicies could not be looked at")
    else:
        guard = "" if is_guarded is None else ", and no NetworkPolicy guards it"
        yield Finding("port_open", seen + guard, port)


def replicas(evidence: Evidence) -> Iterator[Finding]:
    count = evidence.replicas
    for pool, settings in _by_prefix_cache(evidence) if count > 1 else ():
        share = evidence.running(pool).share
        if evidence.settings.share is None:
            rule = "not_shared_told" if (settings.gateways or 1) > 1 else "not_shared"
            seen = f"{count} replicas do not share their picks; pool {pool.name}: gateways {settings.gateways}"
            yield Finding(rule, seen, count)
        elif share and share.heard < count - 1:
            counts = evidence.last.count_by("extproc_share_letters_total", "result")
            seen = f"pool {pool.name} reaches {share.heard} of {count - 1} other replicas: {counts}"
            yield Finding("share_unheard", seen)


def strangers(evidence: Evidence) -> Iterator[Finding]:
    picks = evidence.last.sum("extproc_picks_total") - evidence.first.sum("extproc_picks_total")
    arrived = sum({engine.address: engine.arrived for engine in evidence.engines}.values())
    is_alone = evidence.replicas < 2 and evidence.settings.share is None
    if (
        evidence.first.samples
        and is_alone
        and picks >= 0
        and arrived - picks >= max(_FEW_REQUESTS / 2, picks / 2)
    ):
        yield Finding(
            "strangers", f"engines got {arrived:.0f} requests, the service picked for {picks:.0f}"
        )


def predictions(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.settings.pools:
        for name, learnt in evidence.running(pool).learnt.endpoints.items():
            if learnt.presumed_share < 1:
                seen = f"{learnt.predicted_hit_rate:.0%} of tokens, found {learnt.measured_hit_rate:.0%}"
                yield Finding("affinity_lost", f"pool {pool.name}, {name}: predicted {seen}")


def kv_events(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.settings.pools:
        at_work = {engine.name for engine in evidence.of(pool) if engine.arrived > 0}
        for each in evidence.running(pool).endpoints:
            told = each.events
            if (
                told
                and told.state != "confirmed"
                and (told.why != "silent" or each.name in at_work)
            ):
                why = told.why or "it names no publisher"
                yield Finding(
                    "events_missing", f"pool {pool.name}, {each.name}: {told.state}, {why}"
                )


def cache_sizes(evidence: Evidence) -> Iterator[Finding]:
    for pool, settings in _by_prefix_cache(evidence):
        engines = [engine for engine in evidence.of(pool) if engine.kv_tokens]
        presumed = settings.kv_tokens or ENGINES[settings.engine].kv_tokens
        far = [engine for engine in engines if abs(engine.kv_tokens / presumed - 1) > _NEAR]
        is_corrected = pool.signals is not False
        if far and (settings.kv_tokens or not is_corrected):
            seen = (
                f"pool {pool.name}: kv_tokens is {presumed}, and {far[0].kv_tokens} in {_some(far)}"
            )
            yield Finding(
                "kv_tokens_corrected" if is_corrected else "kv_tokens", seen, far[0].kv_tokens
            )
        blocks = sorted({engine.count("block_size") for engine in engines} - {0})
        if len(blocks) > 1:
            seen = f"pool {pool.name}: engines have blocks of {blocks} tokens"
            yield Finding("block_sizes", seen, blocks[0])


def engine_constants(evidence: Evidence) -> Iterator[Finding]:
    for pool, settings in _by_prefix_cache(evidence):
        count = _sum(evidence.of(pool), "request_prefill_time_seconds_count")
        time_ms = 1000 * _sum(evidence.of(pool), "request_prefill_time_seconds_sum")
        tokens = _computed(evidence.of(pool))
        if settings.learn or count < _FEW_REQUESTS or tokens < _TOKENS:
            continue
        own_ms = ENGINES[settings.engine].prefill_ms_per_token
        seen = f"pool {pool.name}: a token takes {own_ms} ms by {settings.engine}, {time_ms / tokens:.3f} ms"
        seen += f" as measured in {count:.0f} prefills of {tokens / count:.0f} tokens"
        if own_ms * tokens > _FASTER * time_ms:
            yield Finding("engine_faster", seen)
        elif time_ms > _SLOWER * own_ms * tokens and tokens > _LONG_PROMPT * count:
            yield Finding("engine_slower", seen)


def working_set(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.settings.pools:
        engines = evidence.of(pool)
        thrown, ended = (
            _sum(engines, "num_preemptions_total"),
            _sum(engines, "request_success_total"),
        )
        if thrown > max(_FEW_REQUESTS, ended / 20):
            most = max(1, int(_sum(engines, "num_requests_running") / len(engines)))
            seen = f"pool {pool.name}: {thrown:.0f} preemptions of {ended:.0f} requests"
            yield Finding("preemptions", seen, most)
        room, computed = sum(engine.kv_tokens for engine in engines), _computed(engines)
        looked = _sum(engines, "prefix_cache_queries_total")
        turns = evidence.last.sum("extproc_picks_total", pool=pool.name, reason="session")
        if room and computed > max(_REFILLED * room, looked / 2) and turns >= _FEW_REQUESTS:
            seen = (
                f"pool {pool.name}: caches of {room} tokens were filled {computed / room:.1f} times"
            )
            yield Finding(
                "working_set", f"{seen}, {1 - computed / looked:.0%} of the tokens were found"
            )


def clocks(evidence: Evidence) -> Iterator[Finding]:
    low, high = evidence.clock or (0.0, 0.0)
    clocks = [(engine.address, engine.clock) for engine in evidence.engines]
    for name, at in (("Envoy", evidence.envoy.clock), *clocks):
        if at and (at[0] - high > _SKEW_S or low - at[1] > _SKEW_S):
            skew_s = (at[0] + at[1] - low - high) / 2
            yield Finding(
                "clock", f"the clock of {name} is {skew_s:+.0f} s from the service's", name
            )


CHECKS: Final[Sequence[Callable[[Evidence], Iterator[Finding]]]] = (
    *(
        service,
        endpoints,
        prefix_caching,
        models,
        envoy,
        failing,
        unheard,
        open_port,
        replicas,
        strangers,
    ),
    *(predictions, kv_events, cache_sizes, engine_constants, working_set, clocks),
)


def judge_evidence(evidence: Evidence) -> list[dict[str, str]]:
    """Returns what is wrong, the worst first, each with `rule`, `severity`, `seen`, `why` and `fix`."""
    advice = yaml.safe_load(files("extproc.doctor").joinpath("advice.yaml").read_text("utf-8"))
    found = [
        {"rule": each.rule, "severity": advice[each.rule]["severity"], "seen": printable(each.seen)}
        | {
            name: advice[each.rule][name].format(value=printable(f"{each.value}"))
            for name in ("why", "fix")
        }
        for check in CHECKS
        for each in check(evidence)
    ]
    return sorted(found, key=lambda each: _SEVERITIES.index(each["severity"]))


def write_report(evidence: Evidence, *, as_json: bool) -> tuple[str, int]:
    """Returns the text, and the exit status: 1 if there is more than notes."""
    found = judge_evidence(evidence)
    status = int(any(each["severity"] != "note" for each in found))
    if as_json:
        said = {"findings": found, "looked_at": evidence.looked, "not_looked_at": evidence.unseen}
        return json.dumps(said, indent=2), status
    lines = [
        "{severity:8}  {rule}: {seen}\n     why  {why}\n     fix  {fix}\n".format_map(each)
        for each in found
    ]
    lines += [] if found else ["Nothing is wrong with what was looked at.\n"]
    lines += [f"looked at      {printable(each)}" for each in evidence.looked]
    lines += [f"not looked at  {printable(each)}" for each in evidence.unseen]
    return "\n".join(lines), status


def _by_prefix_cache(evidence: Evidence) -> Iterator[tuple[PoolSettings, PrefixCacheSettings]]:
    pairs = ((pool, pool.strategy) for pool in evidence.settings.pools)
    return (
        (pool, strategy) for pool, strategy in pairs if isinstance(strategy, PrefixCacheSettings)
    )


def _some(engines: Sequence[EngineSeen]) -> str:
    first = engines[0].address
    return first if len(engines) == 1 else f"{len(engines)} engines ({first} for one)"


def _sum(engines: Sequence[EngineSeen], name: str) -> float:
    return sum(engine.last.sum(f"vllm:{name}") for engine in engines)


def _computed(engines: Sequence[EngineSeen]) -> float:
    """Tokens of prompts that were not found in the caches."""
    return _sum(engines, "prefix_cache_queries_total") - _sum(engines, "prefix_cache_hits_total")
