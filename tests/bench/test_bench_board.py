"""The status server of a run: what it answers while the run goes."""

import aiohttp
import pytest

from extproc.bench.progress import Goal, Pace, RunSnapshot
from extproc.bench.status_server import RunStatus, StatusServer, decode_status
from extproc.errors import SettingsError
from tests.stack.ports import free_ports
from tests.tables import table


def standing(
    finished: int, at_s: float = 10.0, ttft_s: tuple[float, ...] = (), failed: int = 0
) -> RunSnapshot:
    failures = {"status 500": failed} if failed else {}
    return RunSnapshot(at_s, finished, 0, finished, failures, ttft_s, (), goal=Goal(requests=200))


def test_board_tells_requests_over_planned_ones_and_the_figures_of_all_so_far() -> None:
    board = StatusServer()
    board.begin("chat")
    assert board.notice() == RunStatus(doing="chat")
    board.update(standing(50, 5.0, tuple(0.001 * i for i in range(1, 51))))
    board.update(standing(100, 10.0, tuple(0.001 * i for i in range(51, 101)), failed=10))
    figures = {"req_per_s": 9.0, "failed": 0.1, "ttft_median_ms": 50.5, "ttft_p95_ms": 95.05}

    assert board.notice() == RunStatus(
        doing="chat", progress="50%", finished=100, planned=200, figures=figures
    )


def test_board_of_an_experiment_tells_how_much_of_all_its_runs_is_done() -> None:
    """The second of four runs, a half of it: three eighths; figures are of the run that goes."""
    board, pace = StatusServer(), Pace(4)
    for title in ("least_load, repeat 1 of 2", "prefix_hash, repeat 1 of 2"):
        pace.begin()
        board.begin(title, pace)
        board.update(standing(100, ttft_s=(0.1 * len(title),)))
    notice = board.notice()

    assert (notice.doing, notice.progress) == ("prefix_hash, repeat 1 of 2", "37%")
    assert notice.figures["ttft_median_ms"] == pytest.approx(2600)


@table(
    ("pace", "share", "shown"),
    [
        (Pace(1), None, ""),
        (Pace(1), 1.0, "99%"),
        (Pace(12, is_known=False), 0.5, "run 1 of at most 12"),
        (Pace(4), None, "0%"),
    ],
)
def test_progress_is_what_is_known_and_never_all_of_it(pace: Pace, share: float | None, shown: str) -> None:
    pace.begin()

    assert pace.show(share) == shown


async def test_board_is_read_over_http() -> None:
    (port,) = free_ports(1)
    board = StatusServer()
    board.want({"name": "prefix_hash", "load_factor": 1.5})
    async with (
        board.serving("127.0.0.1", port),
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/") as answer,
    ):
        told = decode_status(await answer.read())
        with pytest.raises(SettingsError, match="in use"):
            async with StatusServer().serving("127.0.0.1", port):
                pass

    assert told == board.notice()
    # What else somebody says is no notice.
    for text in (b"", b"<html>", b"[1]", b'{"finished": "many"}'):
        assert decode_status(text) is None
