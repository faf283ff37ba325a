"""Traffic of well-known kinds, as defaults for a `traffic-shape` section: whatever it says itself wins."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from importlib.resources import files
from types import MappingProxyType

import yaml

from extproc.documents import suggest_name

# In a file, as they are sections like those of a spec.
PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    yaml.safe_load(files("extproc.bench.spec").joinpath("presets.yaml").read_text("utf-8"))
)


def apply_preset(section: Mapping[str, object]) -> dict[str, object]:
    """Returns a `traffic-shape` section with its preset's defaults; raises `ValueError`."""
    name = section.get("preset")
    if name is None:
        return dict(section)
    if name not in PRESETS:
        nearest = suggest_name(str(name), PRESETS)
        raise ValueError(f"no preset {name!r}{nearest} (choose from {', '.join(PRESETS)})")
    given = {field.replace("-", "_") for field in section}
    fields = {
        field: value for field, value in PRESETS[str(name)].items() if field not in _yield_to(given)
    }
    if "req_rate" not in {*given, *fields}:
        # A closed loop has no arrivals to describe.
        fields.pop("arrivals", None)
    return {**fields, **section}


def _yield_to(given: AbstractSet[str]) -> set[str]:
    """What a section says itself; and the preset's kind of loop where it says another one."""
    open_loop = {"req_rate", "max_concurrency"}
    others = {"vus"} if given & {*open_loop, "stages"} else set()
    return {*given, *others, *(open_loop if given & {"vus", "stages"} else ())}
