"""Run the notebooks headless: `python -m earlib.run NAME... --profile P -p key value`.

Everything is checked before anything runs. A notebook runs in a folder of its own under `build/`, and its results
(the executed notebook, its record, its figures) replace older ones only when every cell has passed.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import nbformat
from filelock import FileLock, Timeout

from earlib import paths, records
from earlib.data import own
from earlib.harness import at_least, costs, notebooks, preflight
from earlib.harness.notebooks import LONGEST, READERS, Unusable
from earlib.harness.profiles import GROUPS, SET_BY_RUN, Plan, make_plans
from earlib.llm import local
from earlib.llm.budget import Ledger, LimitReached


class Outcome(NamedTuple):
    """The end of a plan; `error` is None if every cell passed, `changes` if there was no older result."""

    plan: Plan
    seconds: float
    error: str | None
    changes: list[str] | None
    stays: bool  # the older result


class Runner:
    """Runs plans, and can be stopped at any moment without touching older results.

    Notebooks run here, `jobs` at a time, in kernels with further variables (`environment`), or on the workers of a dask
    `scheduler`, which need not share a disk with this machine; what asks a language model, reads the records of others,
    or has the user's own data or encoder runs here all the same, where the ledger, the kept replies, the records and
    those files are. With a folder for `estimates` no language model is asked and nothing is published; each notebook's
    requests are noted there, in a file of its name. `rewrite` publishes also where nothing changed
    (`notebooks.publish`).
    """

    def __init__(self, jobs=1, environment=None, estimates=None, scheduler=None, rewrite=False):
        self.jobs, self.environment, self.estimates, self.scheduler = jobs, environment or {}, estimates, scheduler
        if jobs > 1 and not os.environ.get("OMP_NUM_THREADS"):
            # Together no more threads than there are cores; while one kernel encodes, the others wait for it.
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            self.environment |= {"OMP_NUM_THREADS": f"{max(1, cores // jobs)}", "EARLIB_ENCODING_THREADS": f"{cores}"}
        self.rewrite, self.tasks, self.stopped = rewrite, set(), threading.Event()
        self.name = uuid.uuid4().hex  # by which workers know the kernels of this run
        self.began, self.count, self.numbers = time.monotonic(), 0, itertools.count(1)

    def run(self, plans):
        """Run all plans, also after one of them failed, those that read the records of others last.

        One at a time they come in the order given; side by side the longest are begun first. Ctrl-C raises
        KeyboardInterrupt when every kernel is gone.
        """
        futures, self.count = [], len(plans)
        with (
            _connected(self.scheduler) as self.client,
            ThreadPoolExecutor(self.jobs) as here,
            ThreadPoolExecutor(max(1, len(plans))) as elsewhere,
        ):
            try:
                for reads in (False, True):
                    wave = [plan for plan in plans if (plan.source.stem in READERS) is reads]
                    if self.jobs > 1 or self.client:
                        wave.sort(key=lambda plan: plan.source.stem not in LONGEST)
                    futures += [(here if self._stays(plan) else elsewhere).submit(self._run, plan) for plan in wave]
                    wait(futures)
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                self.stopped.set()
                for pool in (here, elsewhere):
                    pool.shutdown(wait=False, cancel_futures=True)
                if self.client is not None:
                    self.client.cancel(list(self.tasks))
                    while any(self.client.run(notebooks.kill_kernels, self.name, on_error="ignore").values()):
                        time.sleep(0.2)
                while not all(future.done() for future in futures):  # `wait` never counts a cancelled one as done
                    notebooks.kill_kernels()
                    time.sleep(0.1)
                raise

    def _stays(self, plan):
        mine = any(map(own.place, preflight.named([plan.parameters], *notebooks.OWN)))
        return self.client is None or plan.source.stem in READERS or plan.models or mine

    def _run(self, plan):
        """Run one plan, put its results in place and tell how it ended."""
        began, content, kept = time.monotonic(), plan.source.read_bytes(), paths.build() / plan.profile / plan.name
        files, changes, stays = {}, None, False
        try:
            if self._stays(plan):
                bar = self.jobs == 1 and self.client is None and sys.stderr.isatty()
                noted = str(self.estimates / f"{plan.name}.jsonl") if self.estimates else ""
                variables = self.environment | {"EARLIB_LLM_ESTIMATE": noted}
                files, error = notebooks.execute(plan, content, variables, bar=bar)
            else:
                from earlib.harness import machines

                task = machines.submit(self.client, notebooks.execute, plan, content, {}, self.name)
                self.tasks.add(task)
                files, error = task.result()
            if self.estimates is None and not error:
                changes, stays = notebooks.publish(files, plan, self.rewrite)
                shutil.rmtree(kept, ignore_errors=True)  # of an earlier run
        except Exception as caught:  # of a worker that was lost, or of a folder that cannot be written
            error = f"{type(caught).__name__}: {caught}"
        if error and files and self.estimates is None and not self.stopped.is_set():
            for name, content in files.items():
                paths.write_atomically(kept / name, content)
            error += f"\n  the notebook as far as it came: {paths.shown(kept)}"
        outcome = Outcome(plan, time.monotonic() - began, error, changes, stays)
        if not self.stopped.is_set():
            self._tell(outcome)
        return outcome

    def _tell(self, outcome):
        """Tell in a line how a plan ended: "[3/22] fig03_sample_efficiency 5.9 s, unchanged, about 4 min left"."""
        plan, seconds, error, changes, stays = outcome
        number = next(self.numbers)
        told = f"[{number}/{self.count}] {plan.name}{' FAILED after' if error else ''} {seconds:.1f} s"
        if error:
            told += f": {error}"
        elif changes is not None:
            told += f", {'' if stays else 'changed: '}{', '.join(changes) or 'unchanged'}"
        if number < self.count and not error:
            left = (time.monotonic() - self.began) / number * (self.count - number)
            told += f", about {rounded(left)} left"
        # One piece with its end: notebooks that end together tell it from several threads.
        print(f"{told}\n", end="", file=sys.stderr if error else sys.stdout, flush=True)


def _connected(scheduler):
    """Context of the client of a scheduler, None without one."""
    if scheduler is None:
        return contextlib.nullcontext()
    from earlib.harness import machines  # here because it brings torch, which takes seconds

    return machines.connect(scheduler)


def _usable_plans(options):
    """Plans of a request that can run, and why they are those of the profile `smoke`, "" if they are not.

    They are for a group of notebooks none of whose data can be had. What is missing otherwise is printed.
    """
    names, profile, given = options.names, options.profile, dict(options.p)
    plans = make_plans(names, profile, given)
    limits = None if options.estimate else {"max_calls": options.max_calls, "max_cost": options.max_cost}
    able, lines = preflight.look(plans, limits, elsewhere=options.scheduler is not None)
    group = bool(set(names) & set(GROUPS))  # of which notebooks that need no data alone are not worth a run
    found = [plan for plan in able if plan.source.stem not in READERS]
    found = [plan for plan in found if not group or "dataset" in plan.every]
    if found or len(able) == len(plans):
        for line in lines:
            print(f"missing: {line}", flush=True)
        return able, ""
    if profile == "smoke" or not group:
        raise Unusable("\n- ".join(["nothing can run as it was asked for:", *lines]))
    given = {key: value for key, value in given.items() if key != "dataset"}
    instead = f"on made dialogues (profile smoke), not {profile}: {'; '.join(lines)}"
    return preflight.look(make_plans(names, "smoke", given), limits)[0], instead


def summarise(outcomes, seconds):
    """How the run ended in a few lines: counts, verdicts of the records, failures, and results that stayed."""
    failed = [outcome.plan.name for outcome in outcomes if outcome.error]
    stayed = [outcome.plan for outcome in outcomes if outcome.stays]
    near = sum(outcome.stays and bool(outcome.changes) for outcome in outcomes)
    ran = [plan for plan, _, error, *_ in outcomes if error is None]
    files = [paths.results() / plan.profile / f"{plan.name}.json" for plan in ran]
    rows = [row for file in files if file.exists() for row in json.loads(file.read_text("utf-8"))["rows"]]
    lines = []
    if len(outcomes) > 1:
        lines.append(f"{len(outcomes) - len(failed)} of {len(outcomes)} notebooks ran in {rounded(seconds)}")
    if failed and lines:
        lines.append(f"FAILED: {', '.join(failed)}")
    if verdicts := records.tally(rows):
        counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        lines.append(f"values by verdict: {counted}")
    if stayed:
        file = f"{stayed[0].name}.ipynb" if len(stayed) == 1 else ""
        kept, made = (paths.shown(one / stayed[0].profile / file) for one in (paths.results(), paths.unchanged()))
        which = f"{len(stayed)} results in " if len(stayed) > 1 else ""
        off = f" ({near} of them within tolerance, not to the last digit)" if near else ""
        lines.append(f"unchanged: {which}{kept}{off}; as this run made them: {made} (--rewrite puts them in place)")
    return lines


def rounded(seconds):
    """A duration in one unit: "40 s", "4 min", "1.5 h"."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def describe():
    """All notebooks with title and parameters."""
    lines = []
    for name, source in notebooks.sources().items():
        fields = notebooks.parameters(source).model_fields
        cells = nbformat.read(source, as_version=4).cells
        lines.append(f"{name}: " + (cells[0].source.partition("\n")[0].lstrip("# ") if cells else ""))
        for key, field in fields.items():
            if key not in SET_BY_RUN:
                stated = f"{key}: {field.title} = {field.default!r}"
                lines.append(f"    {stated:40}  {field.description}".rstrip())
    lines.append("dataset may be your own file NAME.jsonl, encoder a folder or OWNER/NAME@COMMIT: docs/own-data.md")
    return "\n".join(lines)


def _read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="python -m earlib.run", description="Run notebooks of the paper headless.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"ids of notebooks, or {', '.join(GROUPS)}")
    parser.add_argument("--profile", default="laptop", help="a file of notebooks/profiles (default: laptop)")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("KEY", "VALUE"), help="a parameter")
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--jobs", type=at_least(1), default=1, metavar="N", help="notebooks at a time (default: 1)")
    engine.add_argument("--scheduler", metavar="ADDRESS", help="of a dask scheduler whose workers run the notebooks")
    limit = "calls of language models in the whole run, at most"
    parser.add_argument("--max-calls", type=at_least(0), metavar="N", help=limit)
    parser.add_argument("--max-cost", type=at_least(0, float), metavar="DOLLARS", help="what they may cost, at most")
    parser.add_argument("--estimate", action="store_true", help="say what they would cost; ask and write nothing")
    parser.add_argument("--rewrite", action="store_true", help="write results also where nothing has changed")
    parser.add_argument("--list", action="store_true", help="show notebooks and their parameters")
    options = parser.parse_args(arguments)
    if not options.names and not options.list:
        known = ", ".join(notebooks.sources()) or "none"
        parser.error(f"name a notebook, or one of {', '.join(GROUPS)}; there are {known}")
    return options


def main(arguments=None):
    """Command line; returns the exit code: 0, 1 if a notebook failed, 2 for a bad request. Ctrl-C is the caller's."""
    options = _read_arguments(arguments)
    try:
        if options.list:
            print(describe())
            return 0
        plans, instead = _usable_plans(options)
        if instead:
            print(f"running {instead}", flush=True)
        outcomes = _estimate(plans, options.jobs) if options.estimate else _reproduce(plans, options)
        if instead:
            print(f"this run was {instead.partition('. ')[0]}", flush=True)  # without how to get the data, said above
        return 1 if any(outcome.error for outcome in outcomes) else 0
    except (Unusable, LimitReached, OSError) as error:  # a ledger that cannot be read, no scheduler
        print(f"error: {error}", file=sys.stderr)
        return 2


@contextlib.contextmanager
def _ledger(profile):
    """File of the calls and costs of a run, to which its limits apply.

    The file of a run of the profile that did not finish (killed, stopped, failed, a limit reached) is continued, so
    that a restart does not get the limits again. A run beside another of the same profile has a file of its own.
    """
    with contextlib.ExitStack() as stack:
        file = paths.build() / f"ledger-{profile}.json"
        try:
            stack.enter_context(FileLock(f"{file}.run", blocking=False))
        except Timeout:
            folder = tempfile.TemporaryDirectory(prefix="ledger.", dir=paths.build())
            file = Path(stack.enter_context(folder), file.name)
        if file.exists():
            with Ledger(file).changing() as totals:  # no call is open: one without an answer counts in full
                totals |= {"spent": totals["spent"] + totals["held"], "held": 0.0, "reached": ""}
            told = f"an earlier run, which did not finish, took {costs.took(totals)}"
            print(f"language models: {told}; it counts here ({paths.shown(file)})", flush=True)
        yield file


def _told_costs(ledger):
    """Print what language models took; returns the limit that stopped a call, "" if none did."""
    if not ledger.exists():
        return ""
    with Ledger(ledger).changing() as totals:
        print(f"language models: {costs.took(totals)}", flush=True)
    if totals["reached"]:
        print(f"language models: {totals['reached']}; the values that need more are missing", flush=True)
    return totals["reached"]


def _reproduce(plans, options):
    """Run plans under limits that they share, and sum up."""
    limits = {"EARLIB_LLM_MAX_CALLS": options.max_calls, "EARLIB_LLM_MAX_COST": options.max_cost}
    environment = {name: str(limit) for name, limit in limits.items() if limit is not None}
    began, profile, count = time.monotonic(), plans[0].profile, len(plans)
    place = paths.shown(paths.results() / profile)
    print(f"{count} notebook{'s'[: count - 1]}, profile {profile}, results in {place}", flush=True)
    asked = sorted({name for plan in plans for name in plan.models} - set(local.MODELS))
    if asked and not environment:
        known = f"`make estimate PROFILE={profile}` says what it may cost, --max-cost and --max-calls limit it"
        print(f"language models: {', '.join(asked)} without a limit; {known}", flush=True)
    with _ledger(profile) as ledger:
        environment["EARLIB_LLM_LEDGER"] = str(ledger)
        try:
            jobs, scheduler = min(options.jobs, count), options.scheduler
            outcomes = Runner(jobs, environment, scheduler=scheduler, rewrite=options.rewrite).run(plans)
        finally:
            reached = _told_costs(ledger)
        if not reached and not any(outcome.error for outcome in outcomes):
            ledger.unlink(missing_ok=True)
    if set(options.names) & set(GROUPS):
        print(f"to read them, each beside the paper's numbers: make report PROFILE={profile}")
    for line in summarise(outcomes, time.monotonic() - began):
        print(line, flush=True)
    return outcomes


def _estimate(plans, jobs):
    """Run the notebooks that ask language models without asking any, and say what they would take."""
    silent = [plan.name for plan in plans if not plan.models]
    asking = [plan for plan in plans if plan.models]
    if silent:
        print(f"no language model is asked by {', '.join(silent)}", flush=True)
    if not asking:
        return []
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Runner(min(jobs, len(asking)), estimates=Path(folder)).run(asking)
        print(costs.estimated(Path(folder), outcomes))
    return outcomes
