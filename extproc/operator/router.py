"""A router's ConfigMap, while a Benchmark changes its strategy: what it was is kept with it. Pure.

A run takes the ConfigMap before it begins, and nobody else does until it is given back: an annotation holds
the text as it was found, a label finds it again, whoever is gone meanwhile, the Benchmark included. Whatever
somebody else writes into it during a run is theirs: it stays, without the strategy that the run had put
there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from extproc.bench.experiments.replicas import LabError, lay_strategy, read_strategy
from extproc.errors import SettingsError
from extproc.operator.objects import Object, Run
from extproc.operator.resource import SWITCHED_MODES, Benchmark

SWITCHED_LABEL: Final = "extproc.dev/switched-by"
KEPT_ANNOTATION: Final = "extproc.dev/before-the-run"


class SwitchedRouter(msgspec.Struct, frozen=True):
    """Which run has a ConfigMap, and what was there: the `text` of `key`, and the arm put in its place."""

    benchmark: str
    uid: str
    run: str
    key: str
    pool: str | None
    text: str
    arm: dict[str, Any] | None = None


def is_switched(benchmark: Benchmark) -> bool:
    """Whether the operator is to switch the router for a Benchmark's runs."""
    return bool(benchmark.operation.router.config_map) and benchmark.operation.mode in SWITCHED_MODES


def find_fault(benchmark: Benchmark, config_map: Object | None) -> str | None:
    """Why a router cannot be switched by its ConfigMap, `None` if it can."""
    if not is_switched(benchmark):
        return None
    router = benchmark.operation.router
    where = f"router: ConfigMap {router.config_map}"
    if config_map is None:
        return f"{where}: there is none"
    text = config_map.get("data", {}).get(router.key)
    if text is None:
        return f"{where}: it has no key {router.key}"
    try:
        read_strategy(text, benchmark.spec.ab.pool)
    except (LabError, SettingsError) as error:
        return f"{where}: {error}"
    return None


def is_elsewhere(benchmark: Benchmark, config_map: Object | None) -> bool:
    """Whether another Benchmark has the router of this one."""
    if config_map is None or not is_switched(benchmark):
        return False
    hold = read_switch(config_map)
    return hold is not None and hold.benchmark != benchmark.name


def read_switch(config_map: Mapping[str, Any]) -> SwitchedRouter | None:
    """Reads who has a ConfigMap; `None` if nobody has, or nobody can tell."""
    kept = config_map["metadata"].get("annotations", {}).get(KEPT_ANNOTATION)
    try:
        return None if kept is None else msgspec.json.decode(kept, type=SwitchedRouter)
    except msgspec.DecodeError:
        return None


def settle_router(
    run: Run | None, config_map: Object | None, held: Sequence[Object], wanted: Mapping[str, object] | None
) -> list[Object]:
    """Returns ConfigMaps that are to be other than they are: as they were, and the run's as it asks.

    `config_map` is the one of the run's router, if it has one; `held` are all that its Benchmark has.
    """
    if run is None or config_map is None or not is_switched(run.benchmark):
        return [give_back(each) for each in held]
    made = [give_back(each) for each in held if _name(each) != _name(config_map)]
    hold = read_switch(config_map)
    if hold is None or (hold.uid, hold.run) != (run.benchmark.uid, run.name):
        return [*made, take(config_map, run)]
    if wanted is None or wanted not in [arm.section for arm in run.benchmark.spec.ab.arms]:
        return made
    return [*made, *_switch(config_map, hold, wanted)]


def take(config_map: Object, run: Run) -> Object:
    """The ConfigMap as a run takes it: as it is, or as it was before the run that had it."""
    benchmark, free = run.benchmark, give_back(config_map)
    key = benchmark.operation.router.key
    hold = SwitchedRouter(
        benchmark.name, benchmark.uid, run.name, key, benchmark.spec.ab.pool, free["data"][key]
    )
    return _hold(free, hold)


def _switch(config_map: Object, hold: SwitchedRouter, wanted: Mapping[str, object]) -> list[Object]:
    """The ConfigMap with the strategy that is wanted; nothing if it has it."""
    before = recall_text(config_map["data"][hold.key], hold)
    text = lay_strategy(before, hold.pool, wanted)
    if text == config_map["data"][hold.key] and hold.arm == wanted:
        return []
    made = {**config_map, "data": {**config_map["data"], hold.key: text}}
    held = msgspec.structs.replace(hold, text=before, arm=dict(wanted))
    return [_hold(made, held)]


def recall_text(now: str, hold: SwitchedRouter) -> str:
    """What the text would be had no run touched it: as it was found, or as somebody has written it since."""
    if hold.arm is None:
        return now
    try:
        if now == lay_strategy(hold.text, hold.pool, hold.arm):
            return hold.text
        if read_strategy(now, hold.pool) == hold.arm:
            return lay_strategy(now, hold.pool, read_strategy(hold.text, hold.pool))
    except (LabError, SettingsError):
        pass  # Theirs, whatever it is.
    return now


def give_back(config_map: Object) -> Object:
    """The ConfigMap without any trace of a run."""
    metadata, hold = dict(config_map["metadata"]), read_switch(config_map)
    for part, name in (("labels", SWITCHED_LABEL), ("annotations", KEPT_ANNOTATION)):
        left = {key: value for key, value in metadata.get(part, {}).items() if key != name}
        metadata = {**metadata, part: left} if left else {k: v for k, v in metadata.items() if k != part}
    data = config_map.get("data", {})
    if hold is not None and hold.key in data:
        data = {**data, hold.key: recall_text(data[hold.key], hold)}
    return {**config_map, "metadata": metadata, "data": data}


def _hold(config_map: Object, hold: SwitchedRouter) -> Object:
    metadata = config_map["metadata"]
    annotations = {**metadata.get("annotations", {}), KEPT_ANNOTATION: msgspec.json.encode(hold).decode()}
    labels = {**metadata.get("labels", {}), SWITCHED_LABEL: hold.benchmark}
    return {**config_map, "metadata": {**metadata, "labels": labels, "annotations": annotations}}


def _name(config_map: Mapping[str, Any]) -> str:
    return str(config_map["metadata"]["name"])
