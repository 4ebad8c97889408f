import pytest

from eulerstack.cli.options import count, size


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1536, "1,536"),
        (9999, "9,999"),
        (10_000, "10 K"),
        (79_589_936, "79.59 M"),
        (1_187_600_000, "1.188 B"),
        (2.5e12, "2.5 T"),
    ],
)
def test_count(n, text):
    assert count(n) == text


@pytest.mark.parametrize(("n", "text"), [(999, "999"), (1536, "1.536 K"), (79_000_000, "79.00 M")])
def test_a_column_keeps_its_digits(n, text):
    assert count(n, aligned=True) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (12 << 20, "12 MiB"), (3 << 30, "3 GiB"), (5 << 40, "5 TiB")],
)
def test_size(n, text):
    assert size(n) == text
