import io
import urllib.request

from rich.console import Console

from extproc.bench.progress import Broadcast, Display, Standing, serving, showing

SNAPSHOT = Standing(
    at_s=12.0,
    sent=1200,
    in_flight=34,
    finished=1166,
    failures={"timeout": 2},
    ttft_s=(0.2, 0.4),
    lag_s=(0.001,),
)


def text_of(display: Display) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(display.render())
    return console.export_text()


def test_display_shows_sent_in_flight_errors_ttft_and_lag() -> None:
    display = Display("a run")
    display.update(SNAPSHOT)

    shown = text_of(display)

    for part in ("1,200", "34", "timeout 2", "p50 300.0 ms", "p50 1.00 ms", "a run"):
        assert part in shown


def test_display_without_samples_shows_dashes() -> None:
    assert "TTFT" in text_of(Display("idle"))


def test_showing_ends_with_the_last_state_on_the_console() -> None:
    file = io.StringIO()
    with showing("a run", Console(file=file, width=80)) as display:
        display.update(SNAPSHOT)

    assert "1,200" in file.getvalue()


def test_exporter_serves_the_state_of_a_run_while_it_goes() -> None:
    with serving(0, "127.0.0.1") as (exporter, port):
        Broadcast([exporter, Display("also")]).update(SNAPSHOT)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()

    assert "extproc_bench_sent 1200.0" in text
    assert 'extproc_bench_failures{kind="timeout"} 2.0' in text
    assert "extproc_bench_ttft_seconds_count 2.0" in text
    assert "extproc_bench_lag_seconds_count 1.0" in text
