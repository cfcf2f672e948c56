"""Misspelt environment variables are found, with the nearest known name."""

from blindtally.console.environment import unknown_variables


def test_unknown_names_with_our_prefix_have_the_nearest_known_one() -> None:
    names = ["PATH", "BLINDTALLY_PORT", "blindtally_port", "BLINDTALLY_API_KEY"]
    assert unknown_variables(names) == {}
    assert unknown_variables([*names, "BLINDTALLY_MAX_REQESTS", "BLINDTALLY_QQQ"]) == {
        "BLINDTALLY_MAX_REQESTS": "BLINDTALLY_MAX_REQUESTS",
        "BLINDTALLY_QQQ": None,
    }
