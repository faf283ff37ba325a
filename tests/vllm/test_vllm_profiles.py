"""Profiles: the ones that come with the package, and those of users."""

from pathlib import Path

import pytest

from extproc.errors import SettingsError
from extproc.vllm.profiles import DEFAULT_PROFILE, built_in_profiles, find_profile, read_profiles

COSTS = "base_ms: 1, kv_us_per_ctx_token: 1, prefill_ms_per_token: 1, "
SIZES = "kv_tokens: 64, block_size: 16, max_num_batched_tokens: 64, max_num_seqs: 4, max_model_len: 64"


def test_every_profile_says_how_it_was_found() -> None:
    profiles = built_in_profiles()

    assert DEFAULT_PROFILE in profiles
    assert all(profile.note for profile in profiles.values())
    assert {name for name, profile in profiles.items() if profile.is_calibrated} == {
        "l4-llama8b-fp8",
        "l4-llama8b-fp8-fitted",
    }


def test_step_of_the_published_round_robin_run_takes_88_ms() -> None:
    assert find_profile("l4-llama8b-fp8").step_s(97 * 870, 0) == pytest.approx(0.088, abs=0.0005)


def test_profile_of_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"mine: {{{COSTS}{SIZES}}}")

    assert find_profile(str(path)).name == "mine"


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=f"'nope' is no file and none of {DEFAULT_PROFILE}"):
        find_profile("nope")


def test_empty_file_holds_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("{}")

    with pytest.raises(SettingsError, match="no profile"):
        find_profile(str(path))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [", "profiles:1: not YAML: "),
        ("- a", "expected a mapping"),
        ("a: 1", "a: "),
        (f"a: {{{SIZES}}}", "a.base_ms: Field required"),
        (f"a: {{{COSTS}{SIZES}, speed: 1}}", "a.speed: Unexpected keyword argument"),
        (f"a: {{{COSTS}{SIZES}}}".replace("base_ms: 1", "base_ms: -1"), "a.base_ms: Input should be"),
        (f"a: {{{COSTS}{SIZES}}}".replace("kv_tokens: 64", "kv_tokens: 63"), "holds less than max_model_len"),
        (f"a: {{{COSTS}{SIZES}}}".replace("max_num_seqs: 4", "max_num_seqs: 65"), "max_num_seqs exceeds"),
    ],
)
def test_faulty_profile_is_refused_with_its_place(text: str, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        read_profiles(text)
