"""Who is picked when every endpoint of a pool turns not ready."""

from extproc.router.cluster.debounce import LastReady
from extproc.router.routing.endpoint import Endpoint
from tests.tables import table


def endpoints_named(names: str, *, is_ready: bool = True) -> list[Endpoint]:
    return [Endpoint(name, f"10.0.0.{ord(name)}:8000", is_ready=is_ready) for name in names]


@table(
    ("ready", "unready", "draining", "kept"),
    [
        (["abc", ""], ["", "abc"], "", "abc"),  # all at once
        (["abc", "c", ""], ["", "ab", "abc"], "", "abc"),  # one after the other within the burst
        (["abc", ""], ["", "ab"], "", ""),  # one is gone
        (["abc", ""], ["", "ab"], "c", ""),  # one terminates
        (["a", ""], ["", "a"], "", ""),  # one alone
        (["c", ""], ["ab", "abc"], "", ""),  # the last of several
        (["", ""], ["ab", "ab"], "", ""),  # never ready
        (["abc", "c"], ["", "ab"], "", ""),  # one is still ready
        (["abc", "", ""], ["", "abc", "ab"], "", "ab"),  # one goes later
        (["abc", "", "a"], ["", "abc", "bc"], "", ""),  # one is ready again
        (["abc", "", ""], ["", "abc", "abcd"], "", "abc"),  # another comes that was never ready
    ],
)
def test_who_was_ready_is_picked_where_all_turn_not_ready_in_one_burst_and_none_is_gone(
    ready: list[str], unready: list[str], draining: str, kept: str
) -> None:
    last = LastReady()
    for second, (now, away) in enumerate(zip(ready, unready, strict=True)):
        there = [
            *endpoints_named(now),
            *(endpoints_named(draining, is_ready=False) if second else ()),
        ]
        chosen = last.choose(there, endpoints_named(away, is_ready=False), float(second))

    assert chosen == endpoints_named(kept)


def test_those_that_turned_long_before_the_last_are_left_alone_and_who_is_picked_stays() -> None:
    last = LastReady()
    last.choose(endpoints_named("abc"), [], 0.0)
    last.choose(endpoints_named("bc"), endpoints_named("a", is_ready=False), 1.0)

    for now_s in (12.0, 100.0, 1_000.0):
        assert last.choose([], endpoints_named("abc", is_ready=False), now_s) == endpoints_named(
            "bc"
        )
