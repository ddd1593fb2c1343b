"""Settings of several datasets and encoders, of which some may be missing, and of both kinds of split."""

import itertools
import sys
from typing import NamedTuple

from earlib import paper
from earlib.core.config import Config
from earlib.experiments.settings import Setting, benchmark, candidates_of


class Several(NamedTuple):
    """Settings of several datasets and encoders, and the reasons why others cannot be had."""

    dataset: list  # names asked for
    encoder: list
    made: list  # a Setting for each pair that can be run, in the order asked for
    lacking: dict  # reason by (dataset, encoder), and by (dataset, None) where the dataset is missing


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
    apart = [one for one in made if one.split != "conversation" and _holds_conversations_out(one.dataset)]
    return [*made, *(one.model_copy(update={"split": "conversation"}) for one in apart)]


def _holds_conversations_out(dataset):
    asked = benchmark(dataset).asked
    return 1 < len({query.scope for query in asked}) < len(asked)
