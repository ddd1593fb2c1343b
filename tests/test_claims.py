"""The claims: their words against the paper's LaTeX, the rule, and what becomes of them when records lack or change."""

import copy
import inspect
import json
import math
import random
import shutil
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_paper import at_place

from earlib import claims, paper, paths, records
from earlib.claims import evidence, on_paper, on_records, rule, tables
from earlib.claims.evidence import Runs
from earlib.claims.rule import OPEN, REFUTED, SUPPORTED, Part, inside
from earlib.core.config import Config
from earlib.experiments.comparisons import READINGS
from earlib.experiments.settings import Setting
from earlib.harness import figures

CLAIMS = claims.claim_texts()
LAPTOP, SMOKE = ("laptop", "locomo", "minilm"), ("smoke", "toy", "minilm")
each = pytest.mark.parametrize("id", CLAIMS)
number = st.floats(-50, 50)

# No interval over conversations: the wider of the two would decide.
QUESTIONS_ONLY = {"difference_scope_low": None, "difference_scope_high": None}


@cache
def made_of(profile="laptop"):
    """Fingerprints of the data and the encoder that the committed records of a profile name."""
    source = records.load("tab02_main_results", profile, paths.reference())["provenance"]
    return {what: source[what] for what in ("dataset", "encoder")}


@cache
def committed(setting=LAPTOP):
    return claims.read_runs(*setting, made_of(setting[0]), paths.reference())


def changed(runs, id, where, **changes):
    """The runs, with other values in those rows of a record that `where` picks."""
    record = runs.records[id]
    picked = [all(row.get(key) == value for key, value in where.items()) for row in record["rows"]]
    rows = [row | changes if one else row for row, one in zip(record["rows"], picked, strict=True)]
    return runs._replace(records=runs.records | {id: record | {"rows": rows}})


def here(id, runs):
    return claims.decide(id, runs)[1]


@each
def test_the_words_of_a_claim_stand_at_their_place(latex, id):
    for place, quote in CLAIMS[id]["said"]:
        assert quote in at_place(latex, place), f"{place}: {quote}"


@each
def test_a_claim_says_what_is_measured_and_where_it_must_lie(id):
    text = CLAIMS[id]
    assert text["what"] and text["region"]
    assert set(text) == {"section", "said", "what", "region", "metric", "number", "printed", "measured"}
    if text["number"]:
        assert paper.value(**text["number"]) is not None
    for _, quote in text["said"]:
        assert not set("\\{}$") & set(tables.plain(quote))


@pytest.mark.parametrize("rules, side", [(on_paper, "printed"), (on_records, "measured")])
def test_every_claim_names_a_rule_and_every_rule_decides_a_claim(rules, side):
    own = {name for name, one in vars(rules).items() if inspect.isfunction(one) and one.__module__ == rules.__name__}
    asked = [one for text in CLAIMS.values() for one in ([text[side]] if isinstance(text[side], dict) else text[side])]
    asked = {one["rule"] for one in asked if isinstance(one, dict)}
    assert asked == {name for name in own if not name.startswith("_")} and len(CLAIMS) >= 25


def test_the_bounds_in_the_rules_are_the_papers():
    tables = [[row["value"] for row in paper.reported(id, metric="recall@5")] for id in ("tab06", "tab07")]
    effect = min(round(max(values) - value, 6) for values in tables for value in values if value < max(values))
    texts = CLAIMS
    assert {texts["simulated_like_real"][side]["below"] for side in ("printed", "measured")} == {effect}
    critic = "/".join(f"{paper.value('noise', metric=metric):g}" for metric in ("precision", "recall"))
    assert texts["works_with_noise"]["measured"]["critics"] == [critic]
    (asked,) = texts["averaging_helps"]["measured"]["of"]
    (reading,) = (one for one in READINGS if one.changes == {"errors": "persistent"})
    assert (asked["option"], asked["choice"]) == (reading.option, reading.choice)
    for id, key in (("rounds_tradeoff", "rounds"), ("replay_size_tradeoff", "replay_size")):
        assert {one[key] for one in texts[id]["measured"]["of"]} == {2, 8} == {
            row[key] for row in paper.reported("tab06") if row[key] != getattr(Config(), key)
        }  # fmt: skip


# -- the rule


@st.composite
def intervals(draw):
    low, value, high = sorted(draw(st.tuples(number, number, number)))
    return Part("x", value, low, high)


@given(intervals(), st.floats(0, 30), number, st.floats(0.1, 40))
def test_a_wider_interval_decides_less(part, more, above, width):
    narrow = inside([part], above, above + width).verdict
    wide = inside([part._replace(low=part.low - more, high=part.high + more)], above, above + width).verdict
    assert wide in (narrow, OPEN)
    mirrored = Part("x", -part.value, -part.high, -part.low)
    assert inside([mirrored], -above - width, -above).verdict == narrow


@given(st.lists(intervals(), min_size=1, max_size=5))
def test_a_claim_of_parts_needs_all_and_one_refutes_it(parts):
    alone = {inside([part], above=0).verdict for part in parts}
    found = inside(parts, above=0)
    assert found.verdict == (REFUTED if REFUTED in alone else OPEN if OPEN in alone else SUPPORTED)
    assert inside([found.part], above=0).verdict == found.verdict
    assert rule.both(*(inside([part], above=0) for part in parts)).verdict == found.verdict


def test_the_rule_by_example():
    assert inside([Part("x", 3, 1, 5)], above=0).verdict == SUPPORTED
    assert inside([Part("x", 3, 0, 5)], above=0).verdict == OPEN  # the edge does not belong to the region
    assert inside([Part("x", -3, -5, 0)], above=0).verdict == OPEN
    assert inside([Part("x", -3, -5, -1)], above=0).verdict == REFUTED
    assert inside([Part("x", 600, 40, math.inf)], below=81).verdict == OPEN
    assert inside([Part("x", math.inf, 120, math.inf)], below=81).verdict == REFUTED
    with pytest.raises(rule.Undecidable):
        inside([])


def test_the_passage_of_a_curve_has_an_interval():
    def point(value, half):
        return Part("x", value, value - half, value + half)

    curve = [(40, point(-3, 1)), (80, point(1, 2)), (120, point(-0.5, 1)), (160, point(2, 3)), (200, point(4, 1))]
    assert evidence.passage(curve, "x")[1:4] == (160, 80, 200)
    assert evidence.passage(curve[:3], "x")[1:4] == (math.inf, 80, math.inf)
    assert evidence.passage(curve[:1], "x")[1:4] == (math.inf,) * 3
    assert evidence.at_budget(curve, 90).value == 1


def test_what_was_not_paired_decides_only_if_the_intervals_lie_apart():
    one, other = Part("a", 40, 36, 44), Part("b", 33, 30, 35)
    assert rule.less(one, other, "x")[1:4] == (7, 1, 14)
    assert rule.less(one, other._replace(high=37), "x").low < 0


# -- on the paper's own numbers


@pytest.mark.parametrize("id, verdict, words", [
    ("up_to_over_retriever", SUPPORTED, "80.28 - 62.37 = 17.91, stated 17.9"),
    ("gains_on_both", SUPPORTED, "12.46, stated 12.5"),
    ("fewer_steps", SUPPORTED, "77.14, stated 77"),
    ("consistently_outperforms", REFUTED, "LongMemEval, GTE, Recall@5: 62.90 - 68.89: -5.99"),
    ("rl_below_retriever", REFUTED, "LoCoMo, Stella, Hitrate@5: 66.53 - 63.31: 3.22"),
    ("rl_below_retriever", REFUTED, "with Contriever, of which the sentence before it speaks, supported"),
    ("mixing_gain", REFUTED, "= 11.36, stated 13.6; over EAR on dialogues alone 4.87; over Retriever"),
    ("over_rl", SUPPORTED, "Table 3 has another baseline: LongMemEval, Contriever, Recall@5: 80.28 - 54.12: 26.16"),
    ("observation_recall_kept", REFUTED, "Temporal, Recall@5: 53.13 - 60.94: -7.81"),
    ("dialogue_recall_rises", SUPPORTED, "7.55 - 1.89: 5.66 (the least of 4)"),
    ("high_at_once", REFUTED, "41.20 - 42.60"),
    ("larger_gain_less", SUPPORTED, "the least of 4"),
    ("simulated_like_real", REFUTED, "Tables 6 and 7 read 1.5 points as an effect"),
    ("queries_move", SUPPORTED, "query 7: 0.021 (the least of 10)"),
    ("explorer_at_test_time", SUPPORTED, "7.48, stated 7.48"),
    ("rounds_tradeoff", SUPPORTED, "72.8 less 69.5 with 8: 3.30"),
    ("drop_limited", OPEN, "Figure 3"),
])  # fmt: skip
def test_verdicts_on_the_papers_numbers(id, verdict, words):
    found = claims.decide(id, Runs(*LAPTOP, {}, dict.fromkeys(evidence.RECORDS, "")))[0]
    assert found.verdict == verdict and words in found.reason


# -- on records


@pytest.fixture
def folder(tmp_path):
    """A copy of the committed records of the profile laptop, to be changed."""
    (tmp_path / "laptop").mkdir()
    for file in (paths.reference() / "laptop").glob("*.json"):
        if file.stem in evidence.RECORDS.values():
            shutil.copy(file, tmp_path / "laptop")
    return tmp_path


def change(folder, id, **changes):
    """Change a record's file."""
    path = folder / "laptop" / f"{id}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def verdict(folder, id):
    return here(id, claims.read_runs(*LAPTOP, made_of(), folder))


@each
def test_without_any_record_a_claim_is_open_and_says_how_to_make_it(tmp_path, id):
    found = verdict(tmp_path, id)
    assert found.verdict == OPEN and found.part is None
    commands = [f"python -m earlib.run {record} --profile laptop" for record in evidence.RECORDS.values()]
    needs = [command for command in commands if command in found.reason]
    fixed = ("best_balance", "observations_not_enough", "calls_cost_most", "gte_needs_queries", "gte_still_rising")
    assert bool(needs) == (id not in fixed) or id == "smaller_best_with_few"


def test_a_record_of_another_version_or_profile_is_not_used(folder):
    content = json.loads((folder / "laptop" / "tab02_main_results.json").read_text())
    older = content["provenance"] | {"packages": {"earlib": "0.0.1"}}
    change(folder, "tab02_main_results", provenance=older)
    change(folder, "tab03_ablation", profile="smoke")
    (folder / "laptop" / "tab06_hyperparameters.json").write_text("{")
    (folder / "laptop" / "tab07_replay_sampling.json").unlink()
    for id, words in (
        ("up_to_over_retriever", "of version 0.0.1"), ("complementary", "of profile smoke"),
        ("rounds_tradeoff", "cannot be read"), ("similar_best", "there is no record of tab07_replay_sampling"),
    ):  # fmt: skip
        found = verdict(folder, id)
        assert found.verdict == OPEN and words in found.reason and "make it with" in found.reason


@pytest.mark.parametrize("what", ["dataset", "encoder"])
@pytest.mark.parametrize("several", [False, True])
def test_a_record_of_other_data_or_another_encoder_is_not_used(folder, what, several):
    content = json.loads((folder / "laptop" / "tab02_main_results.json").read_text())
    name = dict(zip(("profile", "dataset", "encoder"), LAPTOP, strict=True))[what]
    other = {name: "0" * 64, "diagnostic": "1" * 64} if several else "0" * 64
    change(folder, "tab02_main_results", provenance=content["provenance"] | {what: other})
    found = verdict(folder, "up_to_over_retriever")
    assert found.verdict == OPEN and found.part is None
    assert f"is of another {what} {name} than the present one" in found.reason and "make it with" in found.reason
    same = {name: made_of()[what], "diagnostic": "1" * 64}
    change(folder, "tab02_main_results", provenance=content["provenance"] | {what: same})
    assert verdict(folder, "up_to_over_retriever").part is not None


def test_it_is_told_whether_the_records_have_one_source():
    def told(*commits):
        held = {str(n): {"provenance": {"commit": commit}} for n, commit in enumerate(commits)}
        return claims.same_source(Runs(*LAPTOP, held, {}))

    assert told("a", "a") == "They were made by one and the same source."
    assert told("a", "b", "a") == "They were made by 2 different sources: regenerate them together."
    assert "As far as commits tell: 1 of them" in told("a", "a and local changes") and "2 of them" in told(None, None)
    assert told() == "No source is to be compared."


def test_of_a_grid_s_combinations_the_one_of_the_setting_is_used(folder):
    content = json.loads((folder / "laptop" / "tab03_ablation.json").read_text())
    change(folder, "tab03_ablation", parameters=content["parameters"] | {"encoder": "gte"})
    assert "there is no record of tab03_ablation on LoCoMo with MiniLM" in verdict(folder, "complementary").reason
    name = "tab03_ablation--encoder-minilm"
    (folder / "laptop" / f"{name}.json").write_text(json.dumps(content | {"id": name, "rows": []}))
    assert claims.read_runs(*LAPTOP, made_of(), folder).records["tab03"]["id"] == name


settings = pytest.mark.parametrize("setting", [LAPTOP, SMOKE], ids=["laptop", "smoke"])


@settings
@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_record_lacks_no_claim_fails(setting, seed):
    draw, kept, whole = random.Random(seed), {}, committed(setting)
    for short, record in whole.records.items():
        rows = [copy.copy(row) for row in record["rows"] if draw.random() < (0.98, 0.8, 0.4)[seed % 3]]
        for row in rows:
            if draw.random() < 0.05:
                row |= {"measured": None, "reason": "lost", "difference": None}
        kept[short] = record | {"rows": rows}
    made = claims.claim_rows(whole._replace(records=kept))
    assert len(made) == len(records.record("claims", "t", setting[0], {}, {}, made)["rows"]) == len(CLAIMS)


@pytest.mark.parametrize("stage", ["before", "after"])
def test_a_query_without_its_other_stage_is_not_decided(stage):
    whole = committed(SMOKE)
    record = whole.records["tab11"]
    lost = {"metric": "delta", "stage": stage, "query": 3}
    rows = [row for row in record["rows"] if any(row.get(key) != value for key, value in lost.items())]
    assert len(rows) < len(record["rows"])
    runs = whole._replace(records=whole.records | {"tab11": record | {"rows": rows}})
    with pytest.raises(rule.Undecidable, match="lacks a query before or after"):
        on_records.queries_separated(runs)
    turned = whole._replace(records=whole.records | {"tab11": record | {"rows": record["rows"][::-1]}})
    first, second = (on_records.queries_separated(one) for one in (whole, turned))
    assert first.part.value == pytest.approx(second.part.value)  # paired by query, not by place


def test_a_width_that_the_record_lacks_is_not_decided():
    keys = {"dataset": "locomo", "metric": "recall@5", "variant": "ear", "measured": 50.0}
    rows = [{**keys, "encoder": name} for name in ("minilm", "stella")]
    rows.append({"dataset": "locomo", "metric": "dimension", "encoder": "minilm", "measured": 384})
    figure = {"parameters": {"encoders": ["minilm", "stella"]}, "rows": rows}
    found = here("larger_need_more", Runs(*LAPTOP, {"fig07": figure}, {}))
    assert found.verdict == OPEN and "lacks the width of Stella" in found.reason
    rows.append({**rows[-1], "encoder": "stella", "measured": 1024})
    rows[1] |= {"measured": 55.0, "difference": 2.0}
    rows[0] |= {"difference": 5.0}
    runs = Runs(*LAPTOP, {"fig07": figure}, {})
    assert here("larger_need_more", runs).reason == "Stella against MiniLM: 5"
    assert here("larger_gain_less", runs).reason == "gain with MiniLM less Stella: 3"


@settings
def test_whatever_sees_gold_has_its_control_beside_it(setting):
    whole = committed(setting)
    for id in CLAIMS:
        found = here(id, whole)
        if found.part is not None and found.part.sees_gold:
            ending = found.reason.partition("Beside it: ")[2]
            one_setting = found.part.place is not None  # encoders, compared with each other, have no control in common
            assert ("Equal-call control, 3 calls" if one_setting else "no equal-call control") in ending, id
    bare = {short: one | {"rows": [row for row in one["rows"] if "equal_calls" not in str(row)]}
            for short, one in whole.records.items()}  # fmt: skip
    found = here("high_at_once", whole._replace(records=bare))
    assert found.part.sees_gold and found.reason.endswith("Beside it: no equal-call control is recorded")


def test_one_word_is_judged_with_one_measure():
    whole = committed(SMOKE)
    places = [here(id, whole).part.place for id in ("both_stores_help", "mixes_stores")]
    assert {(one["metric"], one["store"]) for one in places} == {("covered@5", "both")}


def test_the_verdict_follows_the_record():
    where = {"variant": "ear", "metric": "recall@5", "split": "random", "compared_with": {"variant": "retriever"}}
    for low, high, expected in ((1.0, 9.0, SUPPORTED), (-1.0, 9.0, OPEN), (-9.0, -1.0, REFUTED)):
        ends = {"difference_low": low, "difference_high": high, "difference": (low + high) / 2, **QUESTIONS_ONLY}
        runs = changed(committed(), "tab02", where, **ends)
        found = here("up_to_over_retriever", runs)
        assert found.verdict == expected and (found.part.low, found.part.high) == (low, high)
    wider = {"difference_scope_low": -11.0, "difference_scope_high": 0.5}  # over conversations
    assert here("up_to_over_retriever", changed(runs, "tab02", where, **wider)).verdict == OPEN


def test_answers_of_another_language_model_decide_nothing():
    where = {"variant": "ear", "metric": "j", "split": "random", "dataset": "locomo", "encoder": "minilm"}
    ends = {"measured": 60.0, "reason": None, "difference": 9.0, "difference_low": 5.0, "difference_high": 13.0}
    ends |= {"compared_with": {"variant": "retriever"}, **QUESTIONS_ONLY}  # results made without a model have none
    runs = changed(committed(), "tab02", where | {"variant": "retriever"}, measured=51.0, reason=None)
    runs = changed(runs, "tab02", where, **ends, llm="qwen2.5-coder-0.5b")
    found = here("answers_over_retriever", runs)
    said = "answers by the language model Qwen2.5-Coder 0.5B say nothing of those by GPT 5 Mini"
    assert found.verdict == OPEN and found.reason == said
    runs = changed(runs, "tab02", where, llm=paper.LANGUAGE_MODEL)
    assert here("answers_over_retriever", runs).verdict == SUPPORTED


def test_how_large_a_gain_is_counts_in_the_papers_own_setting_alone():
    ends = {"difference": 4.0, "difference_low": 2.0, "difference_high": 6.0, **QUESTIONS_ONLY}
    runs = changed(committed(), "tab02", {"variant": "ear", "metric": "recall@5", "split": "random"}, **ends)
    assert here("gains_on_both", runs).verdict == SUPPORTED
    runs = changed(runs, "tab02", {"encoder": "minilm"}, encoder="contriever")._replace(encoder="contriever")
    found = here("gains_on_both", runs)
    assert found.verdict == REFUTED and "excludes the stated 12.5" in found.reason


def test_two_rows_that_fit_are_not_chosen_from():
    with pytest.raises(rule.Undecidable, match="rows of tab02_main_results fit"):
        evidence.level(committed(), "tab02", variant="ear")
    with pytest.raises(rule.Undecidable, match="has no row of locomo, minilm, .*nothing"):
        evidence.level(committed(), "tab02", variant="nothing")


def test_on_made_dialogues_nothing_is_decided_but_all_is_computed():
    runs = committed(SMOKE)
    assert {"tab02", "tab03", "fig03"} <= set(runs.records)
    found = {id: here(id, runs) for id in CLAIMS}
    assert {one.verdict for one in found.values()} == {OPEN}
    assert all(one.reason.startswith("made dialogues") for one in found.values())
    assert sum(one.part is not None for one in found.values()) > 15
    assert all("reported" not in row for row in claims.claim_rows(runs))


# -- the record and its tables


@pytest.fixture(scope="module")
def record():
    return records.record("claims", "t", "laptop", {}, {}, claims.claim_rows(committed()))


def test_the_record_holds_both_verdicts_and_the_papers_number(record):
    assert [row["claim"] for row in record["rows"]] == list(CLAIMS)
    rows = {row["claim"]: row for row in record["rows"]}
    assert all({row["verdict"], row["reported_verdict"]} <= set(rule.CLAIM_VERDICTS) for row in rows.values())
    row = rows["up_to_over_retriever"]
    assert (row["printed"], row["verdict"], row["sees_gold"]) == ("17.9", row["decided"], True)
    assert row["low"] <= row["measured"] <= row["high"] and not row.get("varies")
    assert rows["surpasses_soon"]["varies"] and rows["surpasses_soon"]["reported"] == 80
    table = json.loads((paths.reference() / "laptop" / "tab02_main_results.json").read_text())["rows"]
    answered = any(row["measured"] is not None for row in table if row["metric"] == "j")  # by another model, or by none
    row = rows["answers_over_rl"]
    assert row["measured"] is None and ("language model" if answered else "`make llm`") in row["reason"]


def test_tables_show_every_claim_twice_and_counts_add_up(record):
    shown = [tables.claims_table(record, one) for one in claims.sections(record)]
    assert sum(map(len, shown)) == 2 * len(CLAIMS)
    counts = claims.verdict_counts(record)
    assert counts.groupby("judged")["claims"].sum().tolist() == [len(CLAIMS)] * 2
    assert claims.tally(record).to_numpy().sum() == 2 * len(CLAIMS)
    html = claims.show_claims(record, "Abstract").data
    assert "EAR improves retrieval by up to 17.9% over the baseline retriever on two" in html and "..." not in html
    assert "<th>claim</th>" in html and "the critic sees test gold" in html


def test_the_strips_hold_the_counts(record):
    counts = claims.verdict_counts(record)
    figure = figures.strips(counts, y="section", x="claims", panel="judged")
    for axes, (_, part) in zip(figure.axes, counts.groupby("judged", sort=False), strict=True):
        assert sum(patch.get_width() for patch in axes.patches) == part["claims"].sum()
        told = [int(text.get_text()) for text in axes.texts if text.get_text()]
        assert sorted(told) == sorted(part["claims"])


# -- what the paper leaves open


@pytest.mark.parametrize("name", paper.open_choices())
def test_a_reading_has_its_words_and_names_a_default(latex, name):
    one = paper.open_choices()[name]
    for place, quote in one["said"]:
        assert quote in at_place(latex, place), f"{place}: {quote}"
    assert one["open"] and one["reading"]
    if one["field"]:
        (model,) = (model for model in (Config, Setting) if one["field"] in model.model_fields)
        default = getattr(model(), one["field"])
        assert (type(default), default) == (type(one["value"]), one["value"])
        model(**{one["field"]: one["value"]})


def test_open_questions_are_all_shown():
    shown = claims.open_questions()
    assert len(shown) == len(paper.open_choices()) >= 15
    assert {"optimizer = adam", "unseen = negative", "replay_slate = gumbel", "–"} <= set(shown["option"])
