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


class Plan(NamedTuple):
    """One notebook about to run; `name` is its id, or id and own parameters."""

    source: Path
    name: str
    profile: str
    parameters: dict  # where they differ from the notebook's own defaults
    every: dict  # all of them
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
    notebooks: dict[str, dict[str, Any]] = {}


def _parse(text, where):
    """The lists and texts of a YAML text; a text is a number where its parameter is one."""
    try:
        return yaml.load(text, yaml.BaseLoader)
    except yaml.YAMLError as error:
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
    groups = {
        "all": known,
        "reproduction": [name for name in known if not beyond(name)],
        "extensions": [name for name in known if beyond(name)],
    }
    for name in names:
        if name not in known and name not in groups:
            raise _unknown("notebook", name, [*known, *groups])
    return list(dict.fromkeys(one for name in names for one in groups.get(name, [name])))


def make_plans(names, profile_name, own):
    """Check a request in full and return its plans; every mistake in it raises Unusable before anything runs.

    A notebook whose parameters differ from the profile's gets a name of its own.
    """
    known, profile = notebooks.sources(), load_profile(profile_name)
    wanted = chosen(names, known)
    if not wanted:
        raise Unusable(f"there is no notebook in {paths.notebooks()}")
    models = {name: notebooks.parameters(source) for name, source in known.items()}
    fields = {name: model.model_fields.keys() - set(SET_BY_RUN) for name, model in models.items()}
    _check_profile(profile, _file(profile_name), fields)
    had = set().union(*(fields[name] for name in wanted))
    for key in own:
        if key not in had:
            raise _unknown("parameter", key, had)
    return [_plan(known[name], models[name], profile, profile_name, own) for name in wanted]


def _check_profile(profile, file, fields):
    """Refuse a profile that speaks of notebooks or parameters which do not exist; `fields` are those that do."""
    for notebook in profile.notebooks:
        if notebook not in fields:
            raise _unknown(f"notebook in {file}", notebook, fields)
    places = [("defaults", profile.defaults, set().union(*fields.values()))]
    places += [(f"notebooks.{name}", given, fields[name]) for name, given in profile.notebooks.items()]
    for where, given, had in places:
        for key in given:
            if key not in had:
                raise _unknown(f"parameter in {where} of {file}", key, had)


def _plan(source, model, profile, profile_name, own):
    fields, file = model.model_fields, _file(profile_name)
    if not fields.keys() >= set(SET_BY_RUN):
        raise Unusable(f"{source}: the parameters cell lacks `profile: str` or `name: str`, which every notebook has")
    common = {key: value for key, value in profile.defaults.items() if key in fields}
    single = profile.notebooks.get(source.stem, {})
    given = validated(model, common, f"{file}: defaults")
    given |= validated(model, single, f"{file}: notebooks.{source.stem}")
    mine = {key: text for key, text in own.items() if key in fields}
    mine = {key: text if fields[key].title == "str" else _parse(text, f"parameter {key}") for key, text in mine.items()}
    name, defaults = source.stem, {key: field.default for key, field in fields.items()}
    for key, value in sorted(validated(model, mine, "command line").items()):
        if value != (defaults | given)[key]:  # one that changes nothing leaves the committed bytes
            name += f"--{key}-{slug(value)}"
            given[key] = value
    parameters = {"profile": profile_name, "name": name} | given
    every = defaults | parameters
    machine = {"EARLIB_DEVICE": profile.device, "EARLIB_PRECISION": profile.precision, "EARLIB_DTYPE": profile.dtype}
    return Plan(
        source=source,
        name=name,
        profile=profile_name,
        parameters=parameters,
        every=every,
        machine={variable: value for variable, value in machine.items() if value},
        models=tuple(sorted({every[key] for key in notebooks.ASKED if key in every} - {"none"})),
        depth=str(given.get("depth", "")) if notebooks.takes_depth(model) else "",
    )


def slug(value):
    """The value as part of a file name: as it is written, with a hash where that is too long, or not plain."""
    if isinstance(value, list) and value:
        text = plain = "+".join(map(slug, value))
    else:
        text = f"{value:.12g}" if isinstance(value, float) else str(value)
        plain = re.sub(r"[^A-Za-z0-9._]+|\.+$", "-", text)  # also `--`, which stands between parameters
    exact = text and text == plain[:60] and (not isinstance(value, float) or float(text) == value)
    return plain if exact else f"{plain[:60].rstrip('-')}-{hashlib.sha256(repr(value).encode()).hexdigest()[:6]}"
