"""Words that a study of `tracked` needs, found by simulation."""

import pytest

from blindtally.planning.recommended_words import recommend_words


def test_more_devices_to_hide_among_need_more_words_and_a_higher_goal_too() -> None:
    words = recommend_words(20, 200, 5, contribution=3)
    assert 500 < words < 2000  # a table of all 600 tokens would take 200 kB
    assert recommend_words(20, 200, 5, contribution=3, f1=0.8) <= words


def test_a_study_without_heavy_items_is_refused() -> None:
    with pytest.raises(ValueError, match="no assumed item is held 20 times"):
        recommend_words(20, 5, 1)
