"""A notebook as a program: its parameters, a run in a kernel of its own, and the results that are kept."""

import ast
import asyncio
import base64
import io
import json
import logging
import os
import re
import signal
import sys
from typing import Annotated, Literal

import nbformat
import papermill
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from papermill.exceptions import PapermillExecutionError
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from earlib import paths, records
from earlib.core.config import Config, near
from earlib.data import benchmarks, encoders, rerankers
from earlib.harness.pictures import alike

READERS = ("claims",)  # notebooks that draw on the records of others; they run when all others are finished
ASKED = ("llm", "judge")  # parameters that name a language model
OWN = {"dataset": benchmarks.resolve, "encoder": encoders.resolve}
DEPTH = "K, first-stage candidates of a question"
SCALARS = {"str": str, "int": int, "float": float, "bool": bool}
logging.getLogger("papermill").setLevel(logging.CRITICAL)  # the runner tells an error itself; of Ctrl-C nothing is one
RUNNING = {}  # kernels of this process: manager to the name of who asked for it


class Unusable(ValueError):
    """A request that cannot be run; the message names the mistake and the alternatives."""


class Elsewhere(RuntimeError):
    """A notebook failed on a worker; the message is the one that would be told had it failed here."""


def sources():
    """Notebooks that can be run: id to file, in the order in which `all` runs them."""
    files = sorted(paths.notebooks().glob("*.ipynb"), key=lambda file: (file.stem in READERS, file.name))
    return {file.stem: file for file in files}


def parameters(source):
    """Pydantic model of a notebook's parameters cell, a field per line `name: type = default  # help`.

    A field's title is its type as written, its description the help. Values are strict, except that an integer may
    stand for a float and a scalar for a list of one. A notebook that assigns no `depth` has it all the same: the K of
    all its configurations.
    """
    try:
        notebook = nbformat.read(source, as_version=4)
        cells = [cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
        if "kernelspec" not in notebook.metadata:  # JSON of something else has none either
            raise ValueError("it names no kernel")
        text = "".join(cells[:1])
        body = ast.parse(text).body
    except Exception as error:  # cut short, not JSON, not Python: anything unreadable
        raise Unusable(f"{source}: expected a notebook, but it cannot be read ({_line(error)})") from error
    fields = {}
    for line in body:
        try:
            name, title = line.target.id, ast.unparse(line.annotation)
            default, annotation = ast.literal_eval(line.value), _annotation(line.annotation)
            TypeAdapter(annotation).validate_python(default, strict=True)
        except (AttributeError, ValueError, SyntaxError) as error:
            expected = f"expected a line `name: type = literal  # help` ({_line(error)})"
            raise Unusable(f"{source}: parameter {ast.unparse(line)!r}: {expected}") from error
        help = text.splitlines()[line.end_lineno - 1].encode()[line.end_col_offset :].decode().partition("#")[2]
        if title.startswith("list["):
            annotation = Annotated[annotation, BeforeValidator(lambda value: value if type(value) is list else [value])]
        annotation = Annotated[annotation, AfterValidator(_meaning(name, default))]
        fields[name] = annotation, Field(default, title=title, description=help.strip())
    if source.stem not in READERS and not any(re.search(r"^depth\b", cell.source, re.M) for cell in notebook.cells):
        least, default = (Config.model_fields[name].default for name in ("slate_size", "depth"))
        about = Field(default, title=f"int from {least} on", description=DEPTH)
        fields["depth"] = Annotated[int, Field(ge=least)], about
    config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
    return create_model(source.stem, __config__=config, **fields)


def takes_depth(model):
    """True if the `depth` of a notebook's parameters is that of all its configurations, not one of its own."""
    return "depth" in model.model_fields and model.model_fields["depth"].description == DEPTH


def _annotation(node):
    """The type that an annotation's syntax tree states; nothing is evaluated."""
    match node:
        case ast.Name(id=name) if name in SCALARS:
            return SCALARS[name]
        case ast.Constant(value=None):
            return None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _annotation(left) | _annotation(right)
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return list[_annotation(item)]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            return Literal[ast.literal_eval(choices)]
    raise ValueError(f"type {ast.unparse(node)!r}: expected {', '.join(SCALARS)}, list[...], X | None or Literal[...]")


def _line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())


def _meaning(name, default):
    """Validator that refuses what the package would refuse once a kernel has started: unknown names, ranges, files."""

    def meant(value):
        if value == default or value is None:
            return value
        if name in OWN and isinstance(value, list) and (not value or len(set(value)) < len(value)):
            raise ValueError(f"one name or several, each once, got {value!r}")
        return [_meant(name, item) for item in value] if isinstance(value, list) else _meant(name, value)

    return meant


def _meant(name, value):
    """Check a value and return it; for the user's own dataset or encoder its name instead of its path."""
    if name in ASKED:  # models of an endpoint can have any name
        if not value.strip():
            raise ValueError(f"the name of a model, or none, got {value!r}")
        return value
    if name in OWN:
        try:
            return OWN[name](value)
        except (ValueError, OSError) as error:
            raise Unusable(error) from error
    if name == "rerankers" and value not in rerankers.NAMES:
        raise ValueError(f"one of {', '.join(rerankers.NAMES)}, got {value!r}{near(value, rerankers.NAMES)}")
    model = Config
    if name not in model.model_fields:
        from earlib.experiments.settings import Setting as model  # here because it brings torch, which takes seconds
    if name in model.model_fields:
        field = model.model_fields[name]
        try:
            kind = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            TypeAdapter(kind, config=model.model_config).validate_python(value)
        except ValidationError as error:
            expected = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise ValueError(f"{expected}, got {value!r}") from error
    return value


def validated(model, given, where):
    """Given values of a notebook's parameters in their types; the message of what is refused begins with `where`."""
    try:
        made = model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = first["loc"][0]
        field = model.model_fields[name]
        about = f"{where}: {name}" + (f" ({field.description})" if field.description else "")
        meant = first.get("ctx", {}).get("error")
        if isinstance(meant, Unusable):
            raise Unusable(f"{about}: {meant}") from error
        raise Unusable(f"{about}: expected {meant or f'{field.title}, got {given[name]!r}'}") from error
    return {name: getattr(made, name) for name in given}


class Kernel(AsyncKernelManager):
    """Starts the interpreter that runs now, whatever other kernels the user has."""

    environment = {}

    @property
    def kernel_spec(self):
        quiet = ["--log-level=ERROR"]  # a kernel whose parent was killed would warn of it
        return KernelSpec(**get_kernel_dict(quiet), env=self.environment)  # its command starts with sys.executable


def execute(source, target, parameters, environment, asker=None, bar=False):
    """Run a notebook in a kernel of its own, which `kill_kernels` knows by its asker; write it cell by cell."""
    kernel = Kernel(kernel_name="python3", transport_encryption="auto")
    kernel.environment = environment
    RUNNING[kernel] = asker
    try:
        papermill.execute_notebook(
            source,
            target,
            parameters,
            kernel_name="python3",
            km=kernel,
            progress_bar={"desc": target.stem, "leave": False} if bar else False,
            stderr_file=sys.stderr,
            start_timeout=120,
            coalesce_streams=True,
        )
    finally:
        if kernel.has_kernel:
            asyncio.run(kernel.shutdown_kernel(now=True))
        del RUNNING[kernel]


def kill_kernels(asker=None):
    """End the kernels of an asker at once; return how many of its notebooks have not ended yet."""
    kernels = [kernel for kernel, other in list(RUNNING.items()) if other == asker]
    for kernel in kernels:
        if kernel.provisioner is not None and kernel.provisioner.pid:
            try:
                os.kill(kernel.provisioner.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
            except OSError:  # it has ended; Windows has no error of its own for that
                continue
    return len(kernels)


def explain(error):
    """The reason for which a notebook failed, as a user reads it."""
    if isinstance(error, Elsewhere):
        return str(error)
    if not isinstance(error, PapermillExecutionError):
        return f"{type(error).__name__}: {error}"
    lacks_data = error.ename == "Unavailable" and "EARLIB_DATA" in error.evalue
    hint = "\n  without data: PROFILE=smoke, on dialogues that the package makes"
    return f"{error.ename}: {error.evalue}" + hint * lacks_data


def publish(work, profile, name, rewrite=False, tolerance=None):
    """Put the results of a finished run in place: record and figures first, then the notebook that shows them.

    Results in place that say the same stay as they are, byte for byte, unless they are to be rewritten: the record's
    rows, parameters and data (`records.changes`: neither its commit nor values that vary count), the notebook's cells,
    the words that they print and the pictures, as far as an eye can tell (`pictures.alike`). Where values that vary
    differ, text is compared without its numbers, and of pictures only the size. So do results whose values differ by no
    more than the notebook's `tolerance`, as they do between machines; of the notebook then only the cells count. The
    run's own files go to `build/unchanged`, and of the results only what was missing is written.

    Returns
    -------
    told : list of str or None
        Words for what has changed; none if nothing has. None if there was nothing to compare with.
    stays : bool
        True if the results in place stay.

    Raises
    ------
    IsADirectoryError
        If a folder lies where a file belongs; nothing is written then.
    """
    notebook = _stripped(nbformat.read(work / f"{name}.ipynb", as_version=4))
    made = {f"{name}.ipynb": (nbformat.writes(notebook) + "\n").encode()}
    left, folder = work / "results" / profile, paths.results() / profile
    made = {str(file.relative_to(left)): file.read_bytes() for file in sorted(left.rglob("*")) if file.is_file()} | made
    for file in made:
        if (folder / file).is_dir():
            raise IsADirectoryError(f"{folder / file}: expected a file, but it is a folder; remove it and run again")
    near = f"values within {tolerance:g}" if tolerance is not None else ""
    told = None if not any((folder / file).exists() for file in made) else _changes(made, folder, name, tolerance, near)
    stays = told in ([], [near]) and not rewrite
    for file, content in made.items():
        if not stays or not (folder / file).exists():
            paths.write_atomically(folder / file, content)
        if stays:
            paths.write_atomically(paths.unchanged() / profile / file, content)
    return told, stays


def _changes(made, folder, name, tolerance, near):
    """Words for what differs between the files of a run and those in place; what is missing there changes nothing.

    They are `near` alone if values differ by no more than the tolerance, whatever follows from it in text and pictures.
    """
    record, notebook = f"{name}.json", f"{name}.ipynb"
    told, varied = [], False
    if record in made and (folder / record).exists():
        try:
            new, old = json.loads(made[record]), json.loads((folder / record).read_bytes())
            told = records.changes(new, old)
            if told and not records.changes(new, old, tolerance):
                told = [near]
            varied = any(row.get("varies") and row not in old["rows"] for row in new["rows"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return ["a record that cannot be read"]
    pairs = [(content, folder / file) for file, content in made.items() if file.endswith(".png")]
    pairs = [(io.BytesIO(content), file) for content, file in pairs if file.exists()]
    if (folder / notebook).exists():
        try:
            new, old = (nbformat.reads(one.decode(), 4) for one in (made[notebook], (folder / notebook).read_bytes()))
            parts = {"cells": _written(new) == _written(old), "text": _printed(new, varied) == _printed(old, varied)}
            shown = _pictures(new), _pictures(old)
        except Exception:  # cut short, not JSON: anything unreadable
            return ["a notebook that cannot be read"]
        if near in told:
            return told + ["cells"] * (not parts["cells"])
        told += [what for what, same in parts.items() if not same]
        told += ["number of pictures"] * (len(shown[0]) != len(shown[1]))
        pairs += zip(*shown, strict=False)
    return told + ["pictures"] * (near not in told and not all(alike(*pair, only_size=varied) for pair in pairs))


def _written(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def _printed(notebook, varied):
    """Text that cells print or show, without its numbers where these vary."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("text") or output.get("data", {}).get("text/html") for output in outputs]
    return [records.without_numbers(text) if varied else text for text in shown if text]


def _pictures(notebook):
    outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    return [io.BytesIO(base64.b64decode(one["image/png"])) for one in outputs if "image/png" in one]


def _stripped(notebook):
    """The notebook without times, folders, versions and standard error, which differ between two equal runs."""
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
            cell.metadata["jupyter"] = {"source_hidden": True}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook
