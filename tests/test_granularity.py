"""Printed percentages as counts: a number rounded from a count is always found again."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earlib import paper
from earlib.paper import granularity

fractions = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
digits = st.sampled_from([1, 2])


@given(fractions, digits)
def test_a_rounded_count_is_found(fraction, digits):
    k, n = fraction
    printed = f"{100 * k / n:.{digits}f}"
    found = granularity.matching_count(printed, n)
    assert found is not None and f"{100 * found / n:.{digits}f}" in (printed, _other_half(found, n, digits))


def _other_half(k, n, digits):
    """The other neighbour of a number exactly in the middle between two printed ones."""
    exact = Fraction(100 * k, n) * 10**digits
    return f"{float((exact - Fraction(1, 2)) / 10**digits):.{digits}f}" if (exact * 2) % 2 == 1 else None


@given(st.integers(1, 600), st.data(), digits)
def test_the_mean_of_three_counts_is_found(n, data, digits):
    counts = [data.draw(st.integers(0, n)) for _ in range(3)]
    printed = f"{sum(100 * k / n for k in counts) / 3:.{digits}f}"
    assert granularity.matching_count(printed, n, runs=3) is not None


@given(st.decimals("0", "100", places=2), st.integers(1, 300), st.sampled_from([1, 3]))
def test_it_is_what_trying_every_count_gives(value, n, runs):
    fits = [k for k in range(n * runs + 1) if abs(Fraction(100 * k, n * runs) - Fraction(value)) <= Fraction(1, 200)]
    found = granularity.matching_count(f"{value:.2f}", n, runs)
    assert found in fits if fits else found is None


def test_examples():
    assert granularity.matching_count("42.60", 1540) == 656
    assert granularity.matching_count("42.60", 308) is None and granularity.matching_count("42.60", 308, runs=3) is None
    assert granularity.matching_count("0.5", 200) == granularity.matching_count("0.50", 200) == 1
    assert granularity.matching_count("0.00", 7) == 0 and granularity.matching_count("100.00", 7) == 7
    assert granularity.matching_count("0.1", 100) is None
    assert (
        granularity.matching_count("12.5", 1000) == 125 and granularity.matching_count("12.3", 400) == 49
    )  # 12.25 is rounded up too
    assert granularity.matching_count("50.00", 0) is None and granularity.matching_count("0.00", 0, runs=3) is None
    assert granularity.common_totals(["33.33", "66.67"], 10) == [3, 6, 9]


@pytest.mark.parametrize("dataset", paper.DATASETS)
def test_candidates_are_the_benchmark_and_its_fifth(dataset):
    found = granularity.possible_totals(dataset)
    total = paper.value("datasets", dataset=dataset, metric="queries")
    learned = paper.value("datasets", dataset=dataset, metric="training_queries")
    assert total in found and total - learned in found
    assert all(found.values()) and max(found) == total


def test_every_counted_percentage_of_the_tables_is_tried():
    counted = [row for row in paper.reported() if row["metric"] in granularity.COUNTED and row["id"].startswith("tab")]
    found = granularity.fitting_counts()
    assert len(found) == sum("category" not in row for row in counted)
    assert sorted(found["printed"]) == sorted(row["printed"] for row in counted if "category" not in row)
    types = granularity.fitting_totals()
    shown = [number for line in types["printed"] for number in line.split(", ")]
    assert sorted(shown) == sorted(row["printed"] for row in counted if "category" in row)


def test_what_is_shown_fits_the_number_beside_it():
    found = granularity.fitting_counts()
    assert found["one run"].eq("none").any() and not found["one run"].eq("none").all()
    for _, line in found.iterrows():
        for column in found.columns[-2:]:
            for text in line[column].partition(" and ")[0].split(", "):
                if text != "none":
                    k, n = map(int, text.split("/"))
                    half = Fraction(1, 2 * 10 ** len(line["printed"].partition(".")[2]))
                    assert abs(Fraction(100 * k, n) - Fraction(line["printed"])) <= half
