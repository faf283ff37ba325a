"""All pools at a glance."""

from typing import Final

from monitoring.dashboards.board import (
    GOOD,
    IN,
    NAMESPACE,
    Board,
    Panel,
    Query,
    Row,
    quantile,
    quantiles,
    rate,
)

_NOW: Final = Row(
    "Now",
    (
        Panel(
            "Alerts",
            "What fires or is about to. docs/how-to/runbook.md says what to do.",
            (Query(f'ALERTS{{alertname=~"Extproc.*",{IN}}}', may_be_empty=True),),
            kind="table",
            width=6,
        ),
        Panel(
            "Requests",
            "A second, whatever became of them.",
            (Query(rate("extproc_requests_total")),),
            "reqps",
            "figure",
            3,
        ),
        Panel(
            "First token, p95",
            "As vLLM counts it, where this Prometheus scrapes it. Amber from 1 s, red from 5 s: edit that.",
            (Query(quantile(0.95, "vllm:time_to_first_token_seconds", ""), may_be_empty=True),),
            "s",
            "figure",
            3,
            doubtful=1,
            bad=5,
        ),
        Panel(
            "First byte, p95",
            "From a request's first byte at Envoy to its answer's; of a stream the headers. Good answers.",
            (Query(quantile(0.95, "extproc_first_byte_seconds", GOOD)),),
            "s",
            "figure",
            3,
            doubtful=1,
            bad=5,
        ),
        Panel(
            "Prefix cache hit rate",
            "Share of the prompts' tokens, as vLLM counts them. Needs `signals`.",
            (Query(f"pool:extproc_measured_tokens_cached:ratio_rate10m{{{IN}}}", "{{pool}}"),),
            "percentunit",
            "figure",
            3,
        ),
        Panel(
            "Requests shed (429)",
            "Share of a pool's requests that were refused with 429. From 1 % on there is an alert.",
            (Query(f"pool:extproc_requests_shed:ratio_rate5m{{{IN}}}", "{{pool}}"),),
            "percentunit",
            "figure",
            3,
            doubtful=0.001,
            bad=0.01,
        ),
        Panel(
            "Fail-open requests",
            "Share of the requests that Envoy sent on without an answer of the service.",
            (Query(f"namespace:envoy_requests_passed_by:ratio_rate5m{{{IN}}}"),),
            "percentunit",
            "figure",
            3,
            doubtful=0.001,
            bad=0.01,
        ),
    ),
)


_WHERE: Final = Row(
    "Where requests go, and why",
    (
        Panel(
            "Picks by reason",
            "`session`, `prefix` and `home` are affinity; `spill` left it for load; `cold` had none.",
            (Query(rate("extproc_picks_total", by="reason") + " > 0", "{{reason}}"),),
            "reqps",
            "stack",
        ),
        Panel(
            "Requests by outcome",
            "`routed` is all others' sum where all is well.",
            (Query(rate("extproc_requests_total", by="outcome") + " > 0", "{{outcome}}"),),
            "reqps",
            "stack",
        ),
        Panel(
            "Requests by pool",
            "Those that found one.",
            (Query(rate("extproc_requests_total", f'{IN},pool!=""', "pool"), "{{pool}}"),),
            "reqps",
            "stack",
        ),
    ),
)


_PAYS: Final = Row(
    "Does routing pay?",
    (
        Panel(
            "Hit rate, predicted and measured",
            "Share of the prompts' tokens that was believed to be in a cache, and that vLLM found there. "
            "The two should be close.",
            (
                Query(
                    f"pool:extproc_predicted_tokens_cached:ratio_rate10m{{{IN}}}",
                    "{{pool}} predicted",
                ),
                Query(
                    f"pool:extproc_measured_tokens_cached:ratio_rate10m{{{IN}}}",
                    "{{pool}} measured",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Prefill saved",
            "Engines' seconds a second that tokens believed to be cached would have taken to compute: "
            "so many engines would be busy with nothing else.",
            (Query(rate("extproc_saved_prefill_seconds_total", by="pool"), "{{pool}}"),),
            "suffix: engines",
        ),
        Panel(
            "Busiest endpoint, over the mean",
            "Requests in flight on the busiest endpoint, over the mean. 1 is even. "
            "Of a few requests it says nothing.",
            (Query(f"pool:extproc_in_flight:max_to_mean{{{IN}}}", "{{pool}}"),),
            "suffix: times the mean",
            doubtful=2,
        ),
        Panel(
            "Time to first byte",
            "From a request's first byte at Envoy to its answer's; of a stream the headers. Good answers.",
            quantiles("extproc_first_byte_seconds", GOOD, by="pool", legend="{{pool}}"),
            "s",
            doubtful=1,
            bad=5,
        ),
        Panel(
            "Time to first byte by zone",
            "Of good answers, p95, by the endpoint's zone; empty where no source tells zones.",
            (
                Query(
                    quantile(
                        0.95, "extproc_first_byte_seconds", f'{GOOD},zone!=""', "pool, zone, le"
                    ),
                    "{{pool}} {{zone}}",
                    may_be_empty=True,
                ),
            ),
            "s",
        ),
        Panel(
            "Time to first token",
            "As vLLM counts it, by model; empty where this Prometheus does not scrape vLLM.",
            tuple(
                Query(
                    quantile(share, "vllm:time_to_first_token_seconds", "", "model_name, le"),
                    f"{{{{model_name}}}} {name}",
                    may_be_empty=True,
                )
                for share, name in ((0.5, "p50"), (0.95, "p95"))
            ),
            "s",
            doubtful=1,
            bad=5,
        ),
    ),
)


_KNOWN: Final = Row(
    "Endpoints and where they come from",
    (
        Panel(
            "Endpoints by state",
            "`ready` for picks; left out (`cooling`, `busy`, `unhealthy`); `draining`. The replicas' mean.",
            (
                Query(
                    f"avg by (pool, state) (extproc_pool_endpoints{{{IN}}})",
                    "{{pool}} {{state}}",
                ),
            ),
            "suffix: endpoints",
        ),
        Panel(
            "Age of endpoint lists",
            "Since a source last confirmed the endpoints, or the objectives where they are followed.",
            (
                Query(f"max by (pool) (extproc_pool_age_seconds{{{IN}}})", "{{pool}}"),
                Query(
                    f"max by (pool) (extproc_objectives_age_seconds{{{IN}}})",
                    "{{pool}} objectives",
                    may_be_empty=True,
                ),
            ),
            "s",
            doubtful=60,
            bad=300,
        ),
        Panel(
            "Failing endpoint sources",
            "Yes while a source has no good list to tell.",
            (
                Query(
                    f"max by (pool, why) (extproc_pool_fault{{{IN}}})",
                    "{{pool}} {{why}}",
                    may_be_empty=True,
                ),
            ),
            "bool_yes_no",
            bad=1,
        ),
    ),
)


_COSTS: Final = Row(
    "What the router itself costs",
    (
        Panel(
            "Pick duration",
            "From a request's last message read to its answer ready.",
            quantiles("extproc_pick_duration_seconds"),
            "s",
            doubtful=0.01,
            bad=0.1,
        ),
        Panel(
            "CPU",
            "Cores, by replica.",
            (
                Query(
                    f"rate(process_cpu_seconds_total{{{IN}}}[$__rate_interval])"
                    " and on (namespace, job, instance) extproc_info",
                    "{{instance}}",
                ),
            ),
            "suffix: cores",
            doubtful=0.8,
        ),
        Panel(
            "Memory",
            "Resident, by replica. The manifests' limit is 512 MiB.",
            (
                Query(
                    f"process_resident_memory_bytes{{{IN}}} and on (namespace, job, instance) extproc_info",
                    "{{instance}}",
                ),
            ),
            "bytes",
            doubtful=0.8 * 512 * 1024 * 1024,
            bad=512 * 1024 * 1024,
        ),
        Panel(
            "Open ext_proc streams",
            "Requests in flight, by replica.",
            (Query(f"extproc_streams_open{{{IN}}}", "{{instance}}"),),
            "suffix: streams",
        ),
        Panel(
            "Unreadable request bodies",
            "Requests routed without their body, by why.",
            (Query(rate("extproc_prompt_errors_total", by="why"), "{{why}}"),),
            "reqps",
        ),
        Panel(
            "Errors",
            "Streams, access logs, watches, configurations that went wrong, a second.",
            (
                Query(rate("extproc_stream_errors_total", by="why"), "stream {{why}}"),
                Query(rate("extproc_access_log_faults_total", by="why"), "access log {{why}}"),
                Query(rate("extproc_watch_restarts_total", by="why"), "watch {{why}}"),
                Query(
                    rate("extproc_objectives_watch_restarts_total", by="why"),
                    "objectives' watch {{why}}",
                    may_be_empty=True,
                ),
                Query(rate("extproc_xds_nacks_total", by="type"), "Envoy refuses {{type}}"),
                Query(
                    rate("extproc_config_reloads_total", by="result"), "configuration {{result}}"
                ),
                Query(f"max(extproc_config_refused{{{IN}}})", "file is not in force"),
            ),
            "suffix:/s",
        ),
        Panel(
            "Spans",
            "A second: `sent`; `refused` by their receiver, or not taken in time; `dropped` since too many "
            "waited. 0 where no traces are made.",
            (Query(rate("extproc_spans_total", by="result"), "{{result}}"),),
            "suffix: spans/s",
        ),
    ),
)


ROUTER: Final = Board(
    "extproc-router",
    "extproc: router",
    "Where requests go, why, and whether it pays.",
    (_NOW, _WHERE, _PAYS, _KNOWN, _COSTS),
    (NAMESPACE,),
)
