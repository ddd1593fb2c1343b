"""Run the notebooks headless: `python -m earlib.run NAME... --profile P -p key=value`.

A notebook is its cells tagged `parameters` and what follows from it; a profile gives parameters to all notebooks.
Everything is checked before anything runs. A notebook runs in a folder of its own under `build/`, and what it
leaves (the executed notebook, its record, its figures) replaces older results only when every cell has passed.
"""

import argparse
import ast
import asyncio
import collections
import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import nbformat
import papermill
import yaml
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from papermill.exceptions import PapermillExecutionError
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

from earlib import devices, paths
from earlib.core.config import Config, near
from earlib.data import benchmarks, encoders, rerankers
from earlib.llm.budget import Ledger, shown

SET_BY_RUN = ("profile", "name")  # parameters that say where a result belongs
ASKED = ("llm", "judge")  # parameters that name a language model
READERS = ("claims",)  # notebooks that draw on the records of others; they run when all others are finished
ASSUMED = (
    "A request of several notebooks counts in the first. Tokens in: a quarter of the characters; tokens out: the most",
    "that a reply may have at first. What depends on earlier replies (verdicts, rounds of exploration) is estimated.",
)
LONGEST_NAME = 120  # characters; file systems allow 255 with suffixes and all


class Parameter(NamedTuple):
    """One line of a parameters cell: `name: type = default  # help`."""

    name: str
    type: str
    default: Any
    help: str


class Plan(NamedTuple):
    """One notebook about to run; `name` is its id, or id and own parameters."""

    source: Path
    name: str
    profile: str
    parameters: dict
    machine: dict  # variables by which the profile names a device, where the environment names none


class Outcome(NamedTuple):
    """What became of a plan; `error` is None if every cell passed."""

    plan: Plan
    seconds: float
    error: str | None


class Profile(BaseModel, extra="forbid"):
    """Parameters for every notebook that has them, and for single notebooks.

    A notebook runs once for each combination of the values in `grid` of those parameters that it has and that its own
    entry leaves alone. `device` and `precision` are those of `earlib.devices`, where the environment names no other.
    """

    title: str
    device: Annotated[str, AfterValidator(devices.check)] | None = None
    precision: Literal[tuple(devices.PRECISIONS)] | None = None
    dtype: Literal[devices.DTYPES] | None = None
    defaults: dict[str, Any] = {}
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    notebooks: dict[str, dict[str, Any] | None] = {}


class Unusable(ValueError):
    """A request that cannot be run; the message names what is wrong and what would be right."""


class _PlainYaml(yaml.SafeLoader):
    """YAML 1.2 scalars: 1e-3 is a number, `no` and 2026-01-01 are text."""

    yaml_implicit_resolvers = {}


for _tag, _pattern in {
    "null": r"null|~|",
    "bool": r"true|True|false|False",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?",
}.items():
    _PlainYaml.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), None)


def _parse(text, where):
    try:
        return yaml.load(text, _PlainYaml)
    except (yaml.YAMLError, ValueError) as error:
        raise Unusable(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error


def _line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())


def _unknown(kind, name, known):
    return Unusable(f"unknown {kind} {name!r}{near(name, known)}; known: {', '.join(sorted(known)) or 'none'}")


def sources():
    """Notebooks that can be run: id to file, in the order in which `all` runs them."""
    files = sorted(paths.notebooks().glob("*.ipynb"), key=lambda file: (file.stem in READERS, file.name))
    return {file.stem: file for file in files}


def read_parameters(source):
    """Parameters of a notebook, by name, as its parameters cell states them.

    Raises
    ------
    Unusable
        If the file is not a notebook, or a line of that cell has no type or no literal value.
    """
    try:
        entries = papermill.inspect_notebook(source)
    except Exception as error:  # cut short, not JSON, JSON of something else, no kernel: whatever makes it unreadable
        raise Unusable(f"{source}: expected a notebook, but it cannot be read ({_line(error)})") from error
    found = {}
    for name, entry in entries.items():
        try:
            default = ast.literal_eval(entry["default"])
            TypeAdapter(eval(entry["inferred_type_name"])).validate_python(default, strict=True)
        except Exception as error:  # an annotation can be anything
            raise Unusable(
                f"{source}: parameter {name!r}: expected a line `name: type = literal  # help` ({_line(error)})"
            ) from error
        found[name] = Parameter(name, entry["inferred_type_name"], default, entry["help"].strip())
    return found


def _checked(parameter, value, where):
    """The value in the type of its parameter; a scalar may stand for a list of one, an integer for a float."""
    listed = [value] if parameter.type.startswith("list[") and not isinstance(value, list) else value
    about = f"{where}: {parameter.name}" + (f" ({parameter.help})" if parameter.help else "")
    try:
        checked = TypeAdapter(eval(parameter.type)).validate_python(listed, strict=True)
    except ValidationError as error:
        raise Unusable(f"{about}: expected {parameter.type}, got {value!r}") from error
    if checked != parameter.default:
        for item in checked if isinstance(checked, list) else [checked]:
            _check_meaning(parameter.name, item, about)
    return checked


def _check_meaning(name, value, about):
    """Refuse what the package would refuse after a kernel has started: an unknown name, a number out of range."""
    if name in ASKED:  # models of an endpoint can have any name
        if not value.strip():
            raise Unusable(f"{about}: expected the name of a model, or none, got {value!r}")
        return
    known = {
        "dataset": benchmarks.NAMES, "encoder": encoders.REGISTRY, "encoders": encoders.REGISTRY,
        "rerankers": rerankers.NAMES,
    }.get(name)  # fmt: skip
    if known is not None:
        if value not in known:
            raise Unusable(f"{about}: expected one of {', '.join(known)}, got {value!r}{near(value, known)}")
        return
    model = _model_with(name)
    if model is None:
        return
    field = model.model_fields[name]
    try:
        TypeAdapter(Annotated[field.annotation, *field.metadata], config=model.model_config).validate_python(value)
    except ValidationError as error:
        expected = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise Unusable(f"{about}: expected {expected}, got {value!r}") from error


def _model_with(name):
    """The settings that have a field of this name, None if it is a notebook's own."""
    if name in Config.model_fields:
        return Config
    from earlib.experiments.settings import Setting  # here because it brings torch, which takes seconds

    return Setting if name in Setting.model_fields else None


def load_profile(name):
    """A profile, checked as far as it can be without the notebooks.

    Raises
    ------
    Unusable
        If there is no such profile, or its file is malformed; the message names file and field.
    """
    file = paths.profiles() / f"{name}.yaml"
    known = [other.stem for other in paths.profiles().glob("*.yaml")]
    if name not in known:
        raise _unknown("profile", name, known)
    try:
        return Profile.model_validate(_parse(file.read_text(encoding="utf-8"), file))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole file"
        raise Unusable(f"{file}: {field}: {first['msg']}") from error


def _of_machine(profile):
    """What a profile says of the machine, as variables for a kernel."""
    given = {
        "EARLIB_DEVICE": profile.device, "EARLIB_PRECISION": profile.precision, "EARLIB_DTYPE": profile.dtype,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value}


def _check_names(profile, name, known, parameters):
    """Refuse a profile that speaks of notebooks or parameters which do not exist.

    `parameters` lacks those of `known` that cannot be read; what may be theirs passes.
    """
    file = paths.profiles() / f"{name}.yaml"
    for notebook in profile.notebooks:
        if notebook not in known:
            raise _unknown(f"notebook in {file}", notebook, known)
    everywhere = {key for own in parameters.values() for key in own}
    everywhere = everywhere if len(parameters) == len(known) else None
    places = [("defaults", profile.defaults, everywhere), ("grid", profile.grid, everywhere)]
    places += [(f"notebooks.{one}", given or {}, parameters.get(one)) for one, given in profile.notebooks.items()]
    for where, given, had in places:
        for key in given:
            if key in SET_BY_RUN:
                raise Unusable(f"{file}: {where}: {key} is set by the run itself; leave it out")
            if had is not None and key not in had:
                raise _unknown(f"parameter in {where} of {file}", key, set(had) - set(SET_BY_RUN))
    for key in profile.grid:
        if key in profile.defaults:
            raise Unusable(f"{file}: grid: {key} stands in defaults too; leave it out there")


GROUPS = ("all", "reproduction", "extensions")
BEYOND = re.compile(r"ext\d\d_|agent_memory$")  # notebooks that go beyond the paper


def beyond(name):
    """Whether a notebook, or its result, goes beyond the paper: one of the extensions."""
    return bool(BEYOND.match(name.partition("--")[0]))


def _chosen(names, known):
    """The notebooks asked for, those of a group in the order of their names."""
    held = {"all": known, "reproduction": [], "extensions": []}
    for name in known:
        held["extensions" if beyond(name) else "reproduction"].append(name)
    for name in names:
        if name not in known and name not in GROUPS:
            raise _unknown("notebook", name, [*known, *GROUPS])
    return list(dict.fromkeys(one for name in names for one in held.get(name, [name])))


def make_plans(names, profile_name, own):
    """Check a request in full and say what it will run.

    Parameters
    ----------
    names : list of str
        Ids of notebooks, or a group of them: one of `GROUPS`.
    profile_name : str
    own : dict of str to str
        Parameters of the command line, as typed. Each goes to every notebook that has it.

    Returns
    -------
    list of Plan
        A notebook whose parameters differ from the profile's, where it has a grid from the first combination of its
        values, gets a name of its own.

    Raises
    ------
    Unusable
        For an unknown notebook, profile, parameter, dataset or encoder, a value of the wrong type or out of range,
        or a notebook that cannot be read; one that is not asked for may be unreadable.
    """
    known = sources()
    profile = load_profile(profile_name)
    chosen = _chosen(names, known)
    if not chosen:
        raise Unusable(f"there is no notebook in {paths.notebooks()}")
    parameters = {}
    for name, source in known.items():
        try:
            parameters[name] = read_parameters(source)
        except Unusable:
            if name in chosen:
                raise
    _check_names(profile, profile_name, known, parameters)
    _check_own(own, {key for name in chosen for key in parameters[name]})
    return [plan for name in chosen for plan in _plans(known[name], profile, profile_name, parameters[name], own)]


def _check_own(own, known):
    for key in own:
        if key in SET_BY_RUN:
            raise Unusable(f"parameter {key!r} is set by the run itself; use --profile, and name the notebook")
        if key not in known:
            raise _unknown("parameter", key, known - set(SET_BY_RUN))


def _plans(source, profile, profile_name, known, own):
    """Those of one notebook: one for each combination of its values in the profile's grid."""
    missing = [key for key in SET_BY_RUN if key not in known]
    if missing:
        raise Unusable(f"{source}: the parameters cell lacks `{missing[0]}: str`, which every notebook has")
    given, axes = _given(source, profile, paths.profiles() / f"{profile_name}.yaml", known)
    chosen = {}
    for key, text in own.items():
        if key in known:
            value = text if known[key].type == "str" else _parse(text, f"parameter {key}")
            chosen[key] = _checked(known[key], value, "command line")
    free = {key: values for key, values in axes.items() if key not in chosen}
    made = []
    for combination in itertools.product(*free.values()):
        name, parameters = source.stem, dict(given)
        for key, value in sorted((chosen | dict(zip(free, combination, strict=True))).items()):
            if value != given.get(key, known[key].default):  # one that changes nothing must leave the committed bytes
                name += f"--{key}-{_slug(value)}"
                parameters[key] = value
        name = _shortened(name, LONGEST_NAME, name)
        parameters = {"profile": profile_name, "name": name} | parameters
        made.append(Plan(source, name, profile_name, parameters, _of_machine(profile)))
    return made


def _given(source, profile, file, known):
    """What a profile says of one notebook: its parameters, the first of each list of the grid, and those lists."""
    single = profile.notebooks.get(source.stem) or {}
    common = {key: value for key, value in profile.defaults.items() if key in known}
    given = {key: _checked(known[key], value, f"{file}: defaults") for key, value in common.items()}
    given |= {key: _checked(known[key], value, f"{file}: notebooks.{source.stem}") for key, value in single.items()}
    axes = {}
    for key, values in profile.grid.items():
        if key not in known:
            continue
        axes[key] = [_checked(known[key], value, f"{file}: grid") for value in values]
        again = [value for at, value in enumerate(axes[key]) if value in axes[key][:at]]
        if again:
            raise Unusable(f"{file}: grid: {key}: {again[0]!r} stands there twice")
    axes = {key: values for key, values in axes.items() if key not in single}
    return given | {key: values[0] for key, values in axes.items()}, axes


def own_names(profile_name):
    """Names of all results that a profile makes by itself, in the order in which they are made.

    Returns
    -------
    dict of str to dict
        The parameters by name; those of a profile that cannot be used are unknown, and its names the notebooks'.
    """
    try:
        return {plan.name: plan.parameters for plan in make_plans(["all"], profile_name, {})}
    except Unusable:
        return {name: {} for name in sources()}


def _slug(value):
    """The value as part of a file name; one that cannot be read back from it is told apart by a hash."""
    if isinstance(value, list) and value:
        return "+".join(_slug(item) for item in value)
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", text)  # also `--`, which stands between parameters
    exact = plain and plain == text and (not isinstance(value, float) or float(text) == value)
    return _shortened(plain, 60, repr(value), always=not exact)


def _shortened(text, length, whole, always=False):
    """Text of at most so many characters; what was cut, or has to be told apart anyway, gets a hash of the whole."""
    if len(text) <= length and not always:
        return text
    return f"{text[: length - 7].rstrip('-')}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"


class _ThisInterpreter(KernelSpecManager):
    """Offers one kernel, the interpreter that runs now, whatever other kernels the user has."""

    environment = {}

    def get_kernel_spec(self, kernel_name):
        quiet = ["--log-level=ERROR"]  # a kernel whose worker was killed would warn of it
        return KernelSpec(**get_kernel_dict(quiet), env=self.environment)  # its command starts with sys.executable


class Runner:
    """Runs plans, and can be stopped at any moment without touching older results.

    Parameters
    ----------
    environment : dict of str to str, optional
        Further variables for all kernels.
    estimates : Path, optional
        A folder: no language model is asked and nothing is published or kept; what each notebook would ask is noted
        there, in a file of its name.
    client : distributed.Client, optional
        Its workers run the notebooks, as many at a time as there are workers; default: here, one after another. What
        reads the records of others runs here in any case.
    apart : bool
        The workers share no disk with this machine: what asks a language model runs here too, where the ledger and
        the kept replies are.
    """

    def __init__(self, environment=None, estimates=None, client=None, apart=False):
        self.environment, self.estimates, self.client, self.apart = environment or {}, estimates, client, apart
        self.kernels, self.tasks, self.begun = set(), set(), {}
        self.stopped = threading.Event()
        self.watch = None

    def run(self, plans):
        """Run all plans, also after one of them failed; those that read the records of others start last.

        Returns
        -------
        list of Outcome
            In the order in which they were started.

        Raises
        ------
        KeyboardInterrupt
            After Ctrl-C, when every kernel is gone.
        """
        if self.client is not None:
            from earlib.harness.machines import Watch  # here because it brings torch, which takes seconds

            profiles = {plan.name: plan.profile for plan in plans}
            self.watch = Watch(self.client, lambda name, worker: self._begin(name, profiles[name], worker))
        futures = []
        with ThreadPoolExecutor(1) as here, ThreadPoolExecutor(max(1, len(plans))) as elsewhere:
            try:
                for reads in (False, True):
                    wave = [plan for plan in plans if (plan.source.stem in READERS) is reads]
                    futures += [(here if self._stays(plan) else elsewhere).submit(self._run_one, plan) for plan in wave]
                    wait(futures)
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                self.stopped.set()
                for pool in (here, elsewhere):
                    pool.shutdown(wait=False, cancel_futures=True)
                self._stop_workers()
                while not all(future.done() for future in futures):  # `wait` never counts a cancelled one as done
                    self.kill_kernels()
                    time.sleep(0.2)
                raise

    def _stays(self, plan):
        asks = self.apart and _model_of(plan) != "none"
        return self.client is None or plan.source.stem in READERS or asks

    def _begin(self, name, profile, worker=None):
        self.begun[name] = time.monotonic()
        print(f"{name}: running, profile {profile}{f', on {worker}' if self.apart and worker else ''}", flush=True)

    def _stop_workers(self):
        """Start nothing more on workers, and end the kernels there."""
        if self.client is not None:
            self.client.cancel(list(self.tasks))
            while any(self.client.run(_kill_kernels_of, self.watch.topic, on_error="ignore").values()):
                time.sleep(0.2)

    def kill_kernels(self):
        """End all kernels of this process at once."""
        for kernel in list(self.kernels):
            if kernel.provisioner is not None and kernel.provisioner.pid:
                try:
                    os.kill(kernel.provisioner.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def _run_one(self, plan):
        work, computed, error = None, False, None
        try:
            work = _work_folder(plan, self.estimates or paths.build() / plan.profile)
            if self._stays(plan):
                self._begin(plan.name, plan.profile)
                self.execute(plan, work, bar=self.client is None and sys.stderr.isatty())
            else:
                self._execute_elsewhere(plan, work)
            if self.estimates is None:
                computed = True
                _publish(plan, work)
                _broken(plan).unlink(missing_ok=True)  # of an earlier run
        except Exception as caught:
            error = _explain(caught)
            if computed:
                error += f"\n  all that it computed is kept in {work}"
            elif self.estimates is None and _came_far(plan, work) and not self.stopped.is_set():
                os.replace(work / f"{plan.name}.ipynb", _broken(plan))
                error += f"\n  the notebook as far as it came: {_broken(plan)}"
        if work and not (error and computed):
            shutil.rmtree(work, ignore_errors=True)
        now = time.monotonic()
        seconds = now - self.begun.get(plan.name, now)
        if not self.stopped.is_set():
            target = paths.results() / plan.profile / f"{plan.name}.ipynb"
            done = f"done in {seconds:.1f} s: {target}" if self.estimates is None else f"estimated in {seconds:.1f} s"
            after = f"FAILED after {seconds:.1f} s: {error}" if error else done
            print(f"{plan.name}: {after}", file=sys.stderr if error else sys.stdout, flush=True)
        return Outcome(plan, seconds, error)

    def execute(self, plan, work, bar=False):
        """Run the notebook in a kernel of its own; its standard error is shown as it comes."""
        specs = _ThisInterpreter()
        machine = {name: value for name, value in plan.machine.items() if name not in os.environ}
        specs.environment = (
            machine
            | self.environment
            | {
                "EARLIB_ROOT": str(paths.ROOT),
                "EARLIB_RESULTS": str(work / "results"),
                "EARLIB_RECORDS": os.environ.get("EARLIB_RECORDS") or str(paths.results().absolute()),
            }
        )
        notes = "" if self.estimates is None else str(self.estimates / f"{plan.name}.jsonl")
        specs.environment["EARLIB_LLM_ESTIMATE"] = notes  # never the caller's own: results would come of estimates
        kernel = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=specs, transport_encryption="auto")
        self.kernels.add(kernel)
        try:
            papermill.execute_notebook(
                plan.source,
                work / f"{plan.name}.ipynb",
                plan.parameters,
                kernel_name="python3",
                km=kernel,
                progress_bar={"desc": plan.name, "leave": False} if bar else False,
                stderr_file=sys.stderr,
                start_timeout=120,
                coalesce_streams=True,
            )
        finally:
            if kernel.has_kernel:
                asyncio.run(kernel.shutdown_kernel(now=True))
            self.kernels.discard(kernel)

    def _execute_elsewhere(self, plan, work):
        """Let a worker run the notebook; what it leaves comes back into `work`."""
        from earlib.harness.machines import explain

        environment = {} if self.apart else self.environment
        sent = plan, plan.source.read_bytes(), environment, self.estimates, self.watch.topic
        task = self.watch.submit(execute_here, plan.name, *sent)
        self.tasks.add(task)
        try:
            files, error = task.result()
        except Exception as caught:  # of a worker; what a notebook raises comes with what it left
            raise Elsewhere(explain(caught)) from caught
        finally:
            self.tasks.discard(task)
        for name, content in files.items():
            paths.write_atomically(work / name, content)
        if error:
            raise Elsewhere(error)


class Elsewhere(RuntimeError):
    """A notebook failed on a worker; the message is what would be told had it failed here."""


_RUNNERS = {}  # in a worker: the runners that hold a kernel now, by the topic of the client that asked


def execute_here(plan, source, environment, estimates, topic):
    """On a worker: run a notebook in a folder that is gone afterwards.

    Parameters
    ----------
    plan : Plan
    source : bytes
        Content of the notebook, which the worker need not have.
    environment, estimates
        As of `Runner`.
    topic : str
        Names the client, so that it can end its kernels.

    Returns
    -------
    files : dict of str to bytes
        What the run left, by path in its folder.
    error : str or None
        Why it failed.
    """
    work, error = _work_folder(plan, paths.build() / plan.profile), None
    runner = Runner(environment, estimates)
    _RUNNERS.setdefault(topic, set()).add(runner)
    try:
        (work / "source.ipynb").write_bytes(source)
        runner.execute(plan._replace(source=work / "source.ipynb"), work)
    except Exception as caught:
        error = _explain(caught)
    finally:
        _RUNNERS[topic].discard(runner)
        files = {str(file.relative_to(work)): file.read_bytes() for file in work.rglob("*") if file.is_file()}
        shutil.rmtree(work, ignore_errors=True)
    files.pop("source.ipynb", None)
    return files, error


def _kill_kernels_of(topic):
    """In a worker: end the kernels of a client; how many notebooks of it have not ended yet."""
    runners = list(_RUNNERS.get(topic, ()))
    for runner in runners:
        runner.kill_kernels()
    return len(runners)


def _share_of_cores(kernels):
    """What several kernels at a time are told, so that together they ask for no more threads than there are cores."""
    if kernels == 1:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // kernels))}


@contextlib.contextmanager
def _runner(plans, jobs, scheduler=None, environment=None, estimates=None):
    """A Runner of these plans: here, or on workers where there is a scheduler or more than one job."""
    jobs = min(jobs, len(plans))
    if scheduler is None and jobs == 1:
        yield Runner(environment, estimates)
        return
    from earlib.harness import machines

    environment = (environment or {}) | _share_of_cores(1 if scheduler else jobs)
    try:
        with machines.connect(scheduler, jobs) as client:
            yield Runner(environment, estimates, client, apart=scheduler is not None)
    except machines.Unreachable as error:
        raise Unusable(error) from error


def _work_folder(plan, folder):
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{plan.name}.", dir=folder))


def _came_far(plan, work):
    return work is not None and (work / f"{plan.name}.ipynb").exists()


def _broken(plan):
    """Where a notebook goes that failed."""
    return paths.build() / plan.profile / f"{plan.name}.ipynb"


def _explain(error):
    if isinstance(error, PapermillExecutionError):
        told = f"{error.ename}: {error.evalue}"
        lacks_data = error.ename == "Unavailable" and "EARLIB_DATA" in error.evalue
        return told + "\n  without data: PROFILE=smoke, on dialogues that the package makes" * lacks_data
    if isinstance(error, Elsewhere):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _check_writable(plans):
    """Refuse to compute what could not be kept."""
    places = {paths.results() / plan.profile: "EARLIB_RESULTS" for plan in plans} | {paths.build(): "EARLIB_BUILD"}
    for folder, variable in places.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise Unusable(
                f"cannot write into {folder}: {error.strerror}; make it writable, or name another with {variable}"
            ) from error


def _publish(plan, work):
    """Put the results in their place: record and figures first, then the notebook that shows them."""
    target = paths.results() / plan.profile
    left = work / "results" / plan.profile
    for file in sorted(left.rglob("*")):
        if file.is_file():
            paths.write_atomically(target / file.relative_to(left), file.read_bytes())
    notebook = strip(nbformat.read(work / f"{plan.name}.ipynb", as_version=4))
    paths.write_atomically(target / f"{plan.name}.ipynb", nbformat.writes(notebook) + "\n")


def strip(notebook):
    """Drop from an executed notebook what differs between two runs that computed the same.

    Times, folders and versions that papermill and Jupyter add go; so does standard error, which tells what the
    caches held. The parameters stay.
    """
    notebook.metadata["papermill"] = {"parameters": notebook.metadata["papermill"]["parameters"]}
    notebook.metadata.get("language_info", {}).pop("version", None)
    for cell in notebook.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        tags = cell.metadata.get("tags")
        if tags == []:
            del cell.metadata["tags"]
        elif tags and "injected-parameters" in tags:
            cell["id"] = "injected-parameters"
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def _usable_profile(name, own):
    """The profile, or `smoke` in its place where its dataset cannot be had."""
    profile = load_profile(name)
    wanted = profile.grid.get("dataset", [profile.defaults.get("dataset")])
    wanted = [own["dataset"]] if "dataset" in own else wanted
    if name == "smoke" or wanted == [None]:
        return name
    try:
        for dataset in wanted:
            benchmarks.load(dataset)
    except OSError as error:
        print(f"{error}; running the profile smoke, on made dialogues, instead of {name}", flush=True)
        return "smoke"
    except ValueError as error:
        raise Unusable(error) from error
    return name


def summarise(outcomes):
    """One line a notebook: seconds, and the verdicts that its record holds."""
    lines = [("notebook", "seconds", "verdicts")]
    for outcome in outcomes:
        record = paths.results() / outcome.plan.profile / f"{outcome.plan.name}.json"
        verdicts = "FAILED"
        if outcome.error is None:
            rows = json.loads(record.read_text(encoding="utf-8"))["rows"] if record.exists() else []
            counts = collections.Counter(row["verdict"] for row in rows if row.get("verdict"))
            verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "-"
        lines.append((outcome.plan.name, f"{outcome.seconds:.1f}", verdicts))
    width = max(len(line[0]) for line in lines)
    return "\n".join(f"{name:{width}}  {seconds:>7}  {verdicts}" for name, seconds, verdicts in lines)


def describe():
    """All notebooks with title and parameters."""
    lines = []
    for name, source in sources().items():
        parameters = read_parameters(source).values()
        cells = nbformat.read(source, as_version=4).cells
        title = cells[0].source.partition("\n")[0].lstrip("# ") if cells else ""
        lines.append(f"{name}: {title}")
        for parameter in parameters:
            if parameter.name not in SET_BY_RUN:
                stated = f"{parameter.name}: {parameter.type} = {parameter.default!r}"
                lines.append(f"    {stated:40}  {parameter.help}".rstrip())
    return "\n".join(lines)


def _joined(arguments):
    """`-p key value`, papermill's form, as `-p key=value`."""
    given, joined = iter(arguments), []
    for argument in given:
        if argument == "-p":
            pair = next(given, "")
            if pair and "=" not in pair:
                pair = f"{pair}={next(given, '')}"
            joined += [argument, pair]
        else:
            joined.append(argument)
    return joined


def _read_arguments(arguments):
    parser = argparse.ArgumentParser(prog="python -m earlib.run", description="Run notebooks of the paper headless.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"ids of notebooks, or {', '.join(GROUPS)}")
    parser.add_argument("--profile", default="laptop", help="a file of notebooks/profiles (default: laptop)")
    parser.add_argument("-p", action="append", default=[], metavar="KEY=VALUE", help="a parameter; may be repeated")
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--jobs", type=int, default=1, metavar="N", help="notebooks at a time (default: 1)")
    engine.add_argument("--scheduler", metavar="ADDRESS", help="of a dask scheduler whose workers run the notebooks")
    parser.add_argument("--max-calls", type=int, metavar="N", help="calls of language models in the whole run, at most")
    parser.add_argument("--max-cost", type=float, metavar="DOLLARS", help="what they may cost, at most")
    parser.add_argument("--estimate", action="store_true", help="say what they would cost; ask and write nothing")
    parser.add_argument("--list", action="store_true", help="show notebooks and their parameters")
    options = parser.parse_args(_joined(arguments))
    if not options.names and not options.list:
        parser.error(f"name a notebook, or one of {', '.join(GROUPS)}; there are {', '.join(sources()) or 'none'}")
    if options.jobs < 1:
        parser.error("--jobs: expected 1 or more")
    for name in ("max_calls", "max_cost"):
        if getattr(options, name) is not None and not 0 <= getattr(options, name) < float("inf"):
            parser.error(f"--{name.replace('_', '-')}: expected 0 or more")
        if getattr(options, name) is not None and options.estimate:
            parser.error(f"--estimate asks nothing; leave out --{name.replace('_', '-')}")
    if options.estimate and options.scheduler:
        parser.error("--estimate asks and computes next to nothing; leave out --scheduler")
    for pair in options.p:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            parser.error(f"-p: expected key=value, got {pair!r}")
    return options, dict(pair.split("=", 1) for pair in options.p)


def main(arguments=None):
    """Command line; returns the exit code: 0, 1 if a notebook failed, 2 for a bad request, 130 after Ctrl-C."""
    options, own = _read_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.list:
            print(describe())
            return 0
        if options.estimate:
            return _estimate(options.names, options.profile, own, options.jobs)
        limits = {"EARLIB_LLM_MAX_CALLS": options.max_calls, "EARLIB_LLM_MAX_COST": options.max_cost}
        return _run(options.names, options.profile, own, options.jobs, options.scheduler, limits)
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; older results are as they were", file=sys.stderr)
        return 130


def _run(names, profile, own, jobs, scheduler, limits):
    plans = _usable_plans(names, profile, own)
    _check_writable(plans)
    with tempfile.TemporaryDirectory(prefix="ledger.", dir=paths.build()) as folder:
        ledger = Path(folder) / "ledger.json"
        environment = {name: str(limit) for name, limit in limits.items() if limit is not None}
        try:
            with _runner(plans, jobs, scheduler, environment | {"EARLIB_LLM_LEDGER": str(ledger)}) as runner:
                outcomes = runner.run(plans)
        finally:
            if ledger.exists():
                with Ledger(ledger).changing() as totals:
                    print(f"language models: {took(totals)}", flush=True)
    if set(names) & set(GROUPS):
        print(summarise(outcomes))
        print(f"to read them, each beside the paper's numbers: make report PROFILE={plans[0].profile}")
    return 1 if any(outcome.error for outcome in outcomes) else 0


def took(totals):
    """Calls and cost of a `budget.Ledger`; what a killed kernel held back counts as spent."""
    cost = totals["spent"] + totals["held"]
    if totals["unpriced"] in (0, totals["calls"]):
        return f"{totals['calls']:,} calls, {shown(None if totals['unpriced'] else cost)}"
    return f"{totals['calls']:,} calls, of {totals['unpriced']:,} the cost is unknown, of the others {shown(cost)}"


def _estimate(names, profile, own, jobs):
    """Run the notebooks that ask language models without asking any, and say what they would take."""
    plans = _usable_plans(names, profile, own)
    asking = [plan for plan in plans if _model_of(plan) != "none"]
    silent = [plan.name for plan in plans if plan not in asking]
    if silent:
        print(f"no language model is asked by {', '.join(silent)}", flush=True)
    if asking:
        with tempfile.TemporaryDirectory() as folder:
            with _runner(asking, jobs, estimates=Path(folder)) as runner:
                outcomes = runner.run(asking)
            print(estimated(Path(folder), outcomes))
        return 1 if any(outcome.error for outcome in outcomes) else 0
    return 0


def _model_of(plan):
    """The language model that a notebook asks, "none" also if it has no parameter for one."""
    known = read_parameters(plan.source)
    return plan.parameters.get("llm", known["llm"].default) if "llm" in known else "none"


def estimated(folder, outcomes):
    """What notebooks would ask of language models, one line each and in total; equal requests count once in all.

    Parameters
    ----------
    folder : Path
        Of the notes that the kernels left.
    outcomes : list of Outcome
        A request counts in the first notebook that makes it.
    """
    lines, total = [("notebook", "calls", "in the cache", "tokens in", "tokens out", "cost")], {}
    for plan, _, error in outcomes:
        file = folder / f"{plan.name}.jsonl"
        notes = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        fresh = {note["key"]: note for note in notes if note["key"] not in total}
        total |= fresh
        lines.append((plan.name + (" (FAILED, as far as it came)" if error else ""), *_summed(fresh.values())))
    lines.append(("in all", *_summed(total.values())))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    return "\n".join([*rows, *ASSUMED])


def _summed(notes):
    asked = [note for note in notes if not note["cached"]]
    costs = [note["cost"] for note in asked]
    counts = len(asked), len(notes) - len(asked), sum(note["in"] for note in asked), sum(note["out"] for note in asked)
    return *(f"{count:,}" for count in counts), shown(None if None in costs else sum(costs))


def _usable_plans(names, profile, own):
    plans = make_plans(names, profile, own)
    if set(names) & set(GROUPS):
        usable = _usable_profile(profile, own)
        if usable != profile:
            plans = make_plans(names, usable, {key: own[key] for key in own if key != "dataset"})
    return plans


if __name__ == "__main__":
    from earlib.harness import (
        runner,  # what workers are to run must be found there in a module, which `__main__` is not
    )

    sys.exit(runner.main())
