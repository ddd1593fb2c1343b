"""Settings of several datasets and encoders, of which some may be missing, and of both kinds of split."""

import itertools
import sys
from typing import NamedTuple

from earlib import paper
from earlib.core.config import Config
from earlib.data import encoders as registry
from earlib.experiments.settings import Setting, benchmark, candidates_of


class Several(NamedTuple):
    """Settings of several datasets and encoders, and the reasons why others cannot be had."""

    dataset: list  # names asked for
    encoder: list
    made: list  # a Setting for each pair that can be run, in the order asked for
    lacking: dict  # reason by (dataset, encoder), and by (dataset, None) where the dataset is missing

    @property
    def words(self):
        """The datasets and encoders asked for, for a title: "on LoCoMo with Contriever and Stella"."""
        said = (", ".join(map(paper.label, names)) for names in (self.dataset, self.encoder))
        return "on {} with {}".format(*(" and ".join(one.rsplit(", ", 1)) for one in said))

    @property
    def fingerprints(self):
        """Fingerprints by name of the datasets and of the encoders that are run, for `records.provenance`."""
        data = {one.dataset: benchmark(one.dataset).fingerprint() for one in self.made}
        return data, {one.encoder: registry.fingerprint(one.encoder) for one in self.made}

    def absent(self, dataset, encoder):
        """Reason why a dataset is not run with an encoder; None if it is."""
        reason = self.lacking.get((dataset, encoder)) or self.lacking.get((dataset, None))
        pairs = ((dataset, self.dataset), (encoder, self.encoder))
        unasked = [paper.label(name) for name, asked in pairs if name is not None and name not in asked]
        return reason or (f"{unasked[0]} is not run in this profile" if unasked else None)

    def dashes(self, variants, metric="recall@5"):
        """Rows without a value, with the reason, for the settings that cannot be had."""
        for dataset, encoder, variant in itertools.product(self.dataset, self.encoder, variants):
            if reason := self.absent(dataset, encoder):
                about = {"dataset": dataset, "encoder": encoder, "split": self.made[0].split, "variant": variant}
                yield about | {"metric": metric, "measured": None, "reason": reason}


def find(dataset, encoder, **given):
    """Settings of datasets and encoders, as far as their files and weights can be had.

    What is missing costs its own rows, not the notebook; the next step is printed to standard error.

    Parameters
    ----------
    dataset, encoder : str or list of str
        Names as of `Setting`.
    **given
        Further fields of every `Setting`.

    Returns
    -------
    Several

    Raises
    ------
    OSError
        If none of them can be had.
    """
    datasets, encoders = ([names] if isinstance(names, str) else list(names) for names in (dataset, encoder))
    made, lacking = [], {}
    for data, one in itertools.product(datasets, encoders):
        missing, setting = (data, None), Setting(dataset=data, encoder=one, **given)
        try:
            benchmark(data)
            missing = (data, one)
            candidates_of(setting, Config().depth)
            made.append(setting)
        except OSError as error:
            reason = f"{paper.label(missing[1] or data)} is not on this machine"
            if reason not in lacking.values():
                print(error, file=sys.stderr)
            failed, lacking[missing] = error, reason
    if not made:
        raise failed
    return Several(datasets, encoders, made, lacking)


def by_split(made):
    """Settings, and after them each of their benchmarks split by conversation.

    Left out are benchmarks of one conversation, and those in which each question has a conversation of its own
    (LongMemEval): there every split is by conversation.
    """
    apart = []
    for one in made:
        scopes = [query.scope for query in benchmark(one.dataset).asked]
        if one.split != "conversation" and 1 < len(set(scopes)) < len(scopes):
            apart.append(one.model_copy(update={"split": "conversation"}))
    return [*made, *apart]


def words(setting):
    """A setting in words, for a title: "LoCoMo, MiniLM, random split"."""
    return ", ".join(map(paper.label, (setting.dataset, setting.encoder, setting.split))) + " split"


def ends(rows, x):
    """Keys of the last points of the curves in rows, whose place is `x`: of each setting {"dataset": ..., x: ...}."""
    keys, last = ("dataset", "encoder", "split"), {}
    for row in rows:
        if row.get(x) is not None:
            setting = tuple(row[key] for key in keys)
            last[setting] = max(row[x], last.get(setting, 0))
    return [dict(zip(keys, setting, strict=True)) | {x: at} for setting, at in last.items()]
