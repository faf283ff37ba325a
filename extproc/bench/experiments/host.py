"""A plan for this machine: what a spec would do here, before it is run."""

import asyncio
import os
import resource
from pathlib import Path

from extproc.bench.experiments.plan import ClientHost, Plan, plan
from extproc.bench.experiments.run import check_target
from extproc.bench.load.registry import open_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.spec.tree import Spec

_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def plan_here(spec: Spec, *, latency_s: float) -> Plan:
    """Plans a run as `run` would make it; raises `SettingsError` for what `run` refuses."""
    registry = open_registry(spec)
    asyncio.run(check_target(spec, registry))
    workload = build_workload(spec, registry)
    return plan(spec, workload, _look_around(), latency_s=latency_s, ruler=registry.ruler)


def _look_around() -> ClientHost:
    low, high = map(int, _PORTS.read_text("ascii").split()) if _PORTS.exists() else (32768, 60999)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ClientHost(cores=len(os.sched_getaffinity(0)), ports=high - low + 1, files=files)
