"""One pool, and why it places as it does."""

from typing import Final

from monitoring.dashboards.board import (
    NAMESPACE,
    POOL,
    POOLS,
    Board,
    Panel,
    Query,
    Row,
    quantile,
    quantiles,
    rate,
)

ONE_POOL: Final = Board(
    "extproc-pool",
    "extproc: one pool",
    "A pool's endpoints beside one another.",
    (
        Row(
            "Load",
            (
                Panel(
                    "In flight",
                    "Requests on each endpoint, of all replicas.",
                    (Query(f"pool_endpoint:extproc_in_flight:sum{{{POOLS}}}", "{{endpoint}}"),),
                ),
                Panel(
                    "Answers",
                    "A second, by endpoint: each one's share.",
                    (Query(rate("extproc_answers_total", POOLS, "endpoint"), "{{endpoint}}"),),
                    "reqps",
                    "stack",
                ),
                Panel(
                    "Balance",
                    "Requests in flight on the busiest endpoint, over the mean. 1 is even.",
                    (Query(f"pool:extproc_in_flight:max_to_mean{{{POOLS}}}", "{{pool}}"),),
                ),
            ),
        ),
        Row(
            "Affinity",
            (
                Panel(
                    "Picks by reason",
                    "`session`, `prefix` and `home` are affinity; `spill` left it for load; `cold` had none.",
                    (Query(rate("extproc_picks_total", POOLS, "reason") + " > 0", "{{reason}}"),),
                    "reqps",
                    "stack",
                    6,
                ),
                Panel(
                    "Predicted cached tokens, by reason",
                    "Prompts' tokens a second that were believed to be in the picked endpoint's cache.",
                    (
                        Query(
                            rate("extproc_predicted_tokens_total", f'{POOLS},cached="yes"', "reason"),
                            "{{reason}}",
                        ),
                    ),
                    kind="stack",
                    width=6,
                ),
                Panel(
                    "Prefill saved, by reason",
                    "Engine seconds a second that those tokens would have taken to compute.",
                    (Query(rate("extproc_saved_prefill_seconds_total", POOLS, "reason"), "{{reason}}"),),
                    kind="stack",
                    width=6,
                ),
                Panel(
                    "Measured hit rate, by endpoint",
                    "Share of the tokens that came to it which its cache had. Needs `signals`.",
                    (
                        Query(
                            rate("extproc_measured_tokens_total", f'{POOLS},cached="yes"', "endpoint")
                            + " / "
                            + rate("extproc_measured_tokens_total", POOLS, "endpoint"),
                            "{{endpoint}}",
                        ),
                    ),
                    "percentunit",
                    width=6,
                ),
            ),
        ),
        Row(
            "Time",
            (
                Panel(
                    "Time to first byte",
                    "From a request's first byte at the proxy to its answer's; of good answers.",
                    quantiles("extproc_first_byte_seconds", f'{POOLS},class="2xx"'),
                    "s",
                    width=6,
                ),
                Panel(
                    "By class",
                    "The same by the answer's class, p95: refusals that are quick, failures that are slow.",
                    (Query(quantile(0.95, "extproc_first_byte_seconds", POOLS, "class, le"), "{{class}}"),),
                    "s",
                    width=6,
                ),
                Panel(
                    "How it is spread",
                    "Requests by their time to the first byte.",
                    (Query(rate("extproc_first_byte_seconds_bucket", POOLS, "le"), "{{le}}"),),
                    "s",
                    "heat",
                    12,
                ),
            ),
        ),
        Row(
            "Failures",
            (
                Panel(
                    "Answers that failed",
                    "Share of each endpoint's: 5xx, no connection, broken off.",
                    (Query(f"pool_endpoint:extproc_answers_failed:ratio_rate5m{{{POOLS}}}", "{{endpoint}}"),),
                    "percentunit",
                ),
                Panel(
                    "Answers by class",
                    "`none`: no connection, or lost before the first byte; `unknown`: the client left first.",
                    (Query(rate("extproc_answers_total", POOLS, "class"), "{{class}}"),),
                    "reqps",
                    "stack",
                ),
                Panel(
                    "Cooled down",
                    "Times in the last five minutes.",
                    (
                        Query(
                            f"sum by (endpoint) (increase(extproc_endpoint_coolings_total{{{POOLS}}}[5m]))",
                            "{{endpoint}}",
                        ),
                    ),
                ),
                Panel(
                    "Endpoints by state",
                    "The replicas' mean.",
                    (
                        Query(
                            f"avg by (state) (extproc_pool_endpoints{{{POOLS}}})",
                            "{{state}}",
                        ),
                    ),
                    kind="stack",
                ),
                Panel(
                    "Refused",
                    "Requests a second that the pool had no room or no endpoint for.",
                    (
                        Query(
                            rate("extproc_requests_total", f'{POOLS},outcome!="routed"', "outcome"),
                            "{{outcome}}",
                        ),
                    ),
                    "reqps",
                    "stack",
                ),
                Panel(
                    "Served elsewhere",
                    "Picks a second that another endpoint answered, as a gateway told.",
                    (Query(rate("extproc_picks_served_elsewhere_total", POOLS, "pool"), "{{pool}}"),),
                    "reqps",
                ),
            ),
        ),
    ),
    (NAMESPACE, POOL),
)
