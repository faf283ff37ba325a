"""A router's ConfigMap while a Benchmark changes its strategy; an annotation has the text before. Pure.

A run takes the ConfigMap before it begins, and nobody else does until it is given back: an
annotation holds the text as it was found, a label finds it again, whoever is gone meanwhile, the
Benchmark included. Whatever somebody else writes into it during a run is theirs: it stays, without
the strategy that the run had put there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from extproc.bench.experiments.replicas import LabError, read_strategy, with_strategy
from extproc.errors import SettingsError
from extproc.operator.objects import Object, Run
from extproc.operator.resource import SWITCHED_MODES, Benchmark

SWITCHED_LABEL: Final = "extproc.dev/switched-by"
ANNOTATION: Final = "extproc.dev/before-the-run"


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
    return (
        bool(benchmark.operation.router.config_map) and benchmark.operation.mode in SWITCHED_MODES
    )


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
    switch = read_switch(config_map)
    return switch is not None and switch.benchmark != benchmark.name


def read_switch(config_map: Mapping[str, Any]) -> SwitchedRouter | None:
    """Reads which run has taken a ConfigMap; `None` without an annotation, or with a broken one."""
    text = config_map["metadata"].get("annotations", {}).get(ANNOTATION)
    try:
        return None if text is None else msgspec.json.decode(text, type=SwitchedRouter)
    except msgspec.DecodeError:
        return None


def settle_router(
    run: Run | None,
    config_map: Object | None,
    taken: Sequence[Object],
    wanted: Mapping[str, object] | None,
) -> list[Object]:
    """Returns the ConfigMaps to change: those to give back, and the run's with its strategy.

    `config_map` is the one of the run's router, if it has one; `taken` are all that its Benchmark
    has.
    """
    if run is None or config_map is None or not is_switched(run.benchmark):
        return [give_back(each) for each in taken]
    made = [give_back(each) for each in taken if _name(each) != _name(config_map)]
    switch = read_switch(config_map)
    if switch is None or (switch.uid, switch.run) != (run.benchmark.uid, run.name):
        return [*made, mark_taken(config_map, run)]
    if wanted is None or wanted not in [arm.section for arm in run.benchmark.spec.ab.arms]:
        return made
    return [*made, *_switch(config_map, switch, wanted)]


def mark_taken(config_map: Object, run: Run) -> Object:
    """The ConfigMap marked as the run's; a change by another run is taken back first."""
    benchmark, free = run.benchmark, give_back(config_map)
    key = benchmark.operation.router.key
    switch = SwitchedRouter(
        benchmark.name, benchmark.uid, run.name, key, benchmark.spec.ab.pool, free["data"][key]
    )
    return _mark(free, switch)


def _switch(
    config_map: Object, switch: SwitchedRouter, wanted: Mapping[str, object]
) -> list[Object]:
    """The ConfigMap with the strategy that is wanted; nothing if it has it."""
    before = recall_text(config_map["data"][switch.key], switch)
    text = with_strategy(before, switch.pool, wanted)
    if text == config_map["data"][switch.key] and switch.arm == wanted:
        return []
    made = {**config_map, "data": {**config_map["data"], switch.key: text}}
    after = msgspec.structs.replace(switch, text=before, arm=dict(wanted))
    return [_mark(made, after)]


def recall_text(now: str, switch: SwitchedRouter) -> str:
    """The text without a run's change: as it was found, or as somebody has written it since."""
    if switch.arm is None:
        return now
    try:
        if now == with_strategy(switch.text, switch.pool, switch.arm):
            return switch.text
        if read_strategy(now, switch.pool) == switch.arm:
            return with_strategy(now, switch.pool, read_strategy(switch.text, switch.pool))
    except (LabError, SettingsError):
        pass  # Somebody else wrote it: leave it.
    return now


def give_back(config_map: Object) -> Object:
    """The ConfigMap without any trace of a run."""
    metadata, switch = dict(config_map["metadata"]), read_switch(config_map)
    for part, name in (("labels", SWITCHED_LABEL), ("annotations", ANNOTATION)):
        left = {key: value for key, value in metadata.get(part, {}).items() if key != name}
        metadata = (
            {**metadata, part: left} if left else {k: v for k, v in metadata.items() if k != part}
        )
    data = config_map.get("data", {})
    if switch is not None and switch.key in data:
        data = {**data, switch.key: recall_text(data[switch.key], switch)}
    return {**config_map, "metadata": metadata, "data": data}


def _mark(config_map: Object, switch: SwitchedRouter) -> Object:
    metadata = config_map["metadata"]
    annotations = {
        **metadata.get("annotations", {}),
        ANNOTATION: msgspec.json.encode(switch).decode(),
    }
    labels = {**metadata.get("labels", {}), SWITCHED_LABEL: switch.benchmark}
    return {**config_map, "metadata": {**metadata, "labels": labels, "annotations": annotations}}


def _name(config_map: Mapping[str, Any]) -> str:
    return str(config_map["metadata"]["name"])
