"""What a wrong name is answered with."""

import pytest

from rl_twoclocks.nearest import did_you_mean, nearest, there_are

KNOWN = ["halfcheetah", "hopper", "Adam", "AdamW"]


@pytest.mark.parametrize(
    ("word", "right"),
    [("halfcheeta", "halfcheetah"), ("HOPPER", "hopper"), ("adam", "Adam"), ("AdmaW", "AdamW")],
)
def test_the_nearest_name_whatever_its_case(word, right):
    assert nearest(word, KNOWN) == [right]
    assert did_you_mean(word, KNOWN) == f"did you mean {right}?"


def test_a_word_like_none_is_not_guessed_at():
    assert nearest("zzzz", KNOWN) == []
    assert did_you_mean("zzzz", KNOWN) == ""
    assert there_are("zzzz", KNOWN) == "there are halfcheetah, hopper, Adam, AdamW"
    assert there_are("zzzz", []) == "there are none"


def test_several():
    assert did_you_mean("adam", KNOWN, most=2) == "did you mean Adam or AdamW?"
    assert there_are("hoper", KNOWN).startswith("did you mean hopper? there are halfcheetah")
