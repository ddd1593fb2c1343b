"""Records: the values a notebook measured, their verdicts and provenance, and the comparison with committed records.

A record is tidy: each row is one value, named by its keys (dataset, encoder, variant, metric and further ones such as
rounds or category). Tables, figures, the README and the claims are drawn from records alone.
"""

from earlib.records.comparison import changes, compare_with_reference, other_parameters, without_numbers
from earlib.records.files import load, plain, record, save
from earlib.records.origin import departures, provenance
from earlib.records.rows import KEYS, SEES_GOLD, SETTING, VALUES, Row, further, key_of, matching, named, not_run, row
from earlib.records.verdicts import own_setting, shown, tally

__all__ = ["KEYS", "SEES_GOLD", "SETTING", "VALUES", "Row", "changes", "compare_with_reference", "departures"]
__all__ += ["further", "key_of", "load", "matching", "named", "not_run", "other_parameters", "own_setting"]
__all__ += ["plain", "provenance", "record", "row", "save", "shown", "tally", "without_numbers"]
