"""A notebook as a program: its parameters, a run in a kernel of its own, and the results that are kept."""

import ast
import asyncio
import io
import json
import logging
import os
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

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
LONGEST = ("sensitivity", "controls")  # begun first, so that neither is left to end a run alone
ASKED = ("llm", "judge")  # parameters that name a language model
OWN = {"dataset": benchmarks.resolve, "encoder": encoders.resolve}
DEPTH = "K, first-stage candidates of a question"
TYPES = {"str": str, "int": int, "float": float, "bool": bool}
TYPES |= {f"list[{name}]": list[one] for name, one in TYPES.items()}
logging.getLogger("papermill").setLevel(logging.CRITICAL)  # the runner tells an error itself; of Ctrl-C nothing is one
RUNNING = {}  # kernels of this process: manager to the name of who asked for it


class Unusable(ValueError):
    """A request that cannot be run; the message names the mistake and the alternatives."""


def sources():
    """Notebooks that can be run: id to file, in the order in which `all` runs them."""
    files = sorted(paths.notebooks().glob("*.ipynb"), key=lambda file: (file.stem in READERS, file.name))
    return {file.stem: file for file in files}


def parameters(source):
    """Pydantic model of a notebook's parameters cell, a field per line `name: type = default  # help`.

    A field's title is its type as written, its description the help. Values are read from texts, and a scalar may stand
    for a list of one. A notebook that assigns no `depth` has it all the same: the K of all its configurations.
    """
    try:
        cells = nbformat.read(source, as_version=4).cells
        fields = {name: _field(**one) for name, one in papermill.inspect_notebook(str(source)).items()}
    except Exception as error:  # cut short, not JSON, a line of another form: whatever makes it unreadable
        told = " ".join(f"{type(error).__name__}: {error}".split())
        expected = "expected a notebook with parameters `name: type = literal  # help`"
        raise Unusable(f"{source}: {expected}, but it cannot be read ({told})") from error
    if source.stem not in READERS and not any(re.search(r"^depth\b", cell.source, re.M) for cell in cells):
        least, default = (Config.model_fields[name].default for name in ("slate_size", "depth"))
        about = Field(default, title=f"int from {least} on", description=DEPTH)
        fields["depth"] = Annotated[int, Field(ge=least)], about
    return create_model(source.stem, __config__=ConfigDict(protected_namespaces=()), **fields)


def _field(name, inferred_type_name, default, help):
    """Type and default of a parameter as papermill reads it; nothing is evaluated but the literal."""
    annotation, value = TYPES[inferred_type_name], ast.literal_eval(default)
    TypeAdapter(annotation).validate_python(value, strict=True)
    if isinstance(value, list):
        annotation = Annotated[annotation, BeforeValidator(lambda one: one if isinstance(one, list) else [one])]
    annotation = Annotated[annotation, AfterValidator(partial(_meaning, name, value))]
    return annotation, Field(value, title=inferred_type_name, description=help)


def takes_depth(model):
    """True if the `depth` of a notebook's parameters is that of all its configurations, not one of its own."""
    return "depth" in model.model_fields and model.model_fields["depth"].description == DEPTH


def _meaning(name, default, value):
    """Refuse what the package would refuse once a kernel has started: unknown names, ranges, files."""
    if value == default:
        return value
    if not isinstance(value, list):
        return _meant(name, value)
    if name in OWN and (not value or len(set(value)) < len(value)):
        raise ValueError(f"expected one name or several, each once, got {value!r}")
    return [_meant(name, item) for item in value]


def _meant(name, value):
    """Check a value and return it; for the user's own dataset or encoder its name instead of its path."""
    if name in OWN:
        try:
            return OWN[name](value)
        except OSError as error:
            raise ValueError(error) from error
    if name == "rerankers" and value not in rerankers.NAMES:
        known = ", ".join(rerankers.NAMES)
        raise ValueError(f"expected one of {known}, got {value!r}{near(value, rerankers.NAMES)}")
    model = Config
    if name not in model.model_fields:
        from earlib.experiments.settings import Setting as model  # here because it brings torch, which takes seconds
    if name in model.model_fields:
        try:
            model(**{name: value})
        except ValidationError as error:
            expected = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise ValueError(f"expected {expected}, got {value!r}") from error
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
        told = first.get("ctx", {}).get("error") or f"expected {field.title}, got {given[name]!r}"
        raise Unusable(f"{about}: {told}") from error
    return {name: getattr(made, name) for name in given}


class Kernel(AsyncKernelManager):
    """Starts the interpreter that runs now, whatever other kernels the user has."""

    environment = {}

    @property
    def kernel_spec(self):
        quiet = ["--log-level=ERROR"]  # a kernel whose parent was killed would warn of it
        return KernelSpec(**get_kernel_dict(quiet), env=self.environment)  # its command starts with sys.executable


def execute(plan, content, variables, asker=None, bar=False):
    """Run a plan's notebook in a kernel of its own, which `kill_kernels` knows by its asker; it need not lie here.

    Parameters
    ----------
    plan : earlib.harness.profiles.Plan
    content : bytes
        The notebook's source.
    variables : dict
        Further variables of the kernel's environment.
    asker : str, optional
    bar : bool
        Show a bar of the cells.

    Returns
    -------
    files : dict
        Contents of the executed notebook, as far as it came, and of all that it saved, by path.
    error : str or None
        Why it failed.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source, made, error = Path(folder, "source.ipynb"), Path(folder, "made"), None
        source.write_bytes(content)
        made.mkdir()
        kernel = Kernel(kernel_name="python3", transport_encryption="auto")
        kernel.environment = {name: value for name, value in plan.machine.items() if name not in os.environ} | {
            "EARLIB_ROOT": str(paths.ROOT),
            "EARLIB_RESULTS": str(made),
            "EARLIB_RUNNING": "1",
            "EARLIB_DEPTH": plan.depth,
            "EARLIB_RECORDS": os.environ.get("EARLIB_RECORDS") or str(paths.results().absolute()),
            "EARLIB_LLM_ESTIMATE": "",  # never the caller's own, as of the depth: results would come of estimates
        }
        kernel.environment |= variables
        RUNNING[kernel] = asker
        try:
            papermill.execute_notebook(
                source,
                made / f"{plan.name}.ipynb",
                plan.parameters,
                kernel_name="python3",
                km=kernel,
                progress_bar={"desc": plan.name, "leave": False} if bar else False,
                stderr_file=sys.stderr,
                start_timeout=120,
                coalesce_streams=True,
            )
        except PapermillExecutionError as failed:
            error = f"{failed.ename}: {failed.evalue}"
        except Exception as failed:  # of the kernel
            error = f"{type(failed).__name__}: {failed}"
        finally:
            if kernel.has_kernel:
                asyncio.run(kernel.shutdown_kernel(now=True))
            del RUNNING[kernel]
        return {str(file.relative_to(made)): file.read_bytes() for file in made.rglob("*") if file.is_file()}, error


def kill_kernels(asker=None):
    """End the kernels of an asker at once; return how many of its notebooks have not ended yet."""
    kernels = [kernel for kernel, other in list(RUNNING.items()) if other == asker]
    for kernel in kernels:
        process = kernel.provisioner and kernel.provisioner.process
        if process:  # else it has not begun yet, or has ended
            process.kill()
    return len(kernels)


def publish(files, plan, rewrite=False):
    """Put the results of a finished run (`execute`) in place: record and figures, then the notebook that shows them.

    Results in place that say the same stay as they are, byte for byte, unless they are to be rewritten: the record's
    rows, parameters and data (`records.changes`: neither its commit nor values that vary count), the notebook's cells,
    the words that they print and the pictures, as far as an eye can tell (`pictures.alike`). Where values that vary
    differ, text is compared without its numbers, and of pictures only the size. So do results whose values differ by no
    more than the notebook's `tolerance`, as they do between machines; of the notebook then only the cells count. The
    run's own files go to `build/unchanged`, and of the results only what was missing is written.

    Returns
    -------
    told : list of str or None
        Words for what has changed; none if nothing has. None if there was nothing to compare with, or nothing
        that stayed.
    stays : bool
        True if the results in place stay.
    """
    name, folder, tolerance = plan.name, paths.results() / plan.profile, plan.every.get("tolerance")
    made = {file.removeprefix(f"{plan.profile}/"): files[file] for file in sorted(files)}
    notebook = _stripped(nbformat.reads(made.pop(f"{name}.ipynb").decode(), as_version=4))
    made[f"{name}.ipynb"] = (nbformat.writes(notebook) + "\n").encode()
    near = f"values within {tolerance:g}" if tolerance is not None else ""
    there = {file: (folder / file).read_bytes() for file in made if (folder / file).exists()}
    try:
        told = _changes(made, there, name, tolerance, near) if there else None
    except Exception:  # cut short, not JSON: whatever makes it unreadable
        told = ["a file that cannot be read"]
    stays = told in ([], [near]) and not rewrite
    for file, content in made.items():
        if not stays or file not in there:
            paths.write_atomically(folder / file, content)
        if stays:
            paths.write_atomically(paths.unchanged() / plan.profile / file, content)
    return (told or None) if rewrite else told, stays


def _changes(made, there, name, tolerance, near):
    """Words for what differs between the files of a run and those in place; what is missing there changes nothing.

    They are `near` alone if values differ by no more than the tolerance, whatever follows from it in text and pictures.
    """
    record, notebook, told, varied = f"{name}.json", f"{name}.ipynb", [], False
    if record in there:
        new, old = (json.loads(files[record]) for files in (made, there))
        told = records.changes(new, old)
        if told and not records.changes(new, old, tolerance):
            told = [near]
        varied = any(row.get("varies") and row not in old["rows"] for row in new["rows"])
    if notebook in there:
        new, old = (nbformat.reads(files[notebook].decode(), 4) for files in (made, there))
        cells = [[(cell.cell_type, cell.source) for cell in one.cells] for one in (new, old)]
        told += ["cells"] * (cells[0] != cells[1])
        told += ["text"] * (near not in told and _printed(new, varied) != _printed(old, varied))
    pictures = [[io.BytesIO(files[file]) for files in (made, there)] for file in there if file.endswith(".png")]
    return told + ["pictures"] * (near not in told and not all(alike(*pair, only_size=varied) for pair in pictures))


def _printed(notebook, varied):
    """Text that cells print or show, without its numbers where these vary."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("text") or output.get("data", {}).get("text/html") for output in outputs]
    return [records.without_numbers(text) if varied else text for text in shown if text]


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
