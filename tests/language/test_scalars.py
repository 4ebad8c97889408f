"""Plain scalars: the same value as PyYAML gives, except where that is a trap."""

import pytest
import yaml

from eulerstack.language.scalars import read_scalar, unusable

SAME = ["", "~", "null", "true", "False", "yes", "off", "0", "-7", "+8", "1_000", "0x1F", "0b101", "1.5", ".5"]
SAME += ["1.", "1e", "6.0e+3", "-1.5e-3", "1_000.5", ".", "+", "..", "1.2.3", "word", "let.x", "2024-1-1", "0o17"]


@pytest.mark.parametrize("text", SAME)
def test_as_pyyaml_reads_it(text):
    value, trouble = read_scalar(text)
    assert (value, trouble) == (yaml.safe_load(text), None)
    assert type(value) is type(yaml.safe_load(text))


@pytest.mark.parametrize(("text", "value"), [("3e-4", 3e-4), ("1E6", 1e6), ("-2e+3", -2000.0), ("-.5", -0.5)])
def test_a_number_is_a_number(text, value):
    assert isinstance(yaml.safe_load(text), str)
    assert read_scalar(text) == (value, None)


@pytest.mark.parametrize(("text", "reading"), [("017", "octal"), ("00", "octal"), ("089", "octal"), ("-012", "octal")])
def test_octal_is_refused(text, reading):
    assert reading in read_scalar(text)[1][0]


@pytest.mark.parametrize("text", ["1:30", "12:30:45", "190:20:30.15"])
def test_base_sixty_is_refused(text):
    assert "base sixty" in read_scalar(text)[1][0]


@pytest.mark.parametrize("text", ["2024-01-31", "2024-1-1 00:00:00", "2001-12-14t21:59:43.10-05:00"])
def test_a_date_is_refused(text):
    assert not isinstance(yaml.safe_load(text), str)
    assert "a date" in read_scalar(text)[1][0]


@pytest.mark.parametrize("text", [".inf", "-.INF", "+.Inf"])
def test_infinity(text):
    assert read_scalar(text) == (yaml.safe_load(text), None)


def test_not_a_number():
    value, trouble = read_scalar(".nan")
    assert value != value
    assert trouble is None


@pytest.mark.parametrize("value", [2**63, -(2**63), 10**300, "\ud800"])
def test_unusable(value):
    assert unusable(value)


@pytest.mark.parametrize("value", [2**63 - 1, True, None, "text", 1e300])
def test_usable(value):
    assert unusable(value) is None


def test_a_very_long_number_stays_text():
    # int() of thousands of digits is refused by Python itself.
    assert read_scalar("9" * 5000)[0] == "9" * 5000
