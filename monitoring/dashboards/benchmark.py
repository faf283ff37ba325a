"""A benchmark while it runs, and after."""

from typing import Final

from monitoring.dashboards.board import Board, Panel, Query, Row, quantiles, rate


def _so_far(metric: str) -> str:
    """The pace of a count that is a gauge, since it begins anew with each run."""
    return f"deriv({metric}[$__rate_interval])"


BENCHMARK: Final = Board(
    "extproc-benchmark",
    "extproc: benchmark runs",
    "A run while it goes (`bench run --metrics-port`).",
    (
        Row(
            "The run",
            (
                Panel(
                    "Requests",
                    "Sent and ended a second.",
                    (
                        Query(_so_far("extproc_bench_sent"), "sent"),
                        Query(_so_far("extproc_bench_finished"), "ended"),
                    ),
                    "reqps",
                ),
                Panel(
                    "In flight",
                    "Sent and not ended.",
                    (Query("extproc_bench_in_flight", "in flight"),),
                    "suffix: requests",
                ),
                Panel(
                    "Failures",
                    "So far, by kind.",
                    (Query("extproc_bench_failures", "{{kind}}", may_be_empty=True),),
                    "suffix: requests",
                    bad=1,
                ),
                Panel(
                    "Time to first token",
                    "From the intended start.",
                    quantiles("extproc_bench_ttft_seconds", labels=""),
                    "s",
                ),
                Panel(
                    "Time per output token",
                    "After the first.",
                    quantiles("extproc_bench_tpot_seconds", labels=""),
                    "s",
                ),
                Panel(
                    "End-to-end latency",
                    "To the last byte, from the intended start.",
                    quantiles("extproc_bench_e2e_seconds", labels=""),
                    "s",
                ),
                Panel(
                    "Tokens",
                    "Of completed requests, a second.",
                    (Query(_so_far("extproc_bench_tokens"), "{{kind}}"),),
                    "suffix: tok/s",
                ),
                Panel(
                    "Client lag",
                    "Beyond some milliseconds the run measures itself.",
                    quantiles("extproc_bench_lag_seconds", labels=""),
                    "s",
                    doubtful=0.01,
                    bad=0.05,
                ),
                Panel(
                    "Picks by the router",
                    "Picks by reason.",
                    (Query(rate("extproc_picks_total", "", "reason") + " > 0", "{{reason}}"),),
                    "reqps",
                    "stack",
                ),
            ),
        ),
    ),
)
