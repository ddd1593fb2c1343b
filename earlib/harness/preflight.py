"""Search for the needs of a run before its first notebook: data, weights, language models, device and disk.

A notebook none of whose datasets or none of whose encoders is at hand is left out. One of several that is missing
costs its rows, as does a missing reranker or language model. Only what no notebook can do without stops a run. All that
is missing is told at once, each with the next step.
"""

import os
import shutil
from collections import Counter

from huggingface_hub import constants

from earlib import devices, paths
from earlib.data import benchmarks, encoders, model_files, rerankers
from earlib.harness.notebooks import ASKED, READERS, Unusable
from earlib.llm import NoModel

ROOM = 5e8  # bytes of disk for runs, executed notebooks and records


def look(plans, limits=None, elsewhere=False):
    """Look for all that plans need.

    Parameters
    ----------
    plans : list of Plan
    limits : dict, optional
        `max_calls` and `max_cost` of the run; default: no language model is asked.
    elsewhere : bool
        True if other machines run the notebooks: weights, device and disk are theirs.

    Returns
    -------
    able : list of Plan
        Those that can run.
    lines : list of str
        What is missing, the next step, and what it costs.

    Raises
    ------
    Unusable
        If none could run; the message is all that is missing.
    """
    needs = {plan.name: {} if plan.source.stem in READERS else plan.every for plan in plans}
    lost, rows, stops, room = {}, {}, [], Counter({paths.cache(): ROOM})

    def attempt(absent, find, name, *given):
        try:
            return find(name, *given)
        except (OSError, NoModel) as error:
            absent[name] = str(error)
        except ValueError as error:
            stops.append(str(error))

    loaded = {name: attempt(lost, benchmarks.load, name) for name in named(needs.values(), "dataset")}
    if not elsewhere:
        for name in named(needs.values(), "encoder"):
            asking = [given for given in needs.values() if name in named([given], "encoder")]
            attempt(lost, _find_encoder, name, [loaded[one] for one in named(asking, "dataset") if loaded[one]], room)
        fetch = any(given.get("fetch") for given in needs.values())
        for name in named(needs.values(), "rerankers"):
            attempt(rows, _find_reranker, name, fetch, room)
        for name in {os.environ.get("EARLIB_DEVICE") or plan.machine.get("EARLIB_DEVICE") or "cpu" for plan in plans}:
            if name != "cpu":  # looking for another one brings torch, which takes seconds
                attempt(rows, devices.ready, name)
        stops += _full_disks(room)
    for name in sorted({name for plan in plans for name in plan.models}) if limits is not None else ():
        attempt(rows, _find_model, name, limits)
    able = [name for name, given in needs.items() if _runs(given, lost)]
    lines = [_told(reason, name, needs, able) for name, reason in (lost | rows).items()]
    if stops:
        raise Unusable("\n- ".join(["nothing can run as it was asked for:", *stops, *lines]))
    return [plan for plan in plans if plan.name in able], lines


def named(needs, *keys):
    """Values of some parameters of notebooks, those of lists one by one, each once."""
    held = [given[key] for given in needs for key in keys if key in given]
    return dict.fromkeys(one for value in held for one in (value if isinstance(value, list) else [value]))


def _find_encoder(name, searched, room):
    """Look for an encoder, or for the embeddings of all that it would encode, and note the disk that they take."""
    entry = encoders.get(name)
    parts = [part for held in searched for part in ((held.memories, "memory"), (held.queries, "query"))]
    texts = [([one.text for one in part], kind) for part, kind in parts]
    texts = [part for part, kind in texts if not encoders.encoded(part, name, kind)]
    if (texts or not searched) and not entry.folder:
        room[constants.HF_HUB_CACHE] += model_files.download(entry, encoders.trusted(name))
    room[paths.cache()] += sum(2 * 4 * entry.dimension * len(part) for part in texts)  # float32, once more in shards


def _find_reranker(name, fetch, room):
    if name in rerankers.REGISTRY and fetch:
        room[constants.HF_HUB_CACHE] += model_files.download(rerankers.get(name))
    elif reason := rerankers.absent(name):
        raise FileNotFoundError(f"{reason}; `-p fetch true` downloads them")


def _find_model(name, limits):
    from earlib.llm import models  # here because it brings the client's library, which takes seconds

    models.find(name, **limits)


def _full_disks(room):
    """Yield the next step for each folder whose disk has less room than the run needs there."""
    for folder, size in (+room).items():  # those of which anything is needed
        os.makedirs(folder, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < size:
            told = f"expected {size / 1e9:.1f} GB of free disk, found {free / 1e9:.1f}"
            yield f"{folder}: {told}; free some, or name another folder with EARLIB_CACHE or HF_HOME"


def _told(reason, name, needs, able):
    """The reason, and the notebooks that it costs, or of which it costs rows."""
    at = [plan for plan, given in needs.items() if name in named([given], "dataset", "encoder", "rerankers", *ASKED)]
    told = [reason.rstrip(".")]
    for cost, runs in (("Left out", False), ("Without some values", True)):
        if plans := [plan for plan in at if (plan in able) is runs]:
            told.append(f"{cost}: {', '.join(plans[:3])}" + (f" and {len(plans) - 3} more" if len(plans) > 3 else ""))
    return ". ".join(told)


def _runs(given, lost):
    """True if a notebook has one at least of its datasets and of its encoders at hand."""
    return all(named([given], key).keys() - lost.keys() for key in ("dataset", "encoder") if key in given)
