"""What a spec would do on a machine, worked out before it is run, and why it could not."""

import asyncio
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from extproc.bench.datasets.conversation import BYTES, Ruler
from extproc.bench.datasets.dataset_account import Honesty, account
from extproc.bench.datasets.synthetic import draw
from extproc.bench.experiments.run import check_target, find_window
from extproc.bench.judge.verdict import DUE, find_short_warm_up
from extproc.bench.load.registry import open_registry
from extproc.bench.load.workload import Workload, build_workload
from extproc.bench.spec.tree import Spec

_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


# Most time of one core of a load process: to write a request and read its head; to read a chunk.
_REQUEST_CPU_S = 500e-6
_CHUNK_CPU_S = 40e-6
# Time of a request as a guess: its least, and for each token of its answer, as of an L4.
_LEAST_S, _TOKEN_S = 5.0, 0.045
# A bar of the schedule on the terminal, by height.
_BLOCKS = "▁▂▃▄▅▆▇█"
# Files that a process needs besides its requests' sockets: pipes, the event loop, scrapes.
_OTHER_FILES = 64


@dataclass(frozen=True, slots=True)
class ClientHost:
    """What this machine has to give: cores, local ports, open files per process."""

    cores: int
    ports: int
    files: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A run to come; `faults` say why it is impossible, `remarks` what to expect.

    `starts` counts starts per slice of `slice_s`; rates are of requests. `due_rps` is what the
    steady window gets if a request takes `latency_s`: later turns of a session wait for it, and for
    think time. `in_flight` is the most at once, `cpu_cores` is what the load processes need
    together at the peak.
    """

    honesty: Honesty
    span_s: float | None
    offered_rps: float | None
    due_rps: float | None
    peak_rps: float | None
    slice_s: float
    starts: tuple[int, ...]
    latency_s: float
    in_flight: int
    cpu_cores: float
    faults: tuple[str, ...]
    remarks: tuple[str, ...]


def account_for(
    spec: Spec, workload: Workload, ruler: Ruler = BYTES, endpoints: int | None = None
) -> Honesty:
    """The account of what a run asks; its period is held against `endpoints`, else the scraped ones."""
    made = account(
        workload.conversations, workload.total, endpoints or max(1, len(spec.scrape)), ruler
    )
    are_prompts = spec.traffic.turns == "prompts"
    return replace(made, left_out=dict(workload.left_out), are_prompts=are_prompts)


def plan(
    spec: Spec,
    workload: Workload,
    host: ClientHost,
    *,
    latency_s: float | None = None,
    slices: int = 20,
    ruler: Ruler = BYTES,
) -> Plan:
    """Works out a run; `latency_s` is how long a request is assumed to take from its sending to its end.

    Without it, it is what its answer's tokens take, five seconds at least.
    """
    honesty = account_for(spec, workload, ruler)
    if latency_s is None:
        latency_s = max(_LEAST_S, round(_TOKEN_S * honesty.output_quantiles[0], 1))
    starts, slice_s = _slice(workload, slices)
    peak_rps = max(starts) / slice_s * workload.turns_mean if slice_s else None
    due_rps = _find_due(spec, workload, latency_s)
    # Little's law at the peak, within the cap; everything at once where there is no schedule to
    # follow.
    wanted = honesty.prompts if peak_rps is None else round(peak_rps * latency_s)
    in_flight = max(1, min(wanted, honesty.prompts, spec.traffic.concurrency or wanted))
    rate = peak_rps or in_flight / latency_s
    cpu_cores = rate * (_REQUEST_CPU_S + honesty.output_tokens / honesty.prompts * _CHUNK_CPU_S)
    return Plan(
        honesty=honesty,
        span_s=workload.span_s,
        offered_rps=workload.offered_rps,
        due_rps=due_rps,
        peak_rps=peak_rps,
        slice_s=slice_s,
        starts=starts,
        latency_s=latency_s,
        in_flight=in_flight,
        cpu_cores=cpu_cores,
        faults=tuple(_find_faults(spec, host, in_flight, cpu_cores)),
        remarks=(
            *_find_remarks(spec, host, peak_rps, latency_s),
            *_find_surprises(spec, workload, due_rps),
            *_find_early_window(spec, workload, latency_s),
        ),
    )


def _slice(workload: Workload, slices: int) -> tuple[tuple[int, ...], float]:
    """Starts per slice and the slice's length; nothing to slice in a closed loop or if all start at once."""
    if not workload.starts_s or not workload.span_s:
        return (), 0.0
    counts, _ = np.histogram(workload.starts_s, bins=slices, range=(0.0, workload.span_s))
    return tuple(counts.tolist()), workload.span_s / slices


def _find_due(spec: Spec, workload: Workload, latency_s: float) -> float | None:
    """The requests per second due in the steady window if every one takes `latency_s`; `None` of a queue."""
    window = find_window(spec, workload, ())
    width_s = window.end_s - window.start_s
    if not workload.starts_s or not workload.span_s or spec.traffic.is_queued or width_s <= 0:
        return None
    thinks = spec.traffic.think_time
    pause_s = latency_s + (
        float(draw(thinks, 1000, np.random.default_rng(0)).mean()) if thinks else 0.0
    )
    conversations, due = workload.conversations, 0
    for number, start_s in enumerate(workload.starts_s):
        turns = np.arange(len(conversations[number % len(conversations)].turns))
        at_s = start_s + turns * pause_s
        due += int(((window.start_s <= at_s) & (at_s < window.end_s)).sum())
    return due / width_s


def _find_faults(spec: Spec, host: ClientHost, in_flight: int, cpu_cores: float) -> Iterator[str]:
    if in_flight > host.ports:
        yield f"{in_flight} connections at once from {host.ports} local ports: widen ip_local_port_range"
    per_process = -(-in_flight // spec.processes) + _OTHER_FILES
    if per_process > host.files:
        yield f"{per_process} open files per process, {host.files} allowed: raise `ulimit -n` or processes"
    budget = min(spec.processes, host.cores) * spec.limits.cpu
    if cpu_cores > budget:
        yield (
            f"about {cpu_cores:.1f} cores are needed to send this; {spec.processes} process(es) on "
            f"{host.cores} core(s) at {spec.limits.cpu:.0%} have {budget:.1f}"
        )


def _find_remarks(
    spec: Spec, host: ClientHost, peak_rps: float | None, latency_s: float
) -> Iterator[str]:
    cap = spec.traffic.max_concurrency
    if cap is not None and peak_rps is not None and peak_rps * latency_s > cap:
        yield (
            f"at {latency_s:g} s each, {cap} at once are {cap / latency_s:.1f} req/s at most: the cap, not "
            f"the schedule ({peak_rps:.1f} req/s), will set the load"
        )
    if spec.processes > host.cores:
        yield f"{spec.processes} processes share {host.cores} core(s)"
    if not spec.scrape:
        yield "scrape lists no endpoint: hit rates come from usage only, if the server reports cached tokens"


def _find_surprises(spec: Spec, workload: Workload, due_rps: float | None) -> Iterator[str]:
    traffic, asked_rps = spec.traffic, workload.offered_rps
    if due_rps is not None and asked_rps is not None and due_rps < DUE * asked_rps:
        yield (
            f"{asked_rps:.2f} req/s are asked for, about {due_rps:.2f} would be due in the window: later "
            "turns wait for answers and think time; warm up for two session lifetimes, or ask for less"
        )
    if workload.total > workload.prompts:
        yield (
            f"the dataset's {workload.prompts:,} prompts begin again: "
            f"{1 - workload.prompts / workload.total:.0%} of the requests are repeats that a cache may have"
        )
    if traffic.is_queued and (traffic.warm_up or traffic.cool_down):
        yield "warm-up and cool-down are not used: with a cap the schedule is a queue, measured as a whole"
    if traffic.traffic_spike is not None and traffic.traffic_spike.covers(workload.span_s or 0.0):
        yield "the traffic spike lasts the whole run: it is the same as a higher req-rate"


def _find_early_window(spec: Spec, workload: Workload, latency_s: float) -> Iterator[str]:
    window, traffic = find_window(spec, workload, ()), spec.traffic
    if workload.starts_s and not traffic.is_queued and traffic.warm_up:
        yield from find_short_warm_up(latency_s, traffic.warm_up, window.end_s - window.start_s)


def plan_text(plan: Plan) -> str:
    """Lines of name and figure; the schedule as a row of bars, one per slice."""
    return "".join(f"{name:<17}{value}\n" for name, value in _lines(plan)) + f"{plan.honesty}\n"


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.starts:
        top = max(plan.starts) or 1
        bars = "".join(_BLOCKS[round(count / top * (len(_BLOCKS) - 1))] for count in plan.starts)
        yield "schedule", f"{bars}  {sum(plan.starts)} starts, {plan.slice_s:.1f} s a bar"
        yield "span", f"{plan.span_s:.1f} s"
    else:
        yield "schedule", "none: users ask again when they are answered, or all start at once"
    if plan.offered_rps is not None and plan.peak_rps is not None:
        due = "" if plan.due_rps is None else f"; about {plan.due_rps:.2f} due in the window"
        yield (
            "requests/s",
            f"{plan.offered_rps:.2f} on average, {plan.peak_rps:.2f} in the busiest bar{due}",
        )
    yield "in flight, ports", f"{plan.in_flight} at {plan.latency_s:g} s a request"
    yield "client CPU", f"{plan.cpu_cores:.2f} cores"


def plan_here(spec: Spec, *, latency_s: float | None) -> Plan:
    """Plans a run as `run` would make it; raises `SettingsError` for what `run` refuses."""
    registry = open_registry(spec)
    asyncio.run(check_target(spec, registry))
    workload = build_workload(spec, registry)
    low, high = map(int, _PORTS.read_text("ascii").split()) if _PORTS.exists() else (32768, 60999)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    host = ClientHost(cores=len(os.sched_getaffinity(0)), ports=high - low + 1, files=files)
    return plan(spec, workload, host, latency_s=latency_s, ruler=registry.ruler)
