"""Profiles: the ones that come with the package, and those of users."""

from dataclasses import replace
from pathlib import Path

import pytest

from extproc.errors import SettingsError
from extproc.simulator.engine.profiles import (
    DEFAULT_PROFILE,
    built_in_profiles,
    find_profile,
    read_profiles,
)
from tests.tables import table

COSTS = "base_ms: 1, kv_us_per_ctx_token: 1, prefill_ms_per_token: 1, "
SIZES = (
    "kv_tokens: 64, block_size: 16, max_num_batched_tokens: 64, max_num_seqs: 4, max_model_len: 64"
)


def test_every_profile_says_how_it_was_found_and_the_default_is_the_published_runs() -> None:
    """A step of the published round-robin run takes 88 ms."""
    profiles, fitted = (
        built_in_profiles(),
        {f"l4-llama8b-fp8{more}" for more in ("", "-fitted", "-22k")} | {"h200-llama8b-bf16"},
    )

    assert DEFAULT_PROFILE in profiles
    assert all(profile.note and profile.misses for profile in profiles.values())
    assert {name for name, profile in profiles.items() if profile.is_calibrated} == fitted
    assert find_profile("l4-llama8b-fp8").step_s(97 * 870, 0) == pytest.approx(0.088, abs=0.0005)


@table(("tokens", "share"), [(6_000, 0.14), (15_000, 0.34), (30_000, 0.68)])
def test_attention_of_a_prefill_is_the_measured_share_of_it(tokens: int, share: float) -> None:
    profile = find_profile("l4-llama8b-fp8-attention")
    without = replace(profile, attention_ns=0)
    pairs = tokens**2 / 2
    prefill_s = without.step_s(0, tokens) - without.step_s(0, 0)

    assert replace(without, name="") == replace(
        find_profile(DEFAULT_PROFILE),
        name="",
        note=without.note,
        misses=without.misses,
        is_calibrated=False,
    )
    assert (
        profile.step_s(0, tokens, pairs) - without.step_s(0, tokens)
    ) / prefill_s == pytest.approx(share, rel=0.05)


def test_profile_of_a_file_is_found_by_its_path_and_an_unknown_name_lists_the_known(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"mine: {{{COSTS}{SIZES}}}")

    assert find_profile(str(path)).name == "mine"
    path.write_text("{}")
    with pytest.raises(SettingsError, match="no profile"):
        find_profile(str(path))
    with pytest.raises(SettingsError, match=f"'nope' is no file and none of {DEFAULT_PROFILE}"):
        find_profile("nope")


@table(
    ("text", "fault"),
    [
        ("a: [", "profiles:1: not YAML: "),
        ("- a", "expected a mapping"),
        ("a: 1", "a: "),
        (f"a: {{{SIZES}}}", "a.base_ms: is missing"),
        (f"a: {{{COSTS}{SIZES}, speed: 1}}", "a.speed: there is no such setting"),
        (f"a: {{{COSTS}{SIZES}}}".replace("base_ms: 1", "base_ms: -1"), "a.base_ms: must be"),
        (
            f"a: {{{COSTS}{SIZES}}}".replace("kv_tokens: 64", "kv_tokens: 63"),
            "holds less than max_model_len",
        ),
        (
            f"a: {{{COSTS}{SIZES}}}".replace("max_num_seqs: 4", "max_num_seqs: 65"),
            "max_num_seqs exceeds",
        ),
    ],
)
def test_faulty_profile_is_refused_with_its_place(text: str, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        read_profiles(text)
