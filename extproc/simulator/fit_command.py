"""`extproc simulate fit`."""

from dataclasses import asdict
from pathlib import Path

import click
import yaml

from extproc.simulator import fit as fitting
from extproc.simulator.engine.profiles import DEFAULT_PROFILE, find_profile


@click.command
@click.argument("steps", type=click.Path(path_type=Path))
@click.option("--name", default="fitted", show_default=True, help="What to call the new profile.")
@click.option(
    "--like", default=DEFAULT_PROFILE, show_default=True, help="Where all but the costs comes from."
)
def fit(steps: Path, name: str, like: str) -> None:
    """Fit a profile's costs to STEPS, measured ones, and print it as YAML.

    STEPS is CSV with a heading or JSON lines: context_tokens (in the KV cache of all that runs),
    prefill_tokens (prompt tokens computed) and step_ms of each step.
    """
    fitted = fitting.fit(fitting.read_steps(steps))
    profile = asdict(find_profile(like)) | {
        "base_ms": fitted.base_ms,
        "kv_us_per_ctx_token": fitted.kv_us_per_ctx_token,
        "prefill_ms_per_token": fitted.prefill_ms_per_token,
        "is_calibrated": True,
        "note": f"Fitted to {fitted.steps} measured steps; root mean squared error {fitted.error_ms:.3g} ms.",
        "misses": "",
    }
    del profile["name"]
    click.echo(yaml.safe_dump({name: profile}, sort_keys=False), nl=False)
