"""Printed percentages as counts: a number rounded from a count is always found again."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earlib import paper
from earlib.experiments.settings import ANY_TYPE, HELD_OUT
from earlib.paper import granularity


@given(st.decimals("0", "100", places=2), st.integers(1, 300), st.sampled_from([1, 3]))
def test_it_is_what_trying_every_count_gives(value, n, runs):
    fits = [k for k in range(n * runs + 1) if abs(Fraction(100 * k, n * runs) - Fraction(value)) <= Fraction(1, 200)]
    found = granularity.matching_count(f"{value:.2f}", n, runs)
    assert found in fits if fits else found is None


@pytest.mark.parametrize(
    ("printed", "n", "runs", "count"),
    [
        ("42.60", 1540, 1, 656), ("42.60", 308, 1, None), ("42.60", 308, 3, None), ("0.5", 200, 1, 1),
        ("0.50", 200, 1, 1), ("0.00", 7, 1, 0), ("100.00", 7, 1, 7), ("0.1", 100, 1, None), ("12.5", 1000, 1, 125),
        ("12.3", 400, 1, 49),  # 12.25 is rounded up too
        ("50.00", 0, 1, None), ("0.00", 0, 3, None),
    ],
)  # fmt: skip
def test_examples(printed, n, runs, count):
    assert granularity.matching_count(printed, n, runs) == count


def test_totals_that_several_numbers_have_in_common():
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


# -- the arithmetic of the readings


def fitting(n, runs=1, **where):
    """Printed percentages that are k/(n runs), and all of them."""
    printed = [row["printed"] for row in paper.reported(**where)]
    return [one for one in printed if granularity.matching_count(one, n, runs) is not None], printed


def said(name):
    return " ".join(paper.open_choices()[name]["reading"].split())


def test_one_held_out_set_by_the_printed_numbers_of_longmemeval():
    n, reading = HELD_OUT["longmemeval"][ANY_TYPE], said("one_held_out_set")
    assert n == 93 and 3 * n == 279 and sum(HELD_OUT["longmemeval"].values()) == 100
    for metric in ("hitrate@5", "j"):
        for more, count in (({"runs": 3}, 9), ({"variant": "retriever"}, 3)):
            fits, every = fitting(n, id="tab02", dataset="longmemeval", metric=metric, **more)
            assert fits == every and len(every) == count
    for words in ("all 18 Hitrates and J of Table 2 are k/279", "the six of the retriever k/93", "of which 7 would"):
        assert words in reading


def test_one_held_out_set_by_the_printed_numbers_of_locomo():
    kept, reading = HELD_OUT["locomo"], said("one_held_out_set")
    by_type = {kind: fitting(n, id="tab05", category=kind) for kind, n in kept.items()}
    assert {one for fits, every in by_type.values() for one in every if one not in fits} == {"54.33", "16.67"}
    assert sum(len(fits) for fits, _ in by_type.values()) == 22 and sum(kept.values()) == 308
    assert "22 of the 24 numbers of Table 5" in reading and f"{100 * 94 / 173:.2f}" == "54.34"
    assert all(f"k/{n} ({paper.label(kind)})" in reading for kind, n in kept.items())
    assert [len(part) for part in fitting(308, id="tab04", metric="j")] == [6] * 2
    found = [fitting(924, id="tab02", dataset="locomo", metric=metric) for metric in granularity.COUNTED]
    others = {one for fits, every in found for one in every if one not in fits}
    assert (sum(len(every) for _, every in found), len(others)) == (27, 14) and "14 of the 27" in reading
    whole = {one: k for one in others if (k := granularity.matching_count(one, 1540)) is not None}
    assert whole == {"42.60": 656, "52.01": 801, "55.06": 848, "79.61": 1226}
    assert "42.60 and 52.01 are 656/1,540 and 801/1,540" in reading and "so are 55.06 and 79.61 of EAR" in reading
    rows = [row for row in paper.reported("tab02", dataset="locomo") if row["printed"] in whole]
    variants = {"42.60": "retriever", "52.01": "retriever", "55.06": "ear", "79.61": "ear"}
    assert {row["printed"]: row["variant"] for row in rows} == variants


@pytest.mark.parametrize(("n", "runs", "share"), [(93, 3, "2.8 %"), (308, 3, "9.2 %"), (1540, 1, "15.4 %")])
def test_how_many_percentages_fit_by_chance(n, runs, share):
    fits = [granularity.matching_count(f"{number / 100:.2f}", n, runs) is not None for number in range(10_001)]
    assert f"{100 * sum(fits) / len(fits):.1f} %" == share and share in said("one_held_out_set")


def test_recall_by_the_printed_numbers():
    recalls = {n: fitting(n, id="tab05", category=kind, metric="recall@5") for kind, n in HELD_OUT["locomo"].items()}
    assert [sum(map(len, part)) for part in zip(*recalls.values(), strict=True)] == [14, 16]
    assert "1.89" in recalls[53][0] and granularity.matching_count("1.89", 53) == 1
    fits, every = fitting(93, 3, id="tab02", dataset="longmemeval", metric="recall@5")
    assert fits == ["62.37", "66.67"] and len(every) == 9
    for words in ("1.89 of Multi Hop is 1/53", "14 of the 16 Recalls", "2 of the 9 Recalls", "62.37 and 66.67"):
        assert words in said("recall_at_5")
