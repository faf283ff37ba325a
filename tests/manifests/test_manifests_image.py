"""What the manifests run and the code asks for is in the image that `make image` builds."""

import re
import tomllib
from pathlib import Path

from extproc.cli import COMMAND_EXTRAS

ROOT = Path(__file__).parents[2]


def image_extras() -> set[str]:
    """Returns the extras of the Dockerfile, and those that they bring."""
    extras = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    [named] = re.findall(
        r"^ARG EXTRAS=(\S+)$", ROOT.joinpath("Dockerfile").read_text(), re.MULTILINE
    )
    words = named.split(",")
    brought = [re.findall(r"extproc-router\[(.*)\]", " ".join(extras[word])) for word in words]
    return {*words, *",".join(each for found in brought for each in found).split(",")}


def run_commands() -> set[str]:
    """Returns the commands of ours that manifests and chart run."""
    texts = [
        path.read_text()
        for house in ("manifests", "charts")
        for path in ROOT.joinpath(house).rglob("*.yaml")
    ]
    return {
        command for text in texts for command in re.findall(r"command: \[extproc, ([a-z]+)", text)
    }


def needed_extras(house: str) -> set[str]:
    """Returns the extras that a house's code asks for where one is missing."""
    texts = [path.read_text() for path in ROOT.joinpath("extproc", house).rglob("*.py")]
    asked = [re.findall(r"(?:the extra `|MissingExtra\(.*, \")([a-z]+)", text) for text in texts]
    return {extra for extras in asked for extra in extras}


def test_the_one_image_has_what_the_jobs_the_operator_and_its_runs_ask_for() -> None:
    commands = run_commands()
    needed = {COMMAND_EXTRAS[command] for command in commands if command in COMMAND_EXTRAS}

    assert {"bench", "operate"} <= commands
    assert needed == {"bench", "operator"}
    assert "tokenizers" in needed_extras("bench")
    assert needed.union(*map(needed_extras, ("operator", "bench", "router"))) <= image_extras()


def test_nothing_asks_for_another_image_than_that_one() -> None:
    pages = [
        *ROOT.joinpath("docs").rglob("*.md"),
        *ROOT.joinpath(".github").rglob("*.yml"),
        ROOT / "Makefile",
    ]
    assert [
        path
        for path in pages
        if re.search(r"EXTRAS=\S*operator|-operator\b.*image", path.read_text())
    ] == []
