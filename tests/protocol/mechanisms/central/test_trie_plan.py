"""Questions and plans of `triehh`: the items that they count, what they cost, and refusals."""

import random
from typing import Any

import pytest

from protocol.domains.strings import Alphabet, Utf8
from protocol.mechanisms.central.trie_plan import TrieHhPlan
from protocol.privacy.events import SampleThresholdEvent, SkellamNoiseEvent
from protocol.privacy.release import Release
from tests.protocol.chance import seeded
from tests.protocol.mechanisms.central.tries import PAD_DOMAIN, TERMS, TEXT, TRIE, asked, first


def test_a_long_item_is_cut_if_the_question_allows_it() -> None:
    held = ["abcabc", "abcab", "abca", "ab_c", "abc", "é"]
    whole = asked(domain=PAD_DOMAIN)
    assert [whole.canonical(item) for item in held] == [None, None, "abca", None, "abc", None]
    cut = asked(domain=PAD_DOMAIN, truncate=True)
    assert [cut.canonical(item) for item in held] == ["abca", "abca", "abca", None, "abc", None]
    text = asked(domain=Utf8(max_bytes=4), truncate=True)
    cut_texts = [text.canonical(item) for item in ("€€", "aé€", "😀a", "a\0b")]
    assert cut_texts == ["€", "aé", "😀", None]


def test_a_pad_inside_an_item_does_not_count_for_what_stands_before_it() -> None:
    question = asked(domain=PAD_DOMAIN)
    assert "a_b" in PAD_DOMAIN
    assert question.canonical("a_b") is None
    with pytest.raises(ValueError, match="'a_b' has a pad inside, so it is outside the domain"):
        TRIE.encode(first(domain=PAD_DOMAIN), {"a_b": 1}, seeded(1))


# What it costs.


def test_the_cost_of_a_study_is_that_of_its_releases() -> None:
    plan = TRIE.first_plan(asked(contribution=2), TERMS, "study", 4, random.Random(1))
    loss = TRIE.dp_event(plan, 4)
    assert isinstance(loss, SampleThresholdEvent)
    assert (loss.releases, loss.items) == (4, 2)
    once = first(every_round=False)
    assert TRIE.dp_event(once, 4) == TRIE.dp_event(once, 1)
    noisy = first(Release(probability=0.25, threshold=9, variance=5.0), mode="both")
    assert TRIE.dp_event(noisy, 3) == SkellamNoiseEvent(
        variance=5.0, probability=0.25, join_probability=1.0, releases=3
    )


def test_colluders_are_added_to_theta() -> None:
    alone, among = (
        TRIE.first_plan(asked(colluders=c), TERMS, "study", 4, random.Random(1)).release
        for c in (0, 7)
    )
    assert among.threshold == alone.threshold + 7
    assert among.probability == alone.probability


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"epsilon": float("nan")}, "epsilon\n.* finite"),
        ({"delta": float("nan")}, "delta\n.* finite"),
        ({"theta": 9}, "give both theta and probability, or neither"),
        ({"probability": 0.1}, "give both theta and probability, or neither"),
        ({"theta": 9, "probability": float("nan")}, "probability"),
        ({"mode": "noise", "theta": 9}, "theta needs mode sample-threshold"),
        ({"mode": "both", "theta": 9, "probability": 0.1}, "theta needs mode sample-threshold"),
        ({"mode": "noise", "probability": 0.1}, "probability cannot be given"),
        ({"domain": Alphabet(characters="".join(map(chr, range(65, 322))), length=2)}, "up to 256"),
        ({"domain": {"kind": "listed", "items": ("a", "b")}}, "a domain of strings"),
        (
            {"domain": {"kind": "hashed", "max_bytes": 9}},
            "a domain of listed items, of an alphabet",
        ),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(own: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        asked(**own)


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"theta": 2, "probability": 0.5}, r"theta 2 .* costs .* theta \d+ with coins of 0\.\d+ "),
        ({"theta": 5, "probability": 0.1, "colluders": 5}, "costs epsilon inf"),
        (
            {"message_bytes": 1},
            "message_bytes 1 are too few: .* 4 cells, or .* bytes; a smaller stride",
        ),
        ({"stride": 2, "message_bytes": 9}, "16 cells, or .* bytes"),
        (
            {"domain": Utf8(max_bytes=9), "stride": 4, "message_bytes": 134_217_728},
            "4,294,967,296 cells",
        ),
        ({"epsilon": 1e-4, "delta": 1e-11, "mode": "noise"}, r"variance\s+above 2\^24"),
    ],
)
def test_a_question_without_an_answer_has_a_remedy(own: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TRIE.first_plan(asked(**own), TERMS, "study", 4, random.Random(1))


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"level": 5, "frontier": ("00000000",)}, "there are 4 levels, not 5"),
        ({"level": 2, "frontier": ("",)}, "level 2 has prefixes of 1 digits"),
        ({"level": 1, "frontier": ("00",)}, "level 1 has prefixes of 0 digits"),
        ({"level": 2, "frontier": ("00", "0001")}, "level 2 has prefixes of 1 digits"),
        ({"level": 2, "frontier": ("00", "00")}, "in the frontier twice"),
        ({"level": 1, "frontier": ("", "")}, "in the frontier twice"),
        ({"level": 2, "frontier": ("04",)}, "a digit of a prefix is not below 4"),
        ({"level": 2, "frontier": ("0g",)}, "frontier"),
        ({"level": 2, "frontier": ("AB",)}, "frontier"),
        ({"release": {"probability": 1, "threshold": 3, "variance": 0}}, "needs noise"),
        ({"release": {"probability": float("nan"), "threshold": 3, "variance": 0}}, "probability"),
        ({"release": {"probability": 0.5, "threshold": 3, "variance": float("nan")}}, "variance"),
        ({"release": {"probability": 0.5, "threshold": 0, "variance": 0}}, "threshold"),
        ({"release": {"probability": 1, "threshold": 3, "variance": 2.0}}, "mode noise"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(own: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TrieHhPlan.model_validate(first().model_dump() | own)


@pytest.mark.parametrize("mode", ["noise", "both", "sample-threshold"])
@pytest.mark.parametrize(("rounds", "items"), [(10_000, 1), (1, 10_000), (4_000, 4_000)])
def test_more_releases_than_can_be_accounted_for_are_refused_at_once(
    mode: str, rounds: int, items: int
) -> None:
    question = asked(mode=mode, contribution=items, epsilon=40, delta=1e-6)
    with pytest.raises(ValueError, match="too many for the ledger"):
        TRIE.first_plan(question, TERMS, "study", rounds, random.Random(1))


def test_noise_that_a_device_cannot_draw_is_refused_in_the_plan() -> None:
    much = Release(probability=1.0, threshold=1, variance=2.0**24)
    first(much, message_bytes=21_784, mode="noise")
    with pytest.raises(ValueError, match="too much for cohorts of 40 devices"):
        first(much, message_bytes=21_784, mode="noise", domain=TEXT)
