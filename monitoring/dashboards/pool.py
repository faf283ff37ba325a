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
                    "suffix: requests",
                    width=6,
                ),
                Panel(
                    "Answers",
                    "A second, by endpoint: each one's share.",
                    (Query(rate("extproc_answers_total", POOLS, "endpoint"), "{{endpoint}}"),),
                    "reqps",
                    "stack",
                    6,
                ),
                Panel(
                    "First byte, p95",
                    "From a request's first byte at Envoy to its answer's (a stream's headers); good ones.",
                    (
                        Query(
                            quantile(0.95, "extproc_first_byte_seconds", f'{POOLS},class="2xx"'),
                            "p95",
                        ),
                    ),
                    "s",
                    width=6,
                    doubtful=1,
                    bad=5,
                ),
                Panel(
                    "Busiest endpoint, over the mean",
                    "Requests in flight on the busiest endpoint, over the mean. 1 is even.",
                    (Query(f"pool:extproc_in_flight:max_to_mean{{{POOLS}}}", "{{pool}}"),),
                    "suffix: times the mean",
                    width=6,
                    doubtful=2,
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
                            rate(
                                "extproc_predicted_tokens_total", f'{POOLS},cached="yes"', "reason"
                            ),
                            "{{reason}}",
                        ),
                    ),
                    "suffix: tok/s",
                    kind="stack",
                    width=6,
                ),
                Panel(
                    "Prefill saved, by reason",
                    "Engines' seconds a second that those tokens would have taken to compute.",
                    (
                        Query(
                            rate("extproc_saved_prefill_seconds_total", POOLS, "reason"),
                            "{{reason}}",
                        ),
                    ),
                    "suffix: engines",
                    kind="stack",
                    width=6,
                ),
                Panel(
                    "Measured hit rate, by endpoint",
                    "Share of the tokens that came to it which its cache had. Needs `signals`.",
                    (
                        Query(
                            rate(
                                "extproc_measured_tokens_total", f'{POOLS},cached="yes"', "endpoint"
                            )
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
            "Latency",
            (
                Panel(
                    "Time to first byte",
                    "From a request's first byte at the proxy to its answer's; of good answers.",
                    quantiles("extproc_first_byte_seconds", f'{POOLS},class="2xx"'),
                    "s",
                    width=6,
                ),
                Panel(
                    "Time to first byte by endpoint, mean",
                    "The mean of each endpoint's good answers.",
                    (
                        Query(
                            f"pool_endpoint:extproc_first_byte_seconds:mean_rate5m{{{POOLS}}}",
                            "{{endpoint}}",
                        ),
                    ),
                    "s",
                    width=6,
                ),
                Panel(
                    "Time to first byte by class, p95",
                    "The same by the answer's class, p95: refusals that are quick, failures that are slow.",
                    (
                        Query(
                            quantile(0.95, "extproc_first_byte_seconds", POOLS, "class, le"),
                            "{{class}}",
                        ),
                    ),
                    "s",
                    width=6,
                ),
                Panel(
                    "Time to first byte, distribution",
                    "Requests by their time to the first byte.",
                    (Query(rate("extproc_first_byte_seconds_bucket", POOLS, "le"), "{{le}}"),),
                    "s",
                    "heat",
                    6,
                ),
            ),
        ),
        Row(
            "Shadow",
            (
                Panel(
                    "Hit rate foretold",
                    "Share of prompt tokens found in caches: as served, or by least load, and as picked.",
                    (
                        Query(
                            f"max by (picture) (extproc_shadow_hit_rate{{{POOLS}}})",
                            "{{picture}}",
                            may_be_empty=True,
                        ),
                    ),
                    "percentunit",
                ),
                Panel(
                    "Prefill foretold",
                    "In engines' time, in both pictures. The difference is what routing saves.",
                    (
                        Query(
                            f"max by (picture) (extproc_shadow_prefill_engines{{{POOLS}}})",
                            "{{picture}}",
                            may_be_empty=True,
                        ),
                    ),
                    "suffix: engines",
                ),
            ),
        ),
        Row(
            "Failures",
            (
                Panel(
                    "Answers that failed",
                    "Share of each endpoint's: 5xx, no connection, cut off.",
                    (
                        Query(
                            f"pool_endpoint:extproc_answers_failed:ratio_rate5m{{{POOLS}}}",
                            "{{endpoint}}",
                        ),
                    ),
                    "percentunit",
                    doubtful=0.05,
                    bad=0.2,
                ),
                Panel(
                    "Answers by class",
                    "`none`: no connection, or lost before the first byte; `unknown`: the client left first.",
                    (Query(rate("extproc_answers_total", POOLS, "class"), "{{class}}"),),
                    "reqps",
                    "stack",
                ),
                Panel(
                    "Endpoints left out for failures (cooling)",
                    "Times in the last five minutes.",
                    (
                        Query(
                            f"sum by (endpoint) (increase(extproc_endpoint_coolings_total{{{POOLS}}}[5m]))",
                            "{{endpoint}}",
                        ),
                    ),
                    "suffix: times",
                    doubtful=1,
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
                    "suffix: endpoints",
                    "stack",
                ),
                Panel(
                    "Requests refused",
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
                    "Picks that another endpoint answered",
                    "Picks a second that another endpoint answered, as a gateway told.",
                    (
                        Query(
                            rate("extproc_picks_served_elsewhere_total", POOLS, "pool"), "{{pool}}"
                        ),
                    ),
                    "reqps",
                ),
            ),
        ),
    ),
    (NAMESPACE, POOL),
)
