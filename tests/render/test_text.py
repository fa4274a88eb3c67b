from __future__ import annotations

import pytest

from kvbench.render.text import count, milliseconds, percent, rate, safe, seconds, span, token_time


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, äöü 漢字 😀", "plain, äöü 漢字 😀"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\r\nb\tc\0", "a\\r\\nb\\tc\\x00"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("abc\u202edef\u2028", "abc\\u202edef\\u2028"),
        ("\ud83d", "\\ud83d"),
    ],
)
def test_nothing_that_drives_a_terminal_gets_through(text: str, shown: str) -> None:
    assert safe(text) == shown


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (seconds(0.0812), "0.081 s"),
        (seconds(12.345), "12.3 s"),
        (seconds(0.0000123), "0.000012 s"),
        (seconds(0.0), "0.000 s"),
        (seconds(None), "not reported"),
        (milliseconds(0.0121), "12.1 ms"),
        (milliseconds(0.000004), "4.0 us"),
        (milliseconds(0.0), "0.0 ms"),
        (milliseconds(None), "not reported"),
        (token_time(0.0121), "12.1 ms"),
        (token_time(0.000104), "0.104 ms"),
        (token_time(0.0000995), "0.0995 ms"),
        (token_time(0.0), "0.0 ms"),
        (token_time(None), "not reported"),
        (span(31.24), "31.2 s"),
        (span(760), "12 min 40 s"),
        (span(119.6), "2 min 00 s"),
        (span(11_100), "3 h 05 min"),
        (span(None), "not reported"),
        (count(1_204_992), "1,204,992"),
        (count(0), "0"),
        (count(None), "not reported"),
        (percent(0.8664), "86.6%"),
        (percent(0.0), "0.0%"),
        (percent(None), "not reported"),
        (rate(44_600), "44.6k/s"),
        (rate(612.4), "612/s"),
        (rate(4.59), "4.6/s"),
        (rate(2_500_000), "2.5M/s"),
        (rate(None), "not reported"),
    ],
)
def test_units_stand_beside_numbers(shown: str, expected: str) -> None:
    assert shown == expected
