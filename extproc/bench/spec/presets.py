"""Traffic of well-known kinds, as defaults for a `traffic-shape` section: whatever it says itself wins."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

Preset = Mapping[str, object]

# KubeAI's k6 benchmark: 1,000 threads of 7.34 requests, 680 tokens in, 9.24 out, shared by its users; cut
# off after 10m30s. 320 users on 8 x H100, and on a sole one; 80 on 2 x L4.
_K6: Preset = {
    "dataset": {
        "name": "synthetic",
        "turns_min": 5,
        "turns_extra": {"kind": "exponential", "mean": 2.81},
        "user_tokens": {"kind": "lognormal", "mean": 130, "sigma": 1.0, "min": 4},
        "reply_tokens": {"kind": "uniform", "min": 8.5, "max": 10},
        "mean_input_tokens": 680,
        "mean_output_tokens": None,
        "max_conversations": 1000,
    },
    "max_output_length": 10,
    "total_conversations": 1000,
    "duration": 600.0,
    "graceful_stop": 30.0,
}

# KubeAI's benchmark of 8 x L4, whose 8,000 requests are 800 prompts, shuffled and gone through ten times; a
# spec adds its req-rate and max-concurrency.
_REPLAY = {"name": "synthetic", "turns": "prompts", "max_prompts": 800, "repeat": 10, "shuffle": True}
_8XL4: Preset = {"dataset": _REPLAY, "arrivals": "poisson", "total_prompts": 8000}

# Large in, small out and the reverse; turns and tokens of `chat` as the WildChat paper gives them for
# ShareGPT at large: 3.51 turns, questions 94 +- 626 tokens, answers 348 +- 270.
PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "chat": {
            "dataset": {
                "name": "synthetic",
                "turns_min": 1,
                "turns_extra": {"kind": "exponential", "mean": 3.0},
                "user_tokens": {"kind": "lognormal", "mean": 94.46, "sigma": 1.95, "min": 4},
                "reply_tokens": {"kind": "lognormal", "mean": 348, "sigma": 0.69, "min": 4, "max": 2048},
                "mean_input_tokens": None,
                "mean_output_tokens": None,
            }
        },
        "kubeai-8xl4": _8XL4,
        # The same from a laptop, archived: half the prompts.
        "kubeai-8xl4-laptop": {
            **_8XL4,
            "dataset": {**_REPLAY, "max_prompts": 400},
            "req_rate": 200.0,
            "max_concurrency": 800,
            "total_prompts": 4000,
        },
        "kubeai-k6": {**_K6, "vus": 320},
        "kubeai-k6-2xl4": {**_K6, "vus": 80},
        "summarization": {
            "dataset": "random",
            "input_length": {"kind": "lognormal", "mean": 3000, "sigma": 0.6, "min": 500, "max": 7500},
            "max_output_length": {"kind": "lognormal", "mean": 150, "sigma": 0.5, "min": 20, "max": 500},
        },
        "generation": {
            "dataset": "random",
            "input_length": {"kind": "lognormal", "mean": 120, "sigma": 0.8, "min": 10, "max": 1000},
            "max_output_length": {"kind": "lognormal", "mean": 1200, "sigma": 0.5, "min": 200, "max": 4000},
        },
        "code-completion": {
            "dataset": {
                "name": "shared-prefix",
                "groups": 200,
                "prefix_tokens": {"kind": "lognormal", "mean": 1500, "sigma": 0.5, "min": 200, "max": 6000},
                "question_tokens": {"kind": "lognormal", "mean": 200, "sigma": 0.8, "min": 10},
                "output_tokens": {"kind": "lognormal", "mean": 40, "sigma": 0.6, "min": 4, "max": 200},
                "zipf": 0.8,
            }
        },
        "rag": {
            "dataset": {
                "name": "shared-prefix",
                "groups": 500,
                "prefix_tokens": {"kind": "lognormal", "mean": 3000, "sigma": 0.4, "min": 500, "max": 7000},
                "question_tokens": {"kind": "lognormal", "mean": 60, "sigma": 0.6, "min": 5},
                "output_tokens": {"kind": "lognormal", "mean": 250, "sigma": 0.6, "min": 20, "max": 1000},
                "zipf": 1.0,
            }
        },
        "agent": {
            "dataset": {
                "name": "synthetic",
                "turns_min": 6,
                "turns_extra": {"kind": "exponential", "mean": 8.0},
                "user_tokens": {"kind": "lognormal", "mean": 350, "sigma": 1.0, "min": 10, "max": 4000},
                "reply_tokens": {"kind": "lognormal", "mean": 90, "sigma": 0.7, "min": 10, "max": 800},
                "shared_system_tokens": 4000,
                "mean_input_tokens": None,
                "mean_output_tokens": None,
                "max_prompt_tokens": 16000,
            }
        },
    }
)


def apply_preset(section: Mapping[str, object]) -> dict[str, object]:
    """Returns a `traffic-shape` section with its preset's defaults; raises `ValueError`."""
    name = section.get("preset")
    if name is None:
        return dict(section)
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}: there are {', '.join(PRESETS)}")
    given = {field.replace("-", "_") for field in section}
    fields = {field: value for field, value in PRESETS[str(name)].items() if field not in _yield_to(given)}
    if "req_rate" not in {*given, *fields}:
        # A closed loop has no arrivals to describe.
        fields.pop("arrivals", None)
    return {**fields, **section}


def _yield_to(given: AbstractSet[str]) -> set[str]:
    """What a section says itself; and the preset's kind of loop where it says another one."""
    open_loop = {"req_rate", "max_concurrency"}
    others = {"vus"} if given & {"req_rate", "max_concurrency"} else set()
    return {*given, *others, *(open_loop if "vus" in given else ())}
