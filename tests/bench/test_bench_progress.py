import io
from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from extproc.bench.progress import (
    Display,
    Exporter,
    Goal,
    Pace,
    RunSnapshot,
    roughly,
    watching,
)
from tests.tables import table

SNAPSHOT = RunSnapshot(
    at_s=12.0,
    sent=1200,
    in_flight=34,
    finished=1166,
    failures={"timeout": 2},
    ttft_s=(0.2, 0.4),
    lag_s=(0.001,),
)


def progress_text(display: Display) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(display.render())
    return console.export_text()


def test_display_shows_sent_in_flight_errors_ttft_and_lag() -> None:
    display, idle = Display("a run"), Display("idle")
    assert "TTFT" in progress_text(idle)
    idle.update(replace(SNAPSHOT, at_s=-0.2, finished=0, goal=Goal(seconds=60)))
    display.update(SNAPSHOT)

    for part in ("1,200", "34", "timeout 2", "p50 300.0 ms", "p50 1.00 ms", "a run"):
        assert part in progress_text(display)
    assert "left" not in progress_text(idle)  # it has not begun


def test_watching_tells_all_and_ends_with_the_last_state_on_the_console() -> None:
    file, registry = io.StringIO(), CollectorRegistry()
    with watching(
        "a run", Console(file=file, width=80), Exporter(registry), None, quiet=False
    ) as progress:
        progress.update(SNAPSHOT)
    text = generate_latest(registry).decode()

    assert "1,200" in file.getvalue()
    # A Job's log has the report behind it.
    assert file.getvalue().endswith("\n")
    assert "extproc_bench_sent 1200.0" in text
    assert 'extproc_bench_failures{kind="timeout"} 2.0' in text
    assert "extproc_bench_ttft_seconds_count 2.0" in text
    assert "extproc_bench_lag_seconds_count 1.0" in text


@table(
    ("goal", "shown"),
    [
        (Goal(requests=4664), "12 s   25%, 36 s left"),
        (Goal(seconds=1200), "12 s   1%, 20 min left"),
        # What comes first ends a closed loop: here its requests.
        (Goal(requests=2332, seconds=120), "12 s   50%, 12 s left"),
        (Goal(requests=1166), "12 s   100%"),
        (Goal(), "12 s"),
    ],
)
def test_display_shows_how_much_is_done_and_how_long_the_rest_takes(goal: Goal, shown: str) -> None:
    display = Display("a run")
    display.update(replace(SNAPSHOT, goal=goal))

    (line,) = [line for line in progress_text(display).splitlines() if "│ time " in line]
    assert " ".join(line.strip("│ ").split()) == f"time {' '.join(shown.split())}"


def test_experiment_says_which_run_of_how_many_and_how_long_the_rest_takes() -> None:
    """Two of four runs and half of the third took 100 s: the other three eighths take 60 s."""
    now_s = [1000.0]
    pace, search = Pace(4, lambda: now_s[0]), Pace(12, is_known=False)
    for _ in range(3):
        pace.begin()
    now_s[0] += 100
    search.begin()

    assert pace.render(0.5) == "run 3 of 4, 62%, 60 s left"
    assert pace.render(None) == "run 3 of 4, 50%, 2 min left"
    assert search.render(0.5) == "run 1 of at most 12"  # it may end early
    said = {0.4: "0 s", 89: "89 s", 90: "2 min", 3540: "59 min", 7500: "2 h 05 min"}
    assert {seconds: roughly(seconds) for seconds in said} == said
