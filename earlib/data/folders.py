"""The user's own encoder: the folder of a sentence-transformers model, or a model of the hub at a revision."""

import re
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, TypeAdapter, ValidationError

from earlib import paths
from earlib.data import cache, model_files, own
from earlib.data.fields import refusal

HUB = re.compile(r"([\w.-]+/([\w.-]+))@([\w./-]+)")
# Without one of these, some tokenizers of the library take every word for an unknown one.
VOCABULARY = ("tokenizer.json", "vocab.*", "*.model")
PROMPTS = {"query_prompt": ("query",), "memory_prompt": ("document", "passage", "corpus")}
UNREAD = ("*.md", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf", "onnx/*", "openvino/*", "*.ini", ".*", "*/.*")


class Module(BaseModel):
    """An entry of `modules.json`."""

    type: str
    path: str


class Prompts(BaseModel):
    """The part of `config_sentence_transformers.json` that is read here."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


def located(text):
    """Name and folder of an encoder that `encoders.resolve` was given by its path or as OWNER/NAME@REVISION."""
    folder, hub = own.absolute(text), HUB.fullmatch(text)
    label = folder.name
    if hub and not folder.exists():
        label = hub[1]
        folder = next((place / hub[2] for place in paths.model_folders() if (place / hub[2]).is_dir()), None)
        if folder is None:
            folder = _published(hub[1], hub[3])
            return f"{label}@{folder.name}", folder  # the folder of a snapshot is named by its commit
    if not folder.is_dir():
        raise ValueError(
            f"{text}: expected the folder of a sentence-transformers model, or OWNER/NAME@REVISION of the hub (the "
            "revision is the commit); there is no such folder"
        )
    return own.named(label, cache.content_hash(described(folder)["weights"])), folder


def described(folder):
    """Fields of the `Encoder` that a folder holds; a ValueError says what it lacks."""
    modules = _read(folder / "modules.json", list[Module])
    if modules is None:
        raise ValueError(
            f"{folder}: expected the folder of a sentence-transformers model, found no modules.json; "
            "`SentenceTransformer(...).save_pretrained(folder)` writes one"
        )
    code = "auto_map" in (_read(folder / "config.json", dict) or {})
    for module in modules:
        if module.type.endswith(".Router"):
            raise ValueError(f"{folder}: a Router, other modules for queries than for memories, cannot be used here")
        code |= not module.type.startswith("sentence_transformers.")
        held = [file.name for file in (folder / module.path).glob("*")]
        if module.type.endswith(".Transformer") and not any(fnmatch(name, one) for name in held for one in VOCABULARY):
            raise ValueError(f"{folder / module.path}: expected a tokenizer: {' or '.join(VOCABULARY)}")
    places = [folder, *(folder / module.path for module in modules)]  # a link to a folder is not looked into
    names = {file.relative_to(folder).as_posix() for at in places for file in at.rglob("*") if file.is_file()}
    told = _read(folder / "config_sentence_transformers.json", Prompts) or Prompts()
    prompts, default = told.prompts or {}, told.default_prompt_name
    weights = tuple((name, own.file_hash(folder / name)) for name in _made_of(names))
    return {"weights": weights, "remote_code": code, "folder": str(folder)} | {
        field: next((prompts[name] for name in (*names, default) if prompts.get(name)), "")
        for field, names in PROMPTS.items()
    }


def _read(file, kind):
    """Content of a JSON file, None if there is none."""
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise refusal(error, file) from None


def _made_of(names):
    """Names of the files that a model is loaded from: pickled weights only where their folder has no others."""
    read = [name for name in sorted(names) if not any(fnmatch(name, pattern) for pattern in UNREAD)]
    safe = {PurePosixPath(name).parent for name in read if name.endswith(".safetensors")}
    return [name for name in read if not (name.endswith(".bin") and PurePosixPath(name).parent in safe)]


def _published(model, revision):
    """Folder of a model of the hub at a revision: as the hub gives it out, else as an earlier download left it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        told = model_files.published(model, revision)
        wanted = _made_of([file.rfilename for file in told.siblings])
        return Path(snapshot_download(model, revision=told.sha, allow_patterns=wanted))
    except Exception as error:  # the hub's client raises errors of several libraries
        with suppress(LocalEntryNotFoundError):  # pickled weights were left out where there are others
            kept = {"local_files_only": True, "ignore_patterns": [*UNREAD, "*.bin"]}
            return Path(snapshot_download(model, revision=revision, **kept))
        places = [place / model.split("/")[1] for place in paths.model_folders()]
        raise model_files.unavailable(f"{model}@{revision}", model, revision, places, error=error) from error
