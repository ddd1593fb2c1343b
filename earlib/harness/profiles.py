"""Profiles and plans: which notebooks a request runs, with which parameters and under which names."""

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import AfterValidator, BaseModel, ValidationError

from earlib import devices, paths
from earlib.core.config import near
from earlib.harness import notebooks
from earlib.harness.notebooks import Unusable, validated

SET_BY_RUN = ("profile", "name")  # parameters that say where a result belongs
GROUPS = ("all", "reproduction", "extensions")
BEYOND = re.compile(r"ext\d\d_|agent_memory$")  # notebooks that go beyond the paper
LONGEST_NAME = 120  # characters; file systems allow 255 with suffixes and all


class Plan(NamedTuple):
    """One notebook about to run; `name` is its id, or id and own parameters."""

    source: Path
    name: str
    profile: str
    parameters: dict
    machine: dict  # variables by which the profile names a device, where the environment names none
    models: tuple  # the language models that it asks
    depth: str = ""  # K of all its configurations, "" for the paper's


class Profile(BaseModel, extra="forbid"):
    """Parameters for every notebook that has them, and for single notebooks.

    `device`, `precision` and `dtype` are those of `earlib.devices`, where the environment names no other.
    """

    title: str
    device: Annotated[str, AfterValidator(devices.check)] | None = None
    precision: Literal[tuple(devices.PRECISIONS)] | None = None
    dtype: Literal[devices.DTYPES] | None = None
    defaults: dict[str, Any] = {}
    notebooks: dict[str, dict[str, Any] | None] = {}


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


def _unknown(kind, name, known):
    return Unusable(f"unknown {kind} {name!r}{near(name, known)}; known: {', '.join(sorted(known)) or 'none'}")


def _file(name):
    return paths.profiles() / f"{name}.yaml"


def load_profile(name):
    """Read a profile and check it as far as is possible without the notebooks."""
    known = [file.stem for file in paths.profiles().glob("*.yaml")]
    if name not in known:
        raise _unknown("profile", name, known)
    try:
        return Profile.model_validate(_parse(_file(name).read_text(encoding="utf-8"), _file(name)))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole file"
        raise Unusable(f"{_file(name)}: {field}: {first['msg']}") from error


def beyond(name):
    """Return whether a notebook, or its result, goes beyond the paper: one of the extensions."""
    return bool(BEYOND.match(name.partition("--")[0]))


def chosen(names, known):
    """The notebooks asked for, each once, those of a group in the order of `known`."""
    for name in names:
        if name not in known and name not in GROUPS:
            raise _unknown("notebook", name, [*known, *GROUPS])
    groups = {
        "all": known,
        "reproduction": [name for name in known if not beyond(name)],
        "extensions": [name for name in known if beyond(name)],
    }
    return list(dict.fromkeys(one for name in names for one in groups.get(name, [name])))


def make_plans(names, profile_name, own):
    """Check a request in full and return its plans; every mistake in it raises Unusable before anything runs.

    A notebook whose parameters differ from the profile's gets a name of its own. A notebook that is not asked for may
    be unreadable.
    """
    known, profile, models = notebooks.sources(), load_profile(profile_name), {}
    wanted = chosen(names, known)
    if not wanted:
        raise Unusable(f"there is no notebook in {paths.notebooks()}")
    for name, source in known.items():
        try:
            models[name] = notebooks.parameters(source)
        except Unusable:
            if name in wanted:
                raise
    _check_profile(profile, _file(profile_name), known, models)
    had = {key for name in wanted for key in models[name].model_fields}
    for key in own:
        if key in SET_BY_RUN:
            raise Unusable(f"parameter {key!r} is set by the run itself; use --profile, and name the notebook")
        if key not in had:
            raise _unknown("parameter", key, had - set(SET_BY_RUN))
    return [_plan(known[name], models[name], profile, profile_name, own) for name in wanted]


def _check_profile(profile, file, known, models):
    """Refuse a profile that speaks of notebooks or parameters which do not exist.

    `models` lacks those notebooks of `known` that cannot be read; a name that may be theirs passes.
    """
    for notebook in profile.notebooks:
        if notebook not in known:
            raise _unknown(f"notebook in {file}", notebook, known)
    fields = {name: set(model.model_fields) for name, model in models.items()}
    everywhere = set().union(*fields.values()) if len(models) == len(known) else None
    places = [("defaults", profile.defaults, everywhere)]
    places += [(f"notebooks.{one}", given or {}, fields.get(one)) for one, given in profile.notebooks.items()]
    for where, given, had in places:
        for key in given:
            if key in SET_BY_RUN:
                raise Unusable(f"{file}: {where}: {key} is set by the run itself; leave it out")
            if had is not None and key not in had:
                raise _unknown(f"parameter in {where} of {file}", key, had - set(SET_BY_RUN))


def _plan(source, model, profile, profile_name, own):
    fields = model.model_fields
    for key in SET_BY_RUN:
        if key not in fields:
            raise Unusable(f"{source}: the parameters cell lacks `{key}: str`, which every notebook has")
    given = _given(source.stem, model, profile, _file(profile_name))
    mine = [(key, text) for key, text in own.items() if key in fields]
    typed = {key: text if fields[key].title == "str" else _parse(text, f"parameter {key}") for key, text in mine}
    machine = {"EARLIB_DEVICE": profile.device, "EARLIB_PRECISION": profile.precision, "EARLIB_DTYPE": profile.dtype}
    machine = {variable: value for variable, value in machine.items() if value}
    name, parameters = source.stem, dict(given)
    for key, value in sorted(validated(model, typed, "command line").items()):
        if value != given.get(key, fields[key].default):  # one that changes nothing leaves the committed bytes
            name += f"--{key}-{slug(value)}"
            parameters[key] = value
    name = _shortened(name, LONGEST_NAME, name)
    asked = {parameters.get(key, fields[key].default) for key in notebooks.ASKED if key in fields} - {"none"}
    parameters = {"profile": profile_name, "name": name} | parameters
    depth = str(parameters.get("depth", "")) if notebooks.takes_depth(model) else ""
    return Plan(source, name, profile_name, parameters, machine, tuple(sorted(asked)), depth)


def _given(notebook, model, profile, file):
    """A notebook's parameters by its profile."""
    common = {key: value for key, value in profile.defaults.items() if key in model.model_fields}
    single = validated(model, profile.notebooks.get(notebook) or {}, f"{file}: notebooks.{notebook}")
    return validated(model, common, f"{file}: defaults") | single


def planned(profile_name):
    """All parameters of each notebook in a profile, by name; none of a profile that cannot be used."""
    try:
        return {plan.name: all_parameters(plan) for plan in make_plans(["all"], profile_name, {})}
    except Unusable:
        return {}


def all_parameters(plan):
    """All parameters of a plan, the notebook's own defaults included."""
    fields = notebooks.parameters(plan.source).model_fields
    return {name: field.default for name, field in fields.items()} | plan.parameters


def slug(value):
    """The value as part of a file name; one that cannot be read back from it is told apart by a hash."""
    if isinstance(value, list) and value:
        return "+".join(slug(item) for item in value)
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    plain = re.sub(r"[^A-Za-z0-9._]+|\.+$", "-", text)  # also `--`, which stands between parameters
    exact = plain and plain == text and (not isinstance(value, float) or float(text) == value)
    return _shortened(plain, 60, repr(value), always=not exact)


def _shortened(text, length, whole, always=False):
    """Text of at most so many characters; what was cut, or has to be told apart anyway, gets a hash of the whole."""
    if len(text) <= length and not always:
        return text
    return f"{text[: length - 7].rstrip('-')}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"
