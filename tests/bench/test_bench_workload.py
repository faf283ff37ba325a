"""A run worked out before it begins; draws; tokens counted after it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extproc.bench.datasets.conversation import ByteRuler, ChatTurn, Conversation, TurnMessage
from extproc.bench.datasets.synthetic import draw, draw_tokens
from extproc.bench.datasets.tokens import TokenRuler, recount
from extproc.bench.experiments.run import find_window
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import Workload, build_workload
from extproc.bench.record import Record, TokenSource
from extproc.bench.spec.traffic import Distribution
from extproc.bench.spec.tree import Spec
from extproc.errors import SettingsError
from tests.tables import table


def read_spec(seed: int = 0, **traffic: Any) -> Spec:
    tree = {"endpoint": "x", "seed": seed, "performance": {"traffic-shape": traffic}}
    return Spec.model_validate(tree)


def planned_workload(seed: int = 0, **traffic: Any) -> Workload:
    return build_workload(read_spec(seed, **traffic), build_registry())


def test_sessions_start_at_the_request_rate_over_their_turns() -> None:
    workload = planned_workload(req_rate=22, total_prompts=1100, dataset="synthetic")

    assert workload.starts_s is not None
    turns = workload.turns_mean
    assert turns > 8
    assert workload.starts_s[1] == pytest.approx(turns / 22)
    assert workload.offered_rps == pytest.approx(22, rel=0.02)
    assert workload.requests == 1100


def test_prompts_start_at_the_request_rate() -> None:
    workload = planned_workload(
        req_rate=22, duration=10, dataset={"name": "synthetic", "turns": "prompts"}
    )
    counted = planned_workload(req_rate=10, duration=100, total_prompts=20, dataset="random")
    at_once = planned_workload(req_rate="inf", total_prompts=5, dataset="random")

    assert workload.starts_s is not None
    assert len(workload.starts_s) == 220
    assert (workload.span_s, workload.offered_rps) == (10, 22)
    # A count that ends a schedule before its duration sets the span.
    assert (counted.span_s, counted.offered_rps) == pytest.approx((2.0, 10))
    assert (at_once.starts_s, at_once.offered_rps) == ((0.0,) * 5, None)


def test_closed_loop_has_no_schedule_and_runs_the_dataset_once_unless_told() -> None:
    """k6's iterations: 5 of 7 conversations, or 12 of them, the first 5 twice."""
    dataset = {"name": "synthetic", "max_conversations": 7}
    once = planned_workload(vus=5, dataset=dataset)
    timed = planned_workload(vus=5, duration=3, dataset={"name": "random", "max_prompts": 7})
    few, more = (
        planned_workload(vus=2, dataset=dataset, total_conversations=count) for count in (5, 12)
    )
    sizes = [len(conversation.turns) for conversation in few.conversations]

    assert (once.starts_s, once.jobs, once.offered_rps) == (None, 7, None)
    assert (timed.jobs, timed.requests, len(timed.conversations)) == (None, None, 7)
    assert (few.jobs, few.requests) == (5, sum(sizes[:5]))
    assert (more.jobs, more.requests) == (12, sum(sizes) + sum(sizes[:5]))


SCHEDULES: dict[str, dict[str, Any]] = {
    "ramp": {"shape": {"name": "ramp", "to": 60, "over": 20}},
    "steps": {
        "shape": {
            "name": "steps",
            "steps": [{"req-rate": 2, "duration": 5}, {"req-rate": 50, "duration": 9}],
        }
    },
    "spike": {"traffic_spike": {"burst": 5, "req_rate": 90, "after": 3}},
    "spikes": {"traffic_spike": {"burst": 1, "req_rate": 90, "after": 1, "every": 3}},
    "poisson": {"arrivals": "poisson"},
    "gamma": {"arrivals": "gamma", "burstiness": 0.2},
    "constant": {},
}


@table("traffic", SCHEDULES.values(), ids=SCHEDULES)
@table("dataset", ["random", "synthetic", "shared-prefix"])
@table("seed", [0, 7])
def test_generated_dataset_never_begins_again(
    traffic: dict[str, Any], dataset: str, seed: int
) -> None:
    """A prompt that comes twice is answered from a cache, and what is measured is that."""
    section: dict[str, Any] = {"name": dataset}
    if dataset == "shared-prefix":
        section |= {"groups": 3, "prefix_tokens": 20}
    workload = planned_workload(seed=seed, req_rate=10, duration=20, dataset=section, **traffic)

    assert workload.starts_s is not None
    assert len(workload.conversations) >= len(workload.starts_s)
    assert workload.total <= workload.prompts
    asked = [c.turns for c in workload.conversations[: len(workload.starts_s)]]
    assert len({turns[0].messages for turns in asked}) == len(asked)


def test_dataset_that_has_no_more_is_cycled_and_not_asked_for_ever() -> None:
    registry = build_registry()
    one = Conversation((ChatTurn((TurnMessage("user", "the only one"),), 1),))
    registry.datasets["one"] = lambda dataset, need, rng: [one]
    only = build_workload(read_spec(req_rate=10, duration=5, dataset="one"), registry)
    bounded = planned_workload(
        req_rate=10, duration=20, dataset={"name": "random", "max_prompts": 50}
    )

    assert (only.prompts, only.total) == (1, 50)
    assert (bounded.prompts, bounded.total) == (50, 200)


@table(
    ("traffic", "fault"),
    [
        ({"dataset": "nosuch"}, "no dataset 'nosuch'"),
        ({"shape": "zigzag"}, "no shape 'zigzag'"),
        ({"shape": {"name": "ramp", "to": 2, "over": 1, "slope": 3}}, "slope"),
        ({"shape": {"name": "ramp", "over": 5}}, "^traffic-shape: to: is missing$"),
        (
            {"dataset": {"name": "random", "size": 1}},
            "random.size: there is no such.* prefix-tokens, input-tokens",
        ),
        (
            {"dataset": {"name": "share-gpt", "path": "x", "min_mesages": 1}},
            "min_mesages: there .* did you mean min-messages",
        ),
        ({"req_rate": None, "shape": "trace"}, "arrival times"),
        (
            {"req_rate": 1e7, "duration": "1h", "dataset": {"name": "random", "max_prompts": 1}},
            "more than",
        ),
        ({"req_rate": 0.001, "duration": 1, "arrivals": "poisson"}, "no start"),
        *(
            ({**bound, **window}, "leave nothing of")
            for bound in ({"duration": 10}, {"total_prompts": 50})
            for window in ({"warm_up": 12}, {"warm_up": 6, "cool_down": 4}, {"cool_down": 10})
        ),
    ],
)
def test_workload_that_cannot_be_built_is_told(traffic: dict[str, Any], fault: str) -> None:
    ends = {} if {"duration", "total_prompts"} & traffic.keys() else {"total_prompts": 5}
    with pytest.raises(SettingsError, match=fault):
        planned_workload(**{"req_rate": 5, "dataset": "random", **ends, **traffic})


def test_same_seed_same_workload() -> None:
    first, again, other = (
        planned_workload(
            seed, req_rate=5, total_prompts=50, arrivals="poisson", dataset="synthetic"
        )
        for seed in (0, 0, 1)
    )

    assert first == again != other


@table(
    ("fields", "mean", "deviation"),
    [
        ({"value": 7}, 7, 0),
        ({"kind": "uniform", "min": 10, "max": 30}, 20, 20 / 12**0.5),
        ({"kind": "normal", "mean": 50, "std": 5}, 50, 5),
        (
            {"kind": "lognormal", "mean": 94.46, "sigma": 0.5},
            94.46,
            94.46 * (np.exp(0.25) - 1) ** 0.5,
        ),
        ({"kind": "exponential", "mean": 12}, 12, 12),
        ({"kind": "choice", "values": [1, 3]}, 2, 1),
    ],
)
def test_draws_have_their_mean_and_tokens_are_clipped(
    fields: dict[str, Any], mean: float, deviation: float
) -> None:
    values = draw(Distribution.model_validate(fields), 40_000, np.random.default_rng(1))
    wild = Distribution(kind="normal", mean=0, std=50, max=9)
    tokens = draw_tokens(wild, 1000, np.random.default_rng(1))

    assert float(np.mean(values)) == pytest.approx(mean, rel=0.02)
    assert float(np.std(values)) == pytest.approx(deviation, rel=0.05)
    assert (min(tokens), max(tokens)) == (1, 9)


class Words(ByteRuler):
    """A ruler by which a word is a token."""

    def count(self, text: str) -> int:
        return len(text.split())


def test_tokenizer_counts_beside_the_server_and_instead_of_nobody() -> None:
    told, untold = (
        Record(0, 0, 0, 0.0, text="three little words", token_source=source, output_tokens=9)
        for source in (TokenSource.SERVER, TokenSource.ESTIMATE)
    )
    recount([told, untold], [(TurnMessage("user", "a b"),)] * 2, Words())

    assert (told.output_tokens, told.estimated_output_tokens) == (9, 3)
    assert told.token_source is TokenSource.SERVER
    assert (untold.input_tokens, untold.output_tokens) == (2, 3)
    assert untold.token_source is TokenSource.TOKENIZER


def test_local_tokenizer_file_is_read(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(path))

    assert TokenRuler(path).count("a b a nosuch") == 4
    path.write_text("{}")
    with pytest.raises(SettingsError, match="not a tokenizer"):
        TokenRuler(path)


def test_presets_of_published_runs_end_as_those_did() -> None:
    """k6's with its threads, or cut off; the archived pair's goes through 400 prompts ten times."""
    threads, pair = (
        planned_workload(preset="kubeai-k6"),
        planned_workload(preset="kubeai-8xl4-laptop"),
    )
    small = read_spec(preset="kubeai-k6-2xl4").traffic

    assert (threads.jobs, threads.requests) == (1000, threads.prompts)
    assert (small.vus, small.duration, small.graceful_stop) == (80, 600, 30)
    assert (pair.requests, len(pair.starts_s or ())) == (4000, 4000)
    assert pair.conversations[:400] == pair.conversations[400:800]


@table(("made", "end_s"), [(20, 1.9), (19, 100)])
def test_window_of_users_ends_with_their_last_request_or_with_the_time(
    made: int, end_s: float
) -> None:
    """20 requests were to be made within 100 s: if they were not, time ended the run."""
    spec = read_spec(vus=2, total_prompts=20, duration=100, dataset="random")
    workload = build_workload(spec, build_registry())
    window = find_window(
        spec, workload, [Record(index, index, 0, index / 10) for index in range(made)]
    )

    assert window.end_s == pytest.approx(end_s)


def test_salt_changes_what_all_prompts_begin_with_and_nothing_else() -> None:
    dataset = {"name": "shared-prefix", "groups": 3, "prefix-tokens": 40}
    plain, one, other = (
        [
            "".join(m.content for m in made.turns[0].messages)
            for made in planned_workload(
                req_rate=9, duration=5, dataset=dataset | {"salt": salt}
            ).conversations
        ]
        for salt in ("", "a", "b")
    )

    assert one[0][:16] != other[0][:16]
    assert [text[16:] for text in one] == [text[16:] for text in other] == plain
