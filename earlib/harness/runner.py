"""Run the notebooks headless: `python -m earlib.run NAME... --profile P -p key=value`.

Everything is checked before anything runs. A notebook runs in a folder of its own under `build/`, and its results
(the executed notebook, its record, its figures) replace older ones only when every cell has passed.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import nbformat
from filelock import FileLock, Timeout

from earlib import paths, records
from earlib.data import own
from earlib.harness import costs, notebooks, preflight
from earlib.harness.notebooks import READERS, Unusable
from earlib.harness.profiles import GROUPS, SET_BY_RUN, Plan, all_parameters, make_plans
from earlib.harness.progress import Progress, rounded
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

    Notebooks run here, `jobs` at a time, in kernels with further variables (`environment`). Those of a dask `client`
    need not share a disk with this machine; what asks a language model, reads the records of others, or has the user's
    own data or encoder runs here, where the ledger, the kept replies, the records and those files are. With a folder
    for `estimates` no language model is asked and nothing is published; each notebook's requests are noted there, in a
    file of its name. `rewrite` publishes also where nothing changed (`notebooks.publish`).
    """

    def __init__(self, jobs=1, environment=None, estimates=None, client=None, rewrite=False):
        self.jobs, self.environment, self.estimates, self.client = jobs, environment or {}, estimates, client
        self.rewrite, self.tasks, self.stopped = rewrite, set(), threading.Event()
        self.progress = self.watch = None

    def run(self, plans):
        """Run all plans, also after one of them failed, those that read the records of others last.

        Ctrl-C raises KeyboardInterrupt when every kernel is gone.
        """
        workers = self.client and len(self.client.scheduler_info(n_workers=-1)["workers"])
        self.progress = Progress(plans, workers or self.jobs)
        if self.client is not None:
            from earlib.harness.machines import Watch  # here because it brings torch, which takes seconds

            self.watch = Watch(self.client, lambda name, worker: self.progress.begin(name))
        futures = []
        with ThreadPoolExecutor(self.jobs) as here, ThreadPoolExecutor(max(1, len(plans))) as elsewhere:
            try:
                for reads in (False, True):
                    wave = [plan for plan in plans if (plan.source.stem in READERS) is reads]
                    futures += [(here if self._stays(plan) else elsewhere).submit(self._run, plan) for plan in wave]
                    wait(futures)
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                self.stopped.set()
                for pool in (here, elsewhere):
                    pool.shutdown(wait=False, cancel_futures=True)
                if self.client is not None:
                    self.client.cancel(list(self.tasks))
                    while any(self.client.run(notebooks.kill_kernels, self.watch.topic, on_error="ignore").values()):
                        time.sleep(0.2)
                while not all(future.done() for future in futures):  # `wait` never counts a cancelled one as done
                    notebooks.kill_kernels()
                    time.sleep(0.1)
                raise

    def _stays(self, plan):
        values = [one for value in plan.parameters.values() for one in (value if isinstance(value, list) else [value])]
        mine = any(isinstance(value, str) and own.place(value) for value in values)
        return self.client is None or plan.source.stem in READERS or plan.models or mine

    def _run(self, plan):
        """Run one plan, put its results in place and tell how it ended."""
        folder, computed = self.estimates or paths.build() / plan.profile, False
        work, broken, error, changes, stays = None, folder / f"{plan.name}.ipynb", None, None, False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=f"{plan.name}.", dir=folder))
            if self._stays(plan):
                self.progress.begin(plan.name)
                bar = self.jobs == 1 and self.client is None and sys.stderr.isatty()
                execute(plan, plan.source, work, self.environment, self.estimates, bar=bar)
            else:
                self._run_elsewhere(plan, work)
            if self.estimates is None:
                computed = True
                tolerance = all_parameters(plan).get("tolerance")
                changes, stays = notebooks.publish(work, plan.profile, plan.name, self.rewrite, tolerance)
                if self.rewrite:  # nothing stayed as it was
                    changes = changes or None
                broken.unlink(missing_ok=True)  # of an earlier run
        except Exception as caught:
            error = notebooks.explain(caught)
            if computed:
                error += f"\n  all that it computed is kept in {paths.shown(work)}"
            elif self.estimates is None and not self.stopped.is_set() and work and (work / broken.name).exists():
                os.replace(work / broken.name, broken)
                error += f"\n  the notebook as far as it came: {paths.shown(broken)}"
        if work and not (error and computed):
            shutil.rmtree(work, ignore_errors=True)
        outcome = Outcome(plan, self.progress.seconds(plan.name), error, changes, stays)
        if not self.stopped.is_set():
            self._tell(outcome)
        return outcome

    def _tell(self, outcome):
        plan, seconds, error, changes, stays = outcome
        said = error or ""
        if changes is not None and not error:
            said = f", {'' if stays else 'changed: '}{', '.join(changes) or 'unchanged'}"
        if self.watch is not None and plan.name in self.watch.workers and not error:
            said = f" on {self.watch.workers[plan.name]}{said}"
        self.progress.end(plan, seconds, said, failed=bool(error), keep=self.estimates is None)

    def _run_elsewhere(self, plan, work):
        """Let a worker run the notebook; its files come back into `work`."""
        from earlib.harness.machines import explain

        task = self.watch.submit(execute_on_worker, plan.name, plan, plan.source.read_bytes(), self.watch.topic)
        self.tasks.add(task)
        try:
            files, error = task.result()
        except Exception as caught:  # of a worker; what a notebook raises comes with the files
            raise notebooks.Elsewhere(explain(caught)) from caught
        finally:
            self.tasks.discard(task)
        for name, content in files.items():
            paths.write_atomically(work / name, content)
        if error:
            raise notebooks.Elsewhere(error)


def execute(plan, source, work, environment, estimates=None, asker=None, bar=False):
    """Run the notebook of a plan in a folder of its own, with the variables that kernels of a run have."""
    environment = {name: value for name, value in plan.machine.items() if name not in os.environ} | environment
    environment |= {
        "EARLIB_ROOT": str(paths.ROOT),
        "EARLIB_RESULTS": str(work / "results"),
        "EARLIB_RUNNING": "1",
        "EARLIB_DEPTH": plan.depth,
        "EARLIB_RECORDS": os.environ.get("EARLIB_RECORDS") or str(paths.results().absolute()),
        # Never the caller's own, as of the depth: results would come of estimates.
        "EARLIB_LLM_ESTIMATE": "" if estimates is None else str(estimates / f"{plan.name}.jsonl"),
    }
    notebooks.execute(source, work / f"{plan.name}.ipynb", plan.parameters, environment, asker, bar)


def execute_on_worker(plan, content, topic):
    """Run a notebook on a worker, which need not have it; return the files that it left, by path, and why it failed."""
    folder, error = paths.build() / plan.profile, None
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{plan.name}.", dir=folder, ignore_cleanup_errors=True) as work:
        work, source = Path(work), Path(work, "source.ipynb")
        source.write_bytes(content)
        try:
            execute(plan, source, work, {}, asker=topic)
        except Exception as caught:
            error = notebooks.explain(caught)
        source.unlink()
        return {str(file.relative_to(work)): file.read_bytes() for file in work.rglob("*") if file.is_file()}, error


@contextlib.contextmanager
def _runner(jobs, scheduler=None, environment=None, estimates=None, rewrite=False):
    """A Runner: on this machine, or on the workers of a scheduler."""
    if scheduler is None:
        environment = environment or {}
        if jobs > 1 and not os.environ.get("OMP_NUM_THREADS"):
            # Together no more threads than there are cores; while one kernel encodes, the others wait for it.
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            environment |= {"OMP_NUM_THREADS": str(max(1, cores // jobs)), "EARLIB_ENCODING_THREADS": str(cores)}
        yield Runner(jobs, environment, estimates, rewrite=rewrite)
        return
    from earlib.harness import machines

    try:
        with machines.connect(scheduler) as client:
            yield Runner(1, environment, estimates, client, rewrite)
    except machines.Unreachable as error:
        raise Unusable(error) from error


def _check_writable(plans):
    """Refuse to compute what could not be kept."""
    places = {paths.results() / plan.profile: "EARLIB_RESULTS" for plan in plans} | {paths.build(): "EARLIB_BUILD"}
    for folder, variable in places.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder):
                pass
        except OSError as error:
            next_step = f"make it writable, or name another with {variable}"
            raise Unusable(f"cannot write into {folder}: {error.strerror}; {next_step}") from error


def _usable_plans(options):
    """Plans of a request that can run, and why they are those of the profile `smoke`, "" if they are not.

    They are for a group of notebooks none of whose data can be had. What is missing otherwise is printed.
    """
    names, profile, given = options.names, options.profile, options.own
    plans = make_plans(names, profile, given)
    limits = None if options.estimate else {"max_calls": options.max_calls, "max_cost": options.max_cost}
    able, lines = preflight.look(plans, limits, elsewhere=options.scheduler is not None)
    group = bool(set(names) & set(GROUPS))  # of which notebooks that need no data alone are not worth a run
    found = [plan for plan in able if plan.source.stem not in READERS]
    found = [plan for plan in found if not group or "dataset" in all_parameters(plan)]
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
    rows = []
    for plan, _, error, *_ in outcomes:
        record = paths.results() / plan.profile / f"{plan.name}.json"
        if error is None and record.exists():
            rows += json.loads(record.read_text(encoding="utf-8"))["rows"]
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
    parser.add_argument("-p", action="append", default=[], metavar="KEY=VALUE", help="a parameter; also KEY VALUE")
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--jobs", type=int, default=1, metavar="N", help="notebooks at a time (default: 1)")
    engine.add_argument("--scheduler", metavar="ADDRESS", help="of a dask scheduler whose workers run the notebooks")
    parser.add_argument("--max-calls", type=int, metavar="N", help="calls of language models in the whole run, at most")
    parser.add_argument("--max-cost", type=float, metavar="DOLLARS", help="what they may cost, at most")
    parser.add_argument("--estimate", action="store_true", help="say what they would cost; ask and write nothing")
    parser.add_argument("--rewrite", action="store_true", help="write results also where nothing has changed")
    parser.add_argument("--list", action="store_true", help="show notebooks and their parameters")
    given, joined = iter(arguments), []
    for argument in given:  # `-p key value`, papermill's form, as `-p key=value`
        joined.append(argument)
        if argument == "-p":
            pair = next(given, "")
            joined.append(pair if "=" in pair or not pair else f"{pair}={next(given, '')}")
    options = parser.parse_args(joined)
    if not options.names and not options.list:
        known = ", ".join(notebooks.sources()) or "none"
        parser.error(f"name a notebook, or one of {', '.join(GROUPS)}; there are {known}")
    if options.jobs < 1:
        parser.error("--jobs: expected 1 or more")
    for option, limit in (("--max-calls", options.max_calls), ("--max-cost", options.max_cost)):
        if limit is not None and not 0 <= limit < float("inf"):
            parser.error(f"{option}: expected 0 or more")
        if limit is not None and options.estimate:
            parser.error(f"--estimate asks nothing; leave out {option}")
    if options.estimate and options.scheduler:
        parser.error("--estimate asks and computes next to nothing; leave out --scheduler")
    for pair in options.p:
        if not all(pair.partition("=")):
            parser.error(f"-p: expected key=value, got {pair!r}")
    options.own = dict(pair.split("=", 1) for pair in options.p)
    return options


def main(arguments=None):
    """Command line; returns the exit code: 0, 1 if a notebook failed, 2 for a bad request. Ctrl-C is the caller's."""
    options = _read_arguments(sys.argv[1:] if arguments is None else arguments)
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
    except (Unusable, LimitReached) as error:  # the latter if the ledger cannot be read
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
    _check_writable(plans)
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
            with _runner(min(options.jobs, count), options.scheduler, environment, rewrite=options.rewrite) as runner:
                outcomes = runner.run(plans)
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
        with _runner(min(jobs, len(asking)), estimates=Path(folder)) as runner:
            outcomes = runner.run(asking)
        print(costs.estimated(Path(folder), outcomes))
    return outcomes
