"""What fields expect and what values look like, in words."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from eulerstack.language.block import Name, NonNegativeInt, PositiveInt, Probability
from eulerstack.language.sentences import expectation, nearest, show, spelling
from eulerstack.language.template import Norm


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (PositiveInt, "an integer above 0"),
        (NonNegativeInt, "an integer of at least 0"),
        (Probability, "a number of at least 0 and below 1"),
        (PositiveInt | None, "an integer above 0 or null"),
        (Annotated[int, Field(ge=1, le=1)], "1"),
        (Annotated[int, Field(gt=0, multiple_of=2)], "an integer above 0 and a multiple of 2"),
        (float, "a number"),
        (bool, "true or false"),
        (str, "text"),
        (Name, "text that is not empty"),
        (Literal["a"], "'a'"),
        (Literal["a", "b"] | None, "one of 'a', 'b' or null"),
        (Norm, "a mapping"),
        (dict[str, Norm], "a mapping"),
        (tuple[float, float], "a list of 2 numbers"),
        (Annotated[tuple[str, ...], Field(min_length=2)], "a list of at least 2"),
    ],
)
def test_expectation(kind, words):
    assert expectation(kind) == words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (8, "8"),
        (8.0, "8.0"),
        (1e300, "1e+300"),
        (float("nan"), "nan"),
        ("x", "'x'"),
        ("a\nb", r"'a\nb'"),
        ([], "an empty list"),
        ([1, 2], "a list of 2"),
        ({"a": 1}, "a mapping of 1"),
        ("x" * 99, "'" + "x" * 55 + "...'"),
    ],
)
def test_show(value, text):
    assert show(value) == text


@pytest.mark.parametrize(
    ("value", "wanted", "advice"),
    [
        ("8", "an integer above 0", "write 8 without quotes"),
        ("3e-4", "a number above 0", "write 0.0003 as a number"),
        (256.0, "an integer", "write 256;"),
        (True, "text that is not empty", "YAML reads yes, no, on, off"),
        ("None", "an integer above 0 or null", "write null"),
        ("$let.heads", "an integer above 0", "an expression stands in braces: ${let.heads}"),
        ("let.heads // 2", "an integer", "an expression stands in braces: ${let.heads // 2}"),
        ("8/3", "a number above 0", "an expression stands in braces: ${8/3}"),
        ("None", "text", ""),
        ("10%", "a number", ""),
        ("1.2.3", "a number", ""),
        ("x", "an integer", ""),
        (True, "an integer", ""),
        ("8", "text", ""),
        ("inf", "a number", ""),
    ],
)
def test_spelling(value, wanted, advice):
    assert spelling(value, wanted).startswith(advice)
    assert bool(spelling(value, wanted)) == bool(advice)


def test_nearest():
    assert nearest("windw", ["window", "scale"]) == "did you mean 'window'? "
    assert nearest("zzz", ["window", "scale"]) == nearest(5, ["a"]) == ""
