"""The grid of runs, datasets x encoders x variants, on many processes: `python -m earlib.grid --dataset locomo ...`.

A task is one run: all seeds of a dataset, an encoder and a variant, side by side as in `runs.run`. Seeds are not
torn apart: a product of matrices sums in another order alone than among others, and a rounded score can then be
another one; so every run is, bit for bit, what it is without workers on the same kind of processor. The client
encodes, sends the candidates with the run, and puts what comes back into its own run cache; workers need neither data
nor weights.
"""

import argparse
import sys
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pandas as pd
from dask.system import CPU_COUNT
from distributed import as_completed
from tqdm import tqdm

from earlib.core.config import VARIANTS, Config, near
from earlib.data import benchmarks, encoders
from earlib.experiments import intervals, measures, runs, settings
from earlib.experiments.settings import Setting
from earlib.harness import at_least, machines

UNREAD = dict.fromkeys(("ids", "memory_ids", "categories", "scopes", "stores"), ()) | {"gold_in_store": {}}  # by a run


class Cell(NamedTuple):
    """A variant in a setting: one row of the table that the command prints."""

    setting: Setting
    variant: str

    def __str__(self):
        return f"{self.setting.dataset}/{self.setting.encoder}/{self.variant}"


def cells(dataset, encoder, variant, **setting):
    """All combinations of datasets, encoders and variants, with further fields of a Setting; a name counts once."""
    given = [benchmarks.resolve(one) for one in dataset], [encoders.resolve(one) for one in encoder], variant
    for name in variant:
        if name not in VARIANTS:
            raise ValueError(f"unknown variant {name!r}{near(name, VARIANTS)}; known: {', '.join(VARIANTS)}")
    every = product(*map(dict.fromkeys, given))
    return [Cell(Setting(dataset=one, encoder=other, **setting), name) for one, other, name in every]


def jobs(wanted):
    """The run behind each cell, None for the retriever; cells that differ in how they answer share a run's key."""
    planned = {}
    for cell in wanted:
        variant = VARIANTS[cell.variant]
        setting = settings.beside(cell.setting, variant.reranker)
        planned[cell] = None if cell.variant == "retriever" else runs.job(setting, Config(**variant.changes))
    return planned


def missing(planned):
    """The runs that the cache lacks, each once, by the first cell that needs it; from `jobs`."""
    once = {}
    for cell, job in planned.items():
        if job is not None:
            once.setdefault(job.key, cell)
    return {cell: planned[cell] for cell in once.values() if runs.cached(planned[cell]) is None}


def compute(lacking, client):
    """Compute runs on workers, each into the cache as soon as it comes back; return the keys of those that failed."""
    data, futures, failed = {}, {}, set()
    for cell, job in lacking.items():
        if id(job.found) not in data:
            data[id(job.found)] = client.submit(replace, read_part(job.found), pure=False)  # a task can be made again
        sent = (job.setting, job.config, data[id(job.found)], job.splits)
        futures[machines.submit(client, runs.compute_run, *sent)] = cell
    for future in tqdm(as_completed(futures, loop=client.loop), "runs", len(futures)):
        cell = futures[future]
        try:
            runs.keep(lacking[cell], future.result())
        except Exception as error:  # of a run or of its workers; the others go on
            failed.add(lacking[cell].key)
            tqdm.write(f"{cell}: FAILED: {type(error).__name__}: {error}", file=sys.stderr)
        future.release()
    return failed


def read_part(found):
    """The part of candidates that a run reads: of the bank the rows that are a candidate of some question."""
    rows, place = found.index.unique(return_inverse=True)  # ascending, so that ties are broken as in the whole bank
    return replace(found, bank=found.bank[rows], index=place, **UNREAD)


def table(planned, failed):
    """One line a cell: recall and hit rate in percent with the deviation between seeds; "-" where its run failed."""
    lines = []
    for (setting, variant), job in planned.items():
        shown = ("-", "-")
        if job is None or job.key not in failed:
            reached = runs.answers(setting, variant)
            shown = (_told(values, reached.queries) for values in reached.values[:2])
        lines.append((setting.dataset, setting.encoder, variant, setting.seeds, *shown))
    heads = ["dataset", "encoder", "variant", "seeds", *measures.MEASURES[:2]]
    return pd.DataFrame(lines, columns=heads).to_string(index=False)


def _told(values, queries):
    told = intervals.summary(values, queries)
    return f"{told['measured']:.1f}" + ("" if told["std"] is None else f" ± {told['std']:.1f}")


def _read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="python -m earlib.grid", description="Run datasets x encoders x variants.")
    parser.add_argument("--dataset", nargs="+", default=["locomo"], metavar="NAME", help=", ".join(benchmarks.NAMES))
    parser.add_argument("--encoder", nargs="+", default=["minilm"], metavar="NAME", help=", ".join(encoders.REGISTRY))
    parser.add_argument("--variant", nargs="+", default=list(VARIANTS), metavar="NAME", help=", ".join(VARIANTS))
    parser.add_argument(
        "--seeds", type=at_least(1), default=Setting.model_fields["seeds"].default, help="seeds of each"
    )
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--workers", type=at_least(1), default=CPU_COUNT, metavar="N", help="processes of this machine")
    engine.add_argument("--scheduler", metavar="ADDRESS", help="of a dask scheduler, such as tcp://host:8786")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Command line; returns the exit code: 0, 1 if a run failed, 2 for a bad request, 130 after Ctrl-C."""
    options = _read_arguments(arguments)
    try:
        planned = jobs(cells(options.dataset, options.encoder, options.variant, seeds=options.seeds))
        lacking, failed = missing(planned), set()
        if lacking:
            with machines.connect(options.scheduler, min(options.workers, len(lacking))) as client:
                failed = compute(lacking, client)
        print(table(planned, failed))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; finished runs are in the cache", file=sys.stderr)
        return 130
    return 1 if failed else 0
