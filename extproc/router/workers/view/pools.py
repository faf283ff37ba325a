"""What `/pools` tells of several processes, as that of one. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Described = dict[str, Any]
"""What `describe_pool` tells, read from JSON."""

# The worse the later. All know the same endpoints, but each has its own experience with them.
_STATES: Final = ("ready", "busy", "cooling", "unhealthy", "draining")


def worst(states: Iterable[str]) -> str:
    """Returns an endpoint's state, of what the processes say: it is ready if it is so for all."""
    return max(states, key=lambda state: _STATES.index(state) if state in _STATES else len(_STATES))


def in_flight(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Returns how many requests are in flight on one endpoint, and how many of these other gateways have.

    `counts` are the same of each process. To one that hears of the others' picks these are other gateways',
    too: so what all have themselves is a sum, and only what one knows of beyond that is somebody else's.
    """
    told = list(counts)
    ours = sum(total - elsewhere for total, elsewhere in told)
    total = max(ours, *(total for total, _ in told))
    return total, total - ours


def merge_pools(told: Sequence[Sequence[Described]]) -> list[Described]:
    """Returns the pools of all processes, in the order of the first that tells of them."""
    return [_merge(same) for same in alike(told, lambda pool: str(pool["name"]))]


def alike(told: Iterable[Iterable[Any]], name: Any) -> list[list[Any]]:
    """What has the same name, together."""
    found: dict[str, list[Any]] = {}
    for one in (one for every in told for one in every):
        found.setdefault(name(one), []).append(one)
    return list(found.values())


def most(values: Iterable[Any]) -> Any:
    """The largest of those that are known, `None` where none is."""
    return max((value for value in values if value is not None), default=None)


def _merge(pools: Sequence[Described]) -> Described:
    endpoints = [
        _merge_endpoint(same)
        for same in alike((pool["endpoints"] for pool in pools), lambda endpoint: str(endpoint["name"]))
    ]
    members = [endpoint for endpoint in endpoints if endpoint["state"] != "draining"]
    return {
        **pools[0],
        "age_s": most(pool["age_s"] for pool in pools),
        "fault": next((pool["fault"] for pool in pools if pool["fault"]), None),
        "in_flight": sum(endpoint["in_flight"] for endpoint in members),
        "elsewhere": sum(endpoint["elsewhere"] for endpoint in members),
        "held": sum(pool["held"] for pool in pools),
        "share": _merge_shares([pool["share"] for pool in pools if pool["share"]]),
        # Who heard of most requests knows best.
        "learnt": max((pool["learnt"] for pool in pools), key=lambda learnt: learnt.get("samples", 0)),
        "endpoints": endpoints,
    }


def _merge_endpoint(endpoints: Sequence[Described]) -> Described:
    total, elsewhere = in_flight((one["in_flight"], one["elsewhere"]) for one in endpoints)
    return {
        **endpoints[0],
        "state": worst(one["state"] for one in endpoints),
        "adapters": sorted({adapter for one in endpoints for adapter in one["adapters"]}),
        "in_flight": total,
        "elsewhere": elsewhere,
    }


def _merge_shares(shares: Sequence[Described]) -> Described | None:
    """The worst that one of them tells, and what all have copied together.

    Delays as the last hears, of each other and of other gateways.
    """
    if not shares:
        return None
    delays: dict[str, float | None] = {}
    for peer in (peer for share in shares for peer in share["peers"]):
        delays[peer["name"]] = most([delays.get(peer["name"]), peer["delay_ms"]])
    ours = {share["me"] for share in shares}
    return {
        "heard": min(share["heard"] for share in shares),
        "prompt": min(share["prompt"] for share in shares),
        "lost": max(share["lost"] for share in shares),
        "is_whole": all(share["is_whole"] for share in shares),
        "copied_blocks": sum(share["copied_blocks"] for share in shares),
        "workers": _named({name: delays.get(name) for name in sorted(ours)}),
        "peers": _named({name: delay for name, delay in delays.items() if name not in ours}),
    }


def _named(delays: Mapping[str, float | None]) -> list[Described]:
    return [{"name": name, "delay_ms": delay} for name, delay in delays.items()]
