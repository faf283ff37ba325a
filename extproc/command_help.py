"""What `--help` says beside the options: which commands come first, in groups, and examples of each."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

# By the name of a command group: its commands under a heading each. The first heading is a first
# user's.
SECTIONS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "cli": {
        "Commands": ("serve", "check", "explain", "doctor", "lint", "shadow", "init", "schema"),
        "Measure": ("simulate", "bench", "calibrate"),
        "Benchmarks in Kubernetes": ("operate",),
    },
    "init": {"Commands": ("kubernetes",)},
    "shadow": {"Commands": ("report", "reset")},
    "simulate": {"Commands": ("fleet", "vllm", "matrix", "prefill", "advise")},
    "bench": {
        "Commands": ("init", "run", "ab", "compare"),
        "Before a run": ("plan", "dataset", "schema"),
        "Many loads": ("sweep", "saturate"),
        "Reports again": ("report",),
        "KubeAI's published runs": ("serve",),
    },
}

# Commands that went, by group: since which version, and what there is in their place.
REMOVED: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "cli": {"top": ("0.2", "open the admin port in a browser, see docs/how-to/live.md")},
    "simulate": {"fit": ("0.2", "write a profile's YAML by hand")},
    "bench": {
        "history": ("0.2", "`bench compare EARLIER NOW` takes folders of repeats"),
        "import": (
            "0.2",
            "in the sources `python -m tests.benchmarks.published TABLE.csv` judges a table",
        ),
        "page": (
            "0.3",
            "in the sources `python -m tests.benchmarks.published TABLE.csv` draws any table's page",
        ),
        "worker": ("0.2", "run each part with `bench run --part I/N --start-at TIME`"),
    },
}

# By group and command.
EXAMPLES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "cli": {
        "calibrate": (
            "extproc calibrate http://127.0.0.1:8000",
            "extproc calibrate http://10.0.0.7:8000 --model qwen --output measured/",
        ),
        "serve": (
            "extproc serve config.yaml",
            "extproc serve --pool-name llama --max-in-flight 32",
        ),
        "check": (
            "extproc check config.yaml",
            "EXTPROC_SERVER__LISTEN=:9010 extproc check config.yaml",
        ),
        "explain": (
            'echo \'{"messages": [{"role": "user", "content": "Hi"}]}\' | extproc explain',
            "extproc explain --url http://10.0.0.7:9090 < body.json",
            "extproc explain config.yaml < body.json",
        ),
        "doctor": (
            "extproc doctor --envoy http://127.0.0.1:9901",
            "extproc doctor config.yaml --namespace llm --json | jq '.findings[].fix'",
        ),
        "lint": (
            "extproc lint --url http://10.0.0.7:9090",
            "extproc lint requests.jsonl",
        ),
        "shadow": (
            "extproc shadow report",
            "extproc shadow report --page shadow.html",
        ),
        "init": (
            "extproc init > config.yaml",
            "extproc init kubernetes --service vllm --port 8000 --model qwen",
        ),
        "schema": (
            "extproc schema > extproc.schema.json",
            "extproc schema | jq '.properties | keys'",
        ),
        "simulate": (
            "extproc simulate fleet --workload sessions --load 0.4",
            "extproc simulate vllm --ports 8001-8004",
        ),
        "bench": (
            "extproc bench run --url http://127.0.0.1:8080 --rate 4 --duration 60s",
            "extproc bench init --quick spec.yaml && extproc bench run spec.yaml",
        ),
        "operate": (
            "extproc operate --namespace llm --listen :8080",
            "extproc operate --print-crd",
        ),
    },
    "shadow": {
        "report": (
            "extproc shadow report --url http://10.0.0.7:9090",
            "extproc shadow report --json | jq '.[].verdict'",
        ),
        "reset": (
            "extproc shadow reset llama",
            "extproc shadow reset llama --url http://10.0.0.7:9090",
        ),
    },
    "init": {
        "kubernetes": (
            "extproc init kubernetes --service vllm --port 8000 --model qwen",
            "extproc init kubernetes --service vllm --port 80 --target-port 8000 \\",
            "    --model qwen --namespace llm --gateway istio --output router",
        )
    },
    "simulate": {
        "fleet": (
            "extproc simulate fleet --arm least_load --arm prefix_cache",
            "extproc simulate fleet --workload swe --load 0.8 --json runs.json",
        ),
        "vllm": (
            "extproc simulate vllm --port 8001",
            "extproc simulate vllm --ports 8001-8008 --profile h100-llama8b-bf16",
        ),
        "matrix": (
            "extproc simulate matrix build/matrix --workload C --workload T --seeds 11-13",
            "extproc simulate matrix build/matrix --arm prefix_cache --arm gie --seeds 11",
        ),
        "prefill": (
            "extproc simulate prefill --workload long-short --prefill 2 --prefill 6",
            "extproc simulate prefill --measured-s 10",
        ),
        "advise": (
            "extproc simulate advise trace.jsonl --engine h100-llama8b-bf16",
            "extproc simulate advise trace.jsonl --engine l4-llama8b-fp8 --p95-ms 1000",
        ),
    },
    "bench": {
        "init": ("extproc bench init spec.yaml", "extproc bench init --ab ab.yaml"),
        "run": (
            "extproc bench run --url http://127.0.0.1:8080 --rate 4 --duration 60s",
            "extproc bench run spec.yaml --output results",
        ),
        "ab": (
            "extproc bench ab --url http://a --url http://b --rate 4 --duration 60s",
            "extproc bench ab ab.yaml --output comparison",
        ),
        "compare": (
            "extproc bench compare monday/report.json tuesday/report.json",
            "extproc bench compare before after --output compared.html",
        ),
        "plan": ("extproc bench plan spec.yaml", "extproc bench plan spec.yaml --latency 20"),
        "dataset": (
            "extproc bench dataset spec.yaml --endpoints 8",
            "extproc bench dataset spec.yaml --output prompts.jsonl",
        ),
        "schema": (
            "extproc bench schema > spec.schema.json",
            "extproc bench schema | jq '.properties | keys'",
        ),
        "sweep": (
            "extproc bench sweep sweep.yaml --output swept",
            "extproc bench sweep sweep.yaml --output swept --again",
        ),
        "saturate": (
            "extproc bench saturate spec.yaml",
            "extproc bench saturate spec.yaml --output results",
        ),
        "report": (
            "extproc bench report results/run.jsonl",
            "extproc bench report part-0 part-1 --output whole",
        ),
        "serve": (
            "extproc bench serve --base-url=http://gateway:8080 --model=llama \\",
            "    --dataset-path=sharegpt.json --request-rate=200 --num-prompts=8000",
            "extproc bench serve --base-url=http://gateway:8080 --model=llama \\",
            "    --dataset-path=sharegpt.json --print-spec",
        ),
    },
}


def show_examples(lines: Sequence[str]) -> str:
    """The end of a command's help: examples, each on a line of its own."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


class CommandGroup(click.Group):
    """Commands whose help has them in `SECTIONS`, and each with its `EXAMPLES`; `-h` asks for it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.context_settings.setdefault("help_option_names", ["-h", "--help"])

    def list_commands(self, ctx: click.Context) -> list[str]:
        first = [name for names in SECTIONS[self.name or ""].values() for name in names]
        return [*first, *(name for name in super().list_commands(ctx) if name not in first)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        group = self.name or ""
        if args and args[0] in REMOVED.get(group, {}):
            version, instead = REMOVED[group][args[0]]
            path = " ".join((group, args[0])).removeprefix("cli ")
            raise click.UsageError(f"`{path}` was removed in {version}: {instead}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and (lines := EXAMPLES[group].get(name or "")):
            command.epilog = show_examples(lines)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in SECTIONS[self.name or ""].items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.summarise(ctx, name)) for name in names])

    def summarise(self, ctx: click.Context, name: str) -> str:
        """What a command does, on one line."""
        command = self.get_command(ctx, name)
        return command.get_short_help_str(limit=70) if command else ""
