"""A router's ConfigMap while Benchmarks switch it: taken, changed, and given back as it was found."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.experiments.replicas import read_strategy, with_strategy
from extproc.bench.status_server import RunStatus
from extproc.operator.objects import MAIN
from extproc.operator.resource import SpecRefused, parse_benchmark
from extproc.operator.router import ANNOTATION, SWITCHED_LABEL, read_switch
from extproc.operator.state import Create, Replace
from tests.operator.world import SPEC, World, brief_json
from tests.tables import table

Object = dict[str, Any]
TEXT = """\
# What the operators wrote, comments and all.
pools:
- name: other
  strategy: {name: random}
- name: llama
  endpoints: {static: ["10.0.0.1:8000"]}
  strategy: {name: prefix_cache, engine: h100-llama8b-bf16}
"""
LEAST_LOAD: Object = {"name": "least_load"}
PREFIX_HASH: Object = {"name": "prefix_hash", "load_factor": 1.5}
AB: Object = {
    **SPEC,
    "mode": "ab",
    "router": {"config-map": "extproc"},
    "ab": {"arms": ["least_load", PREFIX_HASH], "admin": "extproc:9090", "pool": "llama"},
}


def config_map(text: str = TEXT, **metadata: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "extproc", "namespace": "default", **metadata},
        "data": {"extproc.yaml": text, "other": "stays"},
    }


def comparing_world(**spec: Any) -> World:
    return World(spec={**AB, **spec}, routers={"extproc": config_map()})


def router_text(world: World) -> str:
    text: str = world.routers["extproc"]["data"]["extproc.yaml"]
    return text


def want_arm(world: World, arm: Object) -> None:
    """Has the leader of the run that goes say that it wants an arm."""
    (leader,) = world.active(lambda job: job.part == MAIN)
    world.notices[leader.run] = RunStatus("least_load, repeat 1 of 3", "3%", wanted=arm)
    world.settle()


def asked_for(arm: Object) -> World:
    """A comparison that runs, whose leader wants an arm."""
    world = comparing_world()
    world.settle()
    want_arm(world, arm)
    return world


def strategy_of(world: World) -> Object:
    return read_strategy(router_text(world), "llama")


def test_router_is_taken_before_the_run_begins_and_has_the_arms_that_its_leader_asks_for() -> None:
    """Nothing before that; then the arm and nothing else; what is no arm of the spec is not written."""
    world = comparing_world()
    kinds = [type(action) for action in world.decide()]
    assert kinds[0] is Replace
    assert Create in kinds
    world.settle()
    hold = read_switch(world.routers["extproc"])
    assert hold is not None
    assert (hold.benchmark, hold.run) == ("b", world.status["run"])
    assert world.routers["extproc"]["metadata"]["labels"] == {SWITCHED_LABEL: "b"}
    for other in ({"name": "random"}, {"name": "prefix_hash"}, {}):
        want_arm(world, other)
        assert router_text(world) == TEXT

    for arm in (LEAST_LOAD, PREFIX_HASH, LEAST_LOAD):
        want_arm(world, arm)
        assert strategy_of(world) == arm
        assert read_strategy(router_text(world), "other") == {"name": "random"}
        assert world.routers["extproc"]["data"]["other"] == "stays"


def end_comparison(world: World) -> None:
    world.end(brief_json(title="comparable"))


def suspend(world: World) -> None:
    world.change(suspend=True)


def turn_into_a_run(world: World) -> None:
    world.change(mode="run", router={})


def spoil(world: World) -> None:
    world.change(workers=0)


def name_another_router(world: World) -> None:
    world.routers["second"] = config_map() | {
        "metadata": {"name": "second", "namespace": "default"}
    }
    world.change(router={"config-map": "second"})


@table("happen", [end_comparison, suspend, turn_into_a_run, spoil, name_another_router])
def test_router_is_as_it_was_found_when_its_run_is_over(happen: Callable[[World], None]) -> None:
    world = asked_for(PREFIX_HASH)
    happen(world)
    world.settle()

    assert world.routers["extproc"] == config_map()


def test_run_after_a_run_takes_what_the_operators_wrote_not_the_last_arm() -> None:
    world = asked_for(PREFIX_HASH)
    world.change(seed=5)
    world.settle()

    hold = read_switch(world.routers["extproc"])
    assert hold is not None
    assert (hold.run, hold.text, router_text(world)) == (world.status["run"], TEXT, TEXT)


def test_benchmark_made_again_under_its_name_takes_the_router_that_its_forerunner_left() -> None:
    world = asked_for(PREFIX_HASH)
    again = comparing_world()
    hold = read_switch(world.routers["extproc"])
    assert hold is not None
    left = world.routers["extproc"]["metadata"]["annotations"][ANNOTATION].replace('"u"', '"gone"')
    again.routers["extproc"] = config_map(
        router_text(world), labels={SWITCHED_LABEL: "b"}, annotations={ANNOTATION: left}
    )
    again.settle()

    assert (router_text(again), again.status["phase"]) == (TEXT, "Running")


def test_what_somebody_writes_meanwhile_stays_without_the_arm() -> None:
    """1. A whole new file: it stays. 2. An edit of what the arm is in: it stays, the arm goes."""
    world = asked_for(PREFIX_HASH)
    theirs = TEXT.replace("h100-llama8b-bf16", "l4-llama8b-fp8")
    world.routers["extproc"]["data"]["extproc.yaml"] = theirs
    world.settle()
    assert strategy_of(world) == PREFIX_HASH
    edited = router_text(world).replace("10.0.0.1", "10.0.0.2")
    world.routers["extproc"]["data"]["extproc.yaml"] = edited
    end_comparison(world)
    world.settle()

    assert router_text(world) == with_strategy(edited, "llama", read_strategy(theirs, "llama"))


@table(
    "theirs", ["", "pools: [", "pools: []", TEXT.replace("name: llama", "name: other-name"), None]
)
def test_router_that_somebody_makes_unusable_ends_the_run_and_stays_theirs(
    theirs: str | None,
) -> None:
    world = asked_for(PREFIX_HASH)
    data = world.routers["extproc"]["data"]
    if theirs is None:
        del data["extproc.yaml"]
    else:
        data["extproc.yaml"] = theirs
    world.settle()

    assert (world.status["phase"], world.jobs) == ("Refused", {})
    assert world.routers["extproc"]["data"].get("extproc.yaml") == theirs
    if theirs is None:
        assert "no key extproc.yaml" in world.status["faults"][0]
    else:
        assert read_switch(world.routers["extproc"]) is None


@table("kept", ["", "{}", "[]", '{"config_map": "extproc"}'])
def test_annotation_that_somebody_spoilt_is_not_gone_by(kept: str) -> None:
    world = comparing_world()
    world.routers["extproc"] = config_map(
        labels={SWITCHED_LABEL: "b"}, annotations={ANNOTATION: kept}
    )
    world.settle()

    assert (world.status["phase"], router_text(world)) == ("Running", TEXT)


def test_router_that_another_benchmark_has_is_waited_for() -> None:
    other = comparing_world()
    other.settle()
    taken = other.routers["extproc"]
    kept = taken["metadata"]["annotations"][ANNOTATION]
    world = comparing_world()
    world.routers["extproc"] = config_map(
        labels={SWITCHED_LABEL: "a"}, annotations={ANNOTATION: kept.replace('"b"', '"a"')}
    )
    world.settle()
    assert (world.status["phase"], world.condition("Running")) == (
        "Waiting",
        ("False", "RouterIsTaken"),
    )
    assert world.jobs == {}
    world.routers["extproc"] = config_map()
    world.settle()

    assert world.status["phase"] == "Running"


@table(
    ("router", "fault"),
    [
        (None, "there is none"),
        ({**config_map(), "data": {}}, "no key extproc.yaml"),
        (config_map("pools: [{name: other}]"), "no pool 'llama'"),
        (config_map("pools: ["), "extproc: the settings"),
        (config_map("just text"), "no pools"),
    ],
)
def test_router_that_cannot_be_switched_is_refused_before_all_else(
    router: Object | None, fault: str
) -> None:
    world = World(spec=AB, routers={} if router is None else {"extproc": router})
    world.settle()

    assert world.jobs == {}
    assert world.status["phase"] == "Refused"
    assert fault in world.status["faults"][0]


@table(
    ("changed", "fault"),
    [
        ({"router": {}}, "give router.config-map"),
        ({"ab": {"settings-file": "/x", "admin": "r:1"}}, "ab.settings-file"),
        ({"ab": {"command": ["x"], "admin": "r:1"}}, "not both"),
        ({"ab": {}}, "ab.admin"),
    ],
)
@table("mode", ["ab", "sweep"])
def test_comparison_says_how_strategies_are_changed(mode: str, changed: Object, fault: str) -> None:
    with pytest.raises(SpecRefused, match=fault):
        parse_benchmark(World(spec={**AB, "mode": mode, **changed}).body())


@given(st.data())
def test_router_is_given_back_wherever_the_operator_is_cut_off(data: st.DataObject) -> None:
    """Whatever happens between any two acts: only a run that goes on leaves the router changed."""
    world = comparing_world(schedule="*/2 * * * *", **{"history-limit": 50})
    for _ in range(data.draw(st.integers(1, 12))):
        actions = world.decide()
        for action in actions[: data.draw(st.integers(0, len(actions)))]:
            world.act(action)
        leaders = world.active(lambda job: job.part == MAIN)
        match data.draw(st.sampled_from(["time", "end", "collect", "change", "suspend", "ask"])):
            case "time":
                world.after(minutes=data.draw(st.integers(1, 5)))
            case "end" if leaders:
                world.end(brief_json())
            case "collect":
                world.collect()
            case "change":
                world.change(seed=data.draw(st.integers(0, 2)))
            case "suspend":
                world.change(suspend=data.draw(st.booleans()))
            case "ask" if leaders:
                arm = data.draw(st.sampled_from([LEAST_LOAD, PREFIX_HASH]))
                world.notices[leaders[0].run] = RunStatus(wanted=arm)
        hold = read_switch(world.routers["extproc"])
        assert router_text(world) == TEXT or hold is not None
        assert hold is None or hold.text == TEXT
    world.change(suspend=True)
    world.settle()

    assert world.routers["extproc"] == config_map()
