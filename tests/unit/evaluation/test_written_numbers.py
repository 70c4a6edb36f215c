from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limbeck.evaluation.grading.written_numbers import unit_fits, unit_of, written_numbers

# How each language groups thousands and marks decimals.
MARKS = {"en": [(",", ".")], "pt": [(".", ",")], "it": [(".", ",")], "es": [(".", ","), (" ", ",")]}
MARKS["fr"] = [(" ", ","), ("\u202f", ","), ("\u00a0", ",")]


def readings(text, language=None):
    return [[str(reading) for reading in number.readings] for number in written_numbers(text, language)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("74.4", "74.4"), ("74,4", "74.4"), ("17 920", "17920"), ("1,234.5", "1234.5"), ("1.234,5", "1234.5")),
        *(("1.234.567", "1234567"), ("12'345.67", "12345.67"), ("1 000 000", "1000000"), ("12 345,678", "12345.678")),
        *(("0.125", "0.125"), ("0,125", "0.125"), (".5", "0.5"), ("3.14159", "3.14159"), ("1.5e-3", "0.0015")),
        *(("-3", "-3"), ("−3,5", "-3.5"), ("-€12", "-12"), ("R$ 1.234,56", "1234.56"), ("is 74.4.", "74.4")),
    ],
)
def test_the_form_tells_in_any_language(text, value):
    assert readings(text) == [[value]]
    assert all(readings(text, language) == [[value]] for language in ("en", "pt", "it", "es", "fr"))


def test_a_mark_before_three_digits_has_two_readings_unless_the_language_is_given():
    assert readings("1.800") == [["1800", "1.800"]]
    assert readings("1,234") == [["1234", "1.234"]]
    assert readings("1.800", "en") == [["1.800"]]
    assert readings("1,234", "en") == [["1234"]]
    assert all(readings("1.800", language) == [["1800"]] for language in ("pt", "it", "es", "fr"))
    assert all(readings("1,234", language) == [["1.234"]] for language in ("pt", "it", "es", "fr"))


def test_what_is_no_number_and_what_is_several():
    assert readings("version 1.2.3 of x2 and 1,2,3 or 1,234,56") == []
    assert readings("2024 100 and 10-5") == [["2024"], ["100"], ["10"], ["5"]]
    assert readings("2024-01-15") == [["2024"], ["1"], ["15"]]


@given(st.sampled_from(sorted(MARKS)), st.decimals(-(10**12), 10**12, places=2), st.booleans(), st.data())
@example("en", Decimal("-1234567.89"), True, None)
def test_numbers_of_five_languages_round_trip(language, value, grouped, data):
    group, decimal = MARKS[language][0] if data is None else data.draw(st.sampled_from(MARKS[language]))
    whole, _, fraction = f"{abs(value):,.2f}".partition(".")
    text = ("-" if value < 0 else "") + whole.replace(",", group if grouped else "") + decimal + fraction
    assert [number.readings for number in written_numbers(f"Total: {text}.", language)] == [(value,)]
    assert [number.readings for number in written_numbers(f"Total: {text}.")] == [(value,)]


@given(st.sampled_from(sorted(MARKS)), st.integers(0, 10**15))
def test_whole_numbers_of_five_languages_round_trip(language, value):
    for group, _ in MARKS[language]:
        text = f"{value:,}".replace(",", group)
        assert [number.readings for number in written_numbers(text, language)] == [(value,)]
        assert value in written_numbers(text)[0].readings


@given(st.text(alphabet="0123456789.,' −-+eE€x\u202f\u0663²", max_size=30))
def test_no_text_breaks_the_reader(text):
    for number in written_numbers(text):
        assert number.readings
        assert all(reading.is_finite() for reading in number.readings)
        assert 0 <= number.start < number.end <= len(text)


def test_units_beside_a_number():
    def fits(text, *units):
        return [unit_fits(text, number, units) for number in written_numbers(text)]

    assert unit_of("12.5 km", written_numbers("12.5 km")[0]) == "km"
    assert unit_of("€ 12", written_numbers("€ 12")[0]) == "€"
    assert unit_of("12", written_numbers("12")[0]) == ""
    assert unit_of("about 12 km", written_numbers("about 12 km")[0]) is None
    assert fits("12km, 12 KM or 12 kmh", "km") == [True, True, False]
    assert fits("€12, 12 €, $12, -€12", "€") == [True, True, False, True]
    assert fits("It is 12.", "km") == [True]
    assert fits("12 miles", "km") == [False]
