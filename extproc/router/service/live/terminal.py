"""The live pictures in a terminal: `extproc top` draws them, `explain --watch` follows the decisions."""

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.service.live.picture import DecisionRow, EndpointRow, Picture, PoolPicture
from extproc.router.service.live.stream import watch

_LAST: Final = 8
_FEWEST: Final = 4
_RATE_OF: Final = 10
_STATES: Final = {"ready": "green", "cooling": "red", "unhealthy": "red", "busy": "yellow"}
_REASONS: Final = {
    word: reason.colour.replace("orange", "dark_orange").replace("grey", "")
    for word, reason in STRATEGIES.reasons.items()
}
_BAR: Final = 10


async def top(url: str, console: Console, *, count: int | None = None) -> None:
    """Shows pictures until it is cancelled, or `count` of them."""
    totals: list[tuple[int, int]] = []
    shown = 0
    with Live(console=console, screen=console.is_terminal and count is None, auto_refresh=False) as live:
        async with aclosing(watch(url)) as pictures:
            async for picture in pictures:
                total = sum(sum(reasons.values()) for reasons in picture.reasons.values())
                totals = [*totals[-_RATE_OF:], (picture.number, total)]
                live.update(draw(picture, _rate(totals), console.height), refresh=True)
                shown += 1
                if shown == count:
                    return


def _rate(totals: Sequence[tuple[int, int]]) -> float:
    """Requests a second, from the numbers of pictures, one a second, and the requests up to each."""
    (first, before), (last, now) = totals[0], totals[-1]
    # Fewer than before: the service began again.
    return (now - before) / (last - first) if last > first and now >= before else 0.0


async def follow(url: str, console: Console, *, count: int | None = None) -> None:
    """Prints decisions as they are taken, at most those that a picture holds; then how many it does not."""
    last = told = 0
    async with aclosing(watch(url)) as pictures:
        async for picture in pictures:
            # Fewer than before: the service, or its tape, began again.
            last = last if picture.decided >= last else 0
            new = [row for row in reversed(picture.decisions) if row.number > last]
            missed = picture.decided - last - len(new)
            if missed > 0:
                console.print(f"… {missed:,} more", style="dim")
            for row in new:
                console.print(_line(row), soft_wrap=True)
            last, told = picture.decided, told + len(new)
            if count is not None and told >= count:
                return


def _line(row: DecisionRow) -> Text:
    at = datetime.now().astimezone() - timedelta(seconds=row.age_s)
    return Text.assemble(
        (f"{at:%H:%M:%S}  ", "dim"),
        f"{_plain(row.pool)}  ",
        (f"{row.reason:<10}  ", _REASONS.get(row.reason, "")),
        (_plain(row.endpoint), "bold"),
        (f"  {row.prefix[:8]}" if row.prefix else "", "dim"),
    )


def draw(picture: Picture, rate: float, height: int = 50) -> RenderableType:
    """Renders a picture for a screen of so many lines; `rate` is requests a second."""
    room = max(_FEWEST, (height - _LAST - 4) // max(1, len(picture.pools)) - 4)
    pools = [_pool(pool, room) for pool in picture.pools]
    return Group(*_head(picture, rate), *pools, _decisions(picture))


def _head(picture: Picture, rate: float) -> Iterator[RenderableType]:
    state = ("ready", "bold green") if picture.is_ready else ("not ready", "bold red")
    in_flight = sum(pool.in_flight for pool in picture.pools)
    yield Text.assemble(
        ("extproc ", "bold"),
        f"{picture.version}  ",
        state,
        f"  {rate:,.1f} requests/s  {in_flight} in flight",
    )
    for line in (*picture.faults, *(picture.remarks if picture.is_ready else ())):
        yield Text(f"  {_plain(line)}", style="red")
    refusal = picture.configuration.refusal
    if refusal is not None:
        yield Text(f"  configuration refused {refusal.age_s:.0f} s ago: {_plain(refusal.why)}", style="red")


def _chosen(pool: PoolPicture, room: int) -> Sequence[EndpointRow]:
    """Of more than there is room for those in trouble, then the busiest."""
    if len(pool.endpoints) <= room:
        return pool.endpoints
    return sorted(pool.endpoints, key=lambda row: (row.state == "ready", -row.in_flight))[:room]


def _pool(pool: PoolPicture, room: int) -> RenderableType:
    title = f"[bold]{escape(_plain(pool.name))}[/]  {pool.strategy}"
    facts = [
        *(f"{many} {state}" for state, many in pool.states.items()),
        f"hits foreseen {_percent(pool.foreseen)}, found {_percent(pool.found)}",
        f"first byte {_seconds(pool.first_byte_s)}",
        *(["no limit to what an endpoint gets"] if _limit(pool) is None else []),
    ]
    table = Table(
        title=title, title_justify="left", caption="  ".join(facts), caption_justify="left", box=None
    )
    for heading in ("endpoint", "state", "in flight", "share", "first byte", "foreseen", "found"):
        table.add_column(heading, justify="left" if heading in {"endpoint", "state"} else "right")
    bound = _limit(pool)
    most = bound or max((row.in_flight for row in pool.endpoints), default=0) or 1
    for row in _chosen(pool, room):
        table.add_row(*_cells(row, bound, most))
    return table


def _limit(pool: PoolPicture) -> int | None:
    return pool.max_in_flight if pool.bound is None else pool.bound


def _cells(row: EndpointRow, bound: int | None, most: int) -> Iterator[RenderableType]:
    left = f" {row.left_s:.0f} s" if row.left_s else ""
    full = round(_BAR * min(1.0, row.in_flight / most))
    of_bound = "" if bound is None else f"/{bound}"
    yield Text(_plain(row.name))
    yield Text(f"{row.state}{left}", style=_STATES.get(row.state, "dim"))
    yield Text.assemble(
        ("━" * full, "blue"), ("╌" * (_BAR - full), "bright_black"), f" {row.in_flight}{of_bound}"
    )
    yield _percent(row.share)
    yield _seconds(row.first_byte_s)
    yield _percent(row.foreseen)
    yield _percent(row.found)


def _decisions(picture: Picture) -> RenderableType:
    lines = [_line(row) for row in picture.decisions[:_LAST]]
    return Group(Text(""), *lines) if lines else Text("\nno request since somebody looks", style="dim")


def _plain(text: str) -> str:
    """Without what could move a terminal's cursor."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
