"""What may be wrong, a table of pure functions over what was seen; and how it is said.

A new check is one function that yields findings, its place in `CHECKS`, and its words in
advice.yaml. None may cry wolf: what may be meant so is a note, and what was not seen is no finding.
"""

import fnmatch
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from statistics import median
from typing import Final

import yaml

from extproc import __version__
from extproc.doctor.evidence import EngineSeen, Evidence
from extproc.documents import printable
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
# An endpoint is late with so many times what is usual in its pool, and by a second.
_LATE, _LATE_S, _SILENT_S = 4.0, 1.0, 60.0
# Clocks differ by so much for certain; Envoy has to wait for so much longer than a request is held.
_SKEW_S, _SPARE_S = 1.0, 2.0
_LOCAL: Final = frozenset({"127.0.0.1", "localhost", "[::1]", "unix"})
# Of each branch of Envoy the first patch with ext_proc's lifetimes mended (27 August 2026); later branches
# have it from the start.
_SAFE_ENVOYS: Final = {(1, 36): 10, (1, 37): 6, (1, 38): 4, (1, 39): 1}
# The worst first.
_SEVERITIES: Final = ("critical", "warning", "note")
_LEFT_OUT: Final = frozenset({"cooling", "busy", "unhealthy", "unknown"})


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule of advice.yaml that is broken, and what was seen: the values that fill its words' gaps."""

    rule: str
    values: Mapping[str, object]


def found(rule: str, **values: object) -> Finding:
    return Finding(rule, values)


def service(evidence: Evidence) -> Iterator[Finding]:
    if evidence.silence:
        url, fault = evidence.silence
        yield found("not_running", url=url, fault=fault)
    if evidence.faults:
        yield found("not_ready", faults="; ".join(evidence.faults))
    if evidence.last.sum("extproc_config_refused"):
        yield found("config_refused")
    elif evidence.is_other:
        yield found("config_differs")
    version = evidence.last.info("extproc_info").get("version", __version__)
    if version != __version__:
        yield found("version_differs", version=version, ours=__version__)


def endpoints(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.settings.pools:
        engines = evidence.of(pool)
        running = evidence.running(pool)
        serving = [engine for engine in engines if engine.state in {"ready", "unknown"}]
        fault = running.fault or "its list has no fault"
        source = pool.endpoints.describe()
        if running.name and not serving:
            yield found(
                "no_endpoint", pool=pool.name, count=len(engines), fault=fault, source=source
            )
        elif running.fault:
            yield found("list_old", pool=pool.name, fault=fault, source=source)
        for engine in engines:
            yield from _left_out(evidence, engine)
    for name, ready, count in evidence.cluster.unready:
        yield found("pods_not_ready", name=name, ready=ready, count=count)


def _left_out(evidence: Evidence, engine: EngineSeen) -> Iterator[Finding]:
    if not engine.state and not engine.health.isdigit():  # the service, which would know, is silent
        yield found(
            "engine_silent",
            pool=engine.pool,
            engine=engine.name,
            health=engine.health,
            address=engine.address,
        )
    is_not_probed_yet = engine.state == "unknown" and engine.health == "200"
    if engine.state in _LEFT_OUT and not is_not_probed_yet:
        answers = evidence.last.count_by(
            "extproc_answers_total", "class", pool=engine.pool, endpoint=engine.name
        )
        yield found(
            engine.state,
            pool=engine.pool,
            engine=engine.name,
            state=engine.state,
            health=engine.health,
            answers=answers,
            address=engine.address,
        )


def slow_engines(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.pools:
        times = [each.first_byte_s for each in pool.endpoints if each.first_byte_s is not None]
        usual_s = median(times) if len(times) > 2 else math.inf
        most_s = max(_LATE * usual_s, usual_s + _LATE_S)
        for each in pool.endpoints:
            if each.silent_s >= _SILENT_S:
                yield found(
                    "endpoint_hangs",
                    pool=pool.name,
                    engine=each.name,
                    for_s=each.silent_s,
                    address=each.address,
                )
            elif (each.first_byte_s or 0.0) > most_s:
                yield found(
                    "endpoint_slow",
                    pool=pool.name,
                    engine=each.name,
                    first_s=each.first_byte_s,
                    usual_s=usual_s,
                    address=each.address,
                )


def prefix_caching(evidence: Evidence) -> Iterator[Finding]:
    off = [
        engine
        for engine in evidence.engines
        if engine.cache.get("enable_prefix_caching") == "False"
    ]
    if off:
        yield found("prefix_caching_off", engines=_name_some(off))


def models(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.settings.pools:
        engines = [engine for engine in evidence.of(pool) if engine.models is not None]
        refusing = [engine for engine in evidence.of(pool) if engine.refusal]
        if refusing:
            yield found(
                "engine_key",
                pool=pool.name,
                engines=_name_some(refusing),
                status=refusing[0].refusal,
            )
        yield from _not_served(pool, engines)
        if pool.models is None and not pool.learn_models:
            yield from _models_differ(pool, engines)
        is_open = pool.models is None or any("*" in name for name in pool.models)
        if is_open and not pool.learn_models and len(evidence.settings.pools) > 1:
            yield found("models_unlisted", pool=pool.name)
    strays = _stray_models(evidence)
    if strays and all(pool.models for pool in evidence.settings.pools):
        yield found("model_unrouted", models=", ".join(sorted(strays)))


def _not_served(pool: PoolSettings, engines: Sequence[EngineSeen]) -> Iterator[Finding]:
    for name in (*(pool.models or ()), *pool.adapters):
        lacking = [engine for engine in engines if not fnmatch.filter(engine.models or (), name)]
        # A glob may be for one of several models: it fits somewhere, and that is enough.
        is_missed = lacking == engines if "*" in name else bool(lacking)
        if lacking and is_missed:
            yield found(
                "model_not_served",
                pool=pool.name,
                model=name,
                engines=_name_some(lacking),
                count=len(engines),
                served=", ".join(lacking[0].models or ()),
            )


def _models_differ(pool: PoolSettings, engines: Sequence[EngineSeen]) -> Iterator[Finding]:
    bases = {
        frozenset(name for name, parent in (engine.models or {}).items() if not parent)
        for engine in engines
    }
    if len(bases) > 1:
        served = {", ".join(engine.models or ()) for engine in engines}
        yield found("models_differ", pool=pool.name, served="; ".join(sorted(served)))
    for names in bases:
        if len(names) > 1:
            yield found("names_unknown", pool=pool.name, names=", ".join(sorted(names)))


def _stray_models(evidence: Evidence) -> set[str]:
    """What engines serve and no pool names."""
    named, served = set[str](), set[str]()
    for pool in evidence.settings.pools:
        named |= {*(pool.models or ()), *pool.adapters}
        if not pool.learn_models:
            served |= {name for engine in evidence.of(pool) for name in engine.models or ()}
    return {name for name in served if not any(fnmatch.fnmatchcase(name, one) for one in named)}


def _safe_envoy(version: tuple[int, int, int]) -> tuple[int, int, int]:
    """The first mended release of its branch; of an older branch, that of the oldest mended one."""
    branch = max(version[:2], min(_SAFE_ENVOYS))
    return (*branch, _SAFE_ENVOYS.get(branch, 0))


def envoy(evidence: Evidence) -> Iterator[Finding]:
    seen, count = evidence.envoy, evidence.envoy.counters.get
    if seen.silence:
        url, fault = seen.silence
        yield found("envoy_silent", url=url, fault=fault)
    if seen.version and seen.version < (safe := _safe_envoy(seen.version)):
        version, least = (".".join(map(str, each)) for each in (seen.version, safe))
        yield found("envoy_old", version=version, safe=least)
    if seen.is_seen and not seen.filters:
        yield found("not_asked")
    for each in seen.filters:
        if each.unasked and not any(other.routes for other in seen.filters):
            yield found(
                "not_asked_on_routes",
                listener=each.listener,
                count=len(each.unasked),
                route=each.unasked[0],
            )
    if seen.hosts and not any(seen.hosts.values()):
        yield found("not_reached", hosts=", ".join(seen.hosts))
    late, passed = count("message_timeouts", 0), count("failure_mode_allowed", 0)
    streams = count("streams_started", 0)
    if max(late, passed) > max(_FEW_REQUESTS / 4, streams / 100):
        yield found("passed_by", streams=streams, late=late, passed=passed)
    for each in seen.filters:
        short = [(name, limit_s) for name, limit_s in each.routes if 0 < limit_s <= _SHORT_S]
        if short:
            route, limit_s = short[0]
            yield found(
                "route_timeout",
                listener=each.listener,
                count=len(short),
                routes=len(each.routes),
                limit_s=limit_s,
                route=route,
            )


def failing(evidence: Evidence) -> Iterator[Finding]:
    open_pool = evidence.settings.open_pool
    for each in evidence.envoy.filters:
        if open_pool and not each.fails_open:
            yield found("fails_closed", listener=each.listener, pool=open_pool)
        for pool in evidence.settings.pools:
            if pool.hold and pool.hold.wait_s + _SPARE_S > each.wait_s:
                end = "goes on without a pick" if each.fails_open else "gets an error of Envoy's"
                yield found(
                    "hold_cut",
                    pool=pool.name,
                    hold_s=pool.hold.wait_s,
                    listener=each.listener,
                    wait_s=each.wait_s,
                    end=end,
                )


def unheard(evidence: Evidence) -> Iterator[Finding]:
    deaf = [each.listener for each in evidence.envoy.filters if not each.hears_outcomes]
    if deaf:
        yield found("outcomes_unheard", listeners=", ".join(deaf))
        return
    for pool in evidence.settings.pools:
        count = partial(evidence.first.sum, pool=pool.name)
        ended = count("extproc_picks_total") - count("extproc_endpoint_in_flight")
        answers = count("extproc_answers_total")
        if pool.cool_after is not None and ended >= _FEW_REQUESTS and answers < ended / 2:
            yield found("outcomes_missing", pool=pool.name, ended=ended, answers=answers)


def open_port(evidence: Evidence) -> Iterator[Finding]:
    server, is_guarded = evidence.settings.server, evidence.cluster.is_guarded
    host, _, port = server.listen.rpartition(":")
    if host in _LOCAL or (server.tls and server.tls.client_ca) or is_guarded:
        return
    if is_guarded is None and any(pool.endpoints.lists_health for pool in evidence.settings.pools):
        yield found("port_unseen", listen=server.listen)
    else:
        guard = "" if is_guarded is None else ", and no NetworkPolicy guards it"
        yield found("port_open", listen=server.listen, unguarded=guard, port=port)


def replicas(evidence: Evidence) -> Iterator[Finding]:
    count = evidence.replicas
    for pool, settings in _by_prefix_cache(evidence) if count > 1 else ():
        share = evidence.running(pool).share
        if evidence.settings.share is None:
            is_configured = (settings.gateways or 1) > 1
            yield found(
                "not_shared_told" if is_configured else "not_shared",
                replicas=count,
                pool=pool.name,
                gateways=settings.gateways,
            )
        elif share and share.heard < count - 1:
            letters = evidence.last.count_by("extproc_share_letters_total", "result")
            yield found(
                "share_unheard",
                pool=pool.name,
                heard=share.heard,
                others=count - 1,
                letters=letters,
            )


def strangers(evidence: Evidence) -> Iterator[Finding]:
    picks = evidence.last.sum("extproc_picks_total") - evidence.first.sum("extproc_picks_total")
    arrived = sum({engine.address: engine.arrived for engine in evidence.engines}.values())
    is_alone = evidence.replicas < 2 and evidence.settings.share is None
    is_seen = evidence.first.samples and picks >= 0
    if is_seen and is_alone and arrived - picks >= max(_FEW_REQUESTS / 2, picks / 2):
        yield found("strangers", arrived=arrived, picks=picks)


def predictions(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.settings.pools:
        for name, learnt in evidence.running(pool).learnt.endpoints.items():
            if learnt.presumed_share < 1:
                yield found(
                    "affinity_lost",
                    pool=pool.name,
                    endpoint=name,
                    predicted=learnt.predicted_hit_rate,
                    found=learnt.measured_hit_rate,
                )


def kv_events(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.settings.pools:
        at_work = {engine.name for engine in evidence.of(pool) if engine.arrived > 0}
        for each in evidence.running(pool).endpoints:
            events = each.events
            if not events or events.state == "confirmed":
                continue
            if events.why == "silent" and each.name not in at_work:
                continue
            reason = events.why or "it names no publisher"
            yield found(
                "events_missing",
                pool=pool.name,
                endpoint=each.name,
                state=events.state,
                reason=reason,
            )


def cache_sizes(evidence: Evidence) -> Iterator[Finding]:
    for pool, settings in _by_prefix_cache(evidence):
        engines = [engine for engine in evidence.of(pool) if engine.kv_tokens]
        presumed = settings.kv_tokens or settings.costs.kv_tokens
        far = [engine for engine in engines if abs(engine.kv_tokens / presumed - 1) > _NEAR]
        is_corrected = pool.signals is not False
        if far and (settings.kv_tokens or not is_corrected):
            yield found(
                "kv_tokens_corrected" if is_corrected else "kv_tokens",
                pool=pool.name,
                presumed=presumed,
                tokens=far[0].kv_tokens,
                engines=_name_some(far),
            )
        sizes = sorted({engine.count("block_size") for engine in engines} - {0})
        if len(sizes) > 1:
            yield found("block_sizes", pool=pool.name, sizes=sizes, smallest=sizes[0])


def engine_constants(evidence: Evidence) -> Iterator[Finding]:
    for pool, settings in _by_prefix_cache(evidence):
        engines = evidence.of(pool)
        prefills = _sum(engines, "request_prefill_time_seconds_count")
        time_ms = 1000 * _sum(engines, "request_prefill_time_seconds_sum")
        tokens = _count_computed(engines)
        if prefills < _FEW_REQUESTS or tokens < _TOKENS:
            continue
        presumed_ms = settings.costs.prefill_ms_per_token
        # `signals` correct the constants of a slower engine, not those of a faster one.
        is_faster = pool.signals is False and presumed_ms * tokens > _FASTER * time_ms
        is_slower = time_ms > _SLOWER * presumed_ms * tokens and tokens > _LONG_PROMPT * prefills
        if is_faster or is_slower:
            yield found(
                "engine_faster" if is_faster else "engine_slower",
                pool=pool.name,
                presumed_ms=presumed_ms,
                engine=settings.engine if isinstance(settings.engine, str) else "its own figures",
                measured_ms=time_ms / tokens,
                prefills=prefills,
                tokens=tokens / prefills,
            )


def working_set(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.settings.pools:
        engines = evidence.of(pool)
        preempted = _sum(engines, "num_preemptions_total")
        ended = _sum(engines, "request_success_total")
        if preempted > max(_FEW_REQUESTS, ended / 20):
            most = max(1, int(_sum(engines, "num_requests_running") / len(engines)))
            yield found("preemptions", pool=pool.name, preempted=preempted, ended=ended, most=most)
        room = sum(engine.kv_tokens for engine in engines)
        computed = _count_computed(engines)
        queried = _sum(engines, "prefix_cache_queries_total")
        turns = evidence.last.sum("extproc_picks_total", pool=pool.name, reason="session")
        if room and turns >= _FEW_REQUESTS and computed > max(_REFILLED * room, queried / 2):
            yield found(
                "working_set",
                pool=pool.name,
                room=room,
                times=computed / room,
                found=1 - computed / queried,
            )


def lost_hits(evidence: Evidence) -> Iterator[Finding]:
    for pool in evidence.lint:
        for parting in pool.partings[:1]:
            yield found("lost_hits", pool=pool.pool, said=parting.finding, advice=parting.advice)


def clocks(evidence: Evidence) -> Iterator[Finding]:
    low, high = evidence.clock or (0.0, 0.0)
    engines = [(engine.address, engine.clock) for engine in evidence.engines]
    for name, at in (("Envoy", evidence.envoy.clock), *engines):
        if at and (at[0] - high > _SKEW_S or low - at[1] > _SKEW_S):
            skew_s = (at[0] + at[1] - low - high) / 2
            yield found("clock", name=name, skew_s=skew_s)


CHECKS: Final[Sequence[Callable[[Evidence], Iterator[Finding]]]] = (
    service,
    endpoints,
    slow_engines,
    prefix_caching,
    models,
    envoy,
    failing,
    unheard,
    open_port,
    replicas,
    strangers,
    predictions,
    kv_events,
    cache_sizes,
    engine_constants,
    working_set,
    lost_hits,
    clocks,
)


def judge_evidence(evidence: Evidence) -> list[dict[str, str]]:
    """Returns what is wrong, the worst first, each with `rule`, `severity`, `seen`, `why` and `fix`."""
    advice = yaml.safe_load(files("extproc.doctor").joinpath("advice.yaml").read_text("utf-8"))
    described = [
        _describe(finding, advice[finding.rule]) for check in CHECKS for finding in check(evidence)
    ]
    return sorted(described, key=lambda each: _SEVERITIES.index(each["severity"]))


def _describe(finding: Finding, words: Mapping[str, str]) -> dict[str, str]:
    """The rule's words, their gaps filled; what others wrote cannot move a cursor or end a line."""
    values = {
        name: printable(value) if isinstance(value, str) else value
        for name, value in finding.values.items()
    }
    texts = {name: words[name].format_map(values) for name in ("seen", "why", "fix")}
    return {"rule": finding.rule, "severity": words["severity"], **texts}


def write_report(evidence: Evidence, *, as_json: bool) -> tuple[str, int]:
    """Returns the text, and the exit status: 1 if there is more than notes."""
    findings = judge_evidence(evidence)
    status = int(any(each["severity"] != "note" for each in findings))
    if as_json:
        report = {
            "findings": findings,
            "looked_at": evidence.looked,
            "not_looked_at": evidence.unseen,
        }
        return json.dumps(report, indent=2), status
    lines = [
        "{severity:8}  {rule}: {seen}\n     why  {why}\n     fix  {fix}\n".format_map(each)
        for each in findings
    ]
    if not findings:
        lines.append("Nothing is wrong with what was looked at.\n")
    lines += [f"looked at      {printable(each)}" for each in evidence.looked]
    lines += [f"not looked at  {printable(each)}" for each in evidence.unseen]
    return "\n".join(lines), status


def _by_prefix_cache(evidence: Evidence) -> Iterator[tuple[PoolSettings, PrefixCacheSettings]]:
    for pool in evidence.settings.pools:
        if isinstance(pool.strategy, PrefixCacheSettings):
            yield pool, pool.strategy


def _name_some(engines: Sequence[EngineSeen]) -> str:
    first = engines[0].address
    return first if len(engines) == 1 else f"{len(engines)} engines ({first} for one)"


def _sum(engines: Sequence[EngineSeen], name: str) -> float:
    return sum(engine.last.sum(f"vllm:{name}") for engine in engines)


def _count_computed(engines: Sequence[EngineSeen]) -> float:
    """Tokens of prompts that were not found in the caches."""
    return _sum(engines, "prefix_cache_queries_total") - _sum(engines, "prefix_cache_hits_total")
