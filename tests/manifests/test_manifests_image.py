"""What the docs and the code offer is in the image that they say to build."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = re.compile(r"EXTRAS=([a-z]+(?:,[a-z]+)+)")


def operators_images() -> dict[str, set[str]]:
    """Returns the extras of the operator's image, by the file that says how to build it."""
    found = {}
    for name in (
        "Dockerfile",
        "Makefile",
        "docs/how-to/benchmark-in-cluster.md",
        "docs/how-to/kubernetes.md",
    ):
        named_extras = [
            set(each.split(",")) for each in EXTRAS.findall(ROOT.joinpath(name).read_text())
        ]
        [found[name]] = [extras for extras in named_extras if "operator" in extras]
    return found


def needed_extras(house: str) -> set[str]:
    """Returns the extras that a house's code asks for where one is missing."""
    texts = [path.read_text() for path in ROOT.joinpath("extproc", house).rglob("*.py")]
    asked = [re.findall(r"(?:the extra `|MissingExtra\(.*, \")([a-z]+)", text) for text in texts]
    return {extra for extras in asked for extra in extras}


def test_the_operators_image_has_what_its_runs_may_ask_for_and_every_extra_is_one() -> None:
    images = operators_images()
    needed = needed_extras("operator") | needed_extras("bench") | needed_extras("router")
    extras = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    assert "tokenizers" in needed
    assert [sorted(needed - extras) for extras in images.values()] == [[]] * len(images)
    assert len({frozenset(extras) for extras in images.values()}) == 1
    assert set().union(*images.values()) <= extras.keys()
