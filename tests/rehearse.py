"""Rehearse the profile `paper` on stand-ins (`make rehearse`): every notebook, on a CPU, in a quarter of an hour.

The rehearsal runs in `build/rehearsal`, a copy of the package whose tables of files and models name stand-ins by their
checksums: random encoders of the true widths with one layer, a made LoCoMo and LongMemEval, and a server that follows a
script in place of GPT-5 mini. Records, labels and pages say so. Nothing of it is a result, and nothing of it reaches
`results/` or the caches.

With `--full` it has the true sizes, on the profile's device, and no language model: what its notebooks take on a GPU.
"""

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import made_locomo
import made_longmemeval
import torch
import yaml
from made_encoders import WORDS, bert_files, qwen_files
from safetensors.torch import load_file, save_file
from scripted_server import ScriptedServer, error, says
from test_rerankers import t5_files

ROOT = Path(__file__).resolve().parent.parent
PLACE = Path(os.environ.get("EARLIB_BUILD") or ROOT / "build") / "rehearsal"
PROFILE = "rehearsal"
SAID = "stand-in"  # ends the label of everything that is one
WIDTHS = {"contriever": 768, "stella": 1536, "gte": 3584}  # of the states; stella's head makes 1,024 of them
HAYSTACKS = made_longmemeval.Size(130, 650, 5200, 900, abstentions=9, repeated=3, numbers=8, assistant_only=13)
WORDS_SAID = 10  # in a turn of the made LongMemEval, at most
CONVERSATIONS = made_locomo.Size(sessions=27, turns=22, questions=(28, 32, 10, 84, 45))  # LoCoMo's numbers, nearly
# What is smaller than in the profile `paper`; data, encoders, splits and language models are that profile's.
DEFAULTS = {"seeds": 2, "llm_questions": 20}
SMALLER = {
    "tab08_latency": {"memories": [1000, 10_000], "queries": 5},
    "tab09_llm_critic": {"llm_questions": 8},
    "tab11_12_store_geometry": {"seeds": 2, "random_adapters": 5},
    "controls": {"rates": [1e-4], "budgets": [1, 4]},
    "ext01_objective": {"rates": [1e-4], "temperatures": [1.0, 0.05], "others": []},
    "ext02_adapters": {"rates": [1e-4], "ranks": [4]},
    "ext03_candidates": {"rates": [1e-4], "starts": [0.2], "passes": [1], "depths": [10, 50]},
    "ext04_explorer": {"rates": [1e-4], "repeats": 1},
    "ext05_drift": {"rates": [2e-4]},
    "ext06_context": {"folds": 2, "learned_from": [50], "systems": ["rmm"]},
    "fig02_walkthrough": {"learned": 40},
    "fig07_retrievers": {"rates": [1e-4], "width_seeds": 1},
    "sensitivity": {"options": ["update rule", "the baseline's p", "Recall@5", "split", "text of a turn"]},
    "large_banks": {"memories": 2000, "queries": 10},
    "agent_memory": {"questions": 100, "stream": 20, "stream_seeds": 1},
}


def prepare(place=PLACE, models=(*WIDTHS, "monot5"), full=False, **parameters):
    """Copy the package to a folder and give it stand-ins, of some models; parameters are defaults of the profile.

    In full the data have the true sizes, and the profile is `paper` but for its language model and judge.
    """
    for folder in ("earlib", "notebooks"):
        shutil.rmtree(place / folder, ignore_errors=True)
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("data", "models", "results", "cache", "build"):
        shutil.rmtree(place / folder, ignore_errors=True)
    (place / "data").mkdir()
    made_locomo.write(place / "data" / "locomo10.json", *[CONVERSATIONS] * full)
    (made_longmemeval.write if full else _write_haystacks)(place / "data" / "longmemeval_s_cleaned.json")
    _edit(place / "earlib" / "data" / "files.yaml", lambda files: _files(files, place / "data"))
    _edit(place / "earlib" / "data" / "encoders.yaml", lambda entries: _models(entries, place / "models", models))
    _edit(place / "earlib" / "data" / "rerankers.yaml", lambda entries: _models(entries, place / "models", models))
    _edit(place / "earlib" / "paper" / "labels.yaml", _labels)
    version = place / "earlib" / "__init__.py"
    version.write_text(re.sub(r'__version__ = "(.*)"', rf'__version__ = "\1+{SAID}s"', version.read_text()))
    profile = yaml.safe_load((ROOT / "notebooks" / "profiles" / "paper.yaml").read_text())
    profile["title"] = f"A rehearsal with {SAID}s: nothing here is a result"
    profile["defaults"] |= ({"llm": "none", "judge": "none"} if full else DEFAULTS) | parameters
    if not full:
        profile["device"] = "cpu"
        for name, smaller in SMALLER.items():
            profile["notebooks"][name] = (profile["notebooks"].get(name) or {}) | smaller
    (place / "notebooks" / "profiles" / f"{PROFILE}.yaml").write_text(yaml.safe_dump(profile, sort_keys=False))


def _write_haystacks(path):
    """A made LongMemEval with short turns, of words that the encoders know but for those that a question asks for."""
    entries, known, numbers = list(made_longmemeval.entries(HAYSTACKS)), made_locomo.words(), {}
    for turn in (turn for entry in entries for session in entry["haystack_sessions"] for turn in session):
        about, _, rest = turn["content"].rpartition(". ")
        places = [numbers.setdefault(word, len(numbers)) for word in rest.split()[:WORDS_SAID]]
        turn["content"] = f"{about}. {' '.join(known[at % len(known)] for at in places)}".removeprefix(". ")
    path.write_text(json.dumps(entries), encoding="utf-8")


def _edit(path, change):
    path.write_text(yaml.safe_dump(change(yaml.safe_load(path.read_text())), sort_keys=False), encoding="utf-8")


def digest(file):
    """SHA-256 (hex) of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _files(entries, folder):
    """The table of data files with the checksums of those in a folder, and no address."""
    nowhere = {"url": "http://127.0.0.1:9/none", "licence": SAID}
    return {
        name: nowhere | {"sha256": digest(folder / name) if (folder / name).exists() else "0" * 64} for name in entries
    }


def _models(entries, folder, names):
    """The table of encoders, or of rerankers, with the checksums of stand-ins, of which some are made."""
    for entry in entries:
        if entry["name"] not in (*WIDTHS, "monot5"):
            continue
        entry |= {"model": f"{SAID}/{entry['name']}", "revision": "0" * 40, "licence": SAID}
        if entry["name"] in names:
            place = folder / entry["name"]
            place.parent.mkdir(exist_ok=True)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                _make(entry, place)
            entry["weights"] = [[name, digest(place / name)] for name, _ in entry["weights"]]
    return entries


def _make(entry, place):
    name, known = entry["name"], list(dict.fromkeys([*WORDS, *made_locomo.words(), *made_longmemeval.words()]))
    if name == "monot5":
        t5_files(place, broken=())
        return
    place.mkdir()
    shape = {"hidden_size": WIDTHS[name], "num_hidden_layers": 1, "intermediate_size": 64}
    if name == "contriever":
        letters = [sign + letter for letter in "abcdefghijklmnopqrstuvwxyz0123456789.?" for sign in ("", "##")]
        bert_files(place, name, [*known, *letters], **shape | {"num_attention_heads": 12})
        return
    qwen_files(place, name, words=known, head=entry["dimension"], **shape | {"head_dim": 64})
    shards = [file for file, _ in entry["weights"] if file.startswith("model-")]
    if shards:
        held = load_file(place / "model.safetensors")
        where = {key: shards[at % len(shards)] for at, key in enumerate(held)}
        for shard in shards:
            save_file({key: held[key] for key in held if where[key] == shard}, place / shard, {"format": "pt"})
        index = {"metadata": {}, "weight_map": where}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))
        (place / "model.safetensors").unlink()


def _labels(labels):
    """Labels that nobody takes for the paper's data or models."""
    for kind, names in (("datasets", ("locomo", "longmemeval")), ("encoders", WIDTHS), ("models", ("gpt-5-mini",))):
        for name in names:
            labels[kind][name] += f" ({SAID})"
    return labels


def replies(body):
    """Replies of the server: mostly of the form that the prompts ask for, some refused, empty, unreadable or failed."""
    prompt = body["messages"][-1]["content"]
    chance = int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % 100
    if chance == 0:
        return says(None, refusal="I would rather not.")
    if chance == 1:
        return says("")
    if chance == 2:
        return says("Let me think about it.")
    if chance == 3:
        return error(500, headers=(("retry-after-ms", "10"),))
    if "ground-truth" in prompt:
        gold, said = (re.findall(rf"\*\*{name}:\*\* (.*)", prompt)[-1] for name in ("Ground-truth Answer", "Response"))
        return says("Output: Yes" if gold.rstrip(".") in said else "Output: No")
    if "Citations:" in prompt:
        asked, _, shown = prompt.rpartition("User Query: ")[2].partition("Memories:")
        known = [len(set(asked.split()).intersection(text.split())) for text in shown.split("- Memory [")[1:]]
        return says(f"Answer: a word.\nCitations: [{known.index(max(known))}]")
    return says(f"**Answer**: {prompt.rpartition('**Output Format')[0].split()[-1].rstrip('.')}")


def environment(place=PLACE, **variables):
    """Variables of a process that runs the copy."""
    dropped = re.compile(r"EARLIB_(?!DEVICE$)|OPENAI_|MAKE|MFLAGS")
    kept = {key: value for key, value in os.environ.items() if not dropped.match(key)}
    return kept | {"PYTHONPATH": str(place), "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "sk-rehearsal-0123"} | variables


def run(arguments, place=PLACE, log=None, jobs=2, **variables):
    """Run notebooks of the copy, show and log what the run says, and return its exit code and its lines."""
    command = [sys.executable, "-m", "earlib.run", *arguments, "--profile", PROFILE, "--jobs", str(jobs)]
    lines = []
    with subprocess.Popen(
        command,
        cwd=place,
        env=environment(place, **variables),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        for line in process.stdout:
            lines.append(line.rstrip())
            if log is not None:
                print(line, end="", flush=True)
                log.write(line)
        return process.wait(), lines


def main():
    """Prepare, run all notebooks (or those named), then their report; tell how many ran, which failed and why."""
    parser = argparse.ArgumentParser(description="Rehearse the profile paper on stand-ins.")
    parser.add_argument("names", nargs="*", metavar="NAME", default=["all"], help="notebooks (default: all)")
    parser.add_argument("--full", action="store_true", help="true sizes, on the profile's device, no language model")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="notebooks at a time (default: 2)")
    options, began = parser.parse_args(), time.monotonic()
    PLACE.mkdir(parents=True, exist_ok=True)
    prepare(full=options.full)
    print(f"stand-ins made in {time.monotonic() - began:.0f} s; all of it is in {PLACE}, and nothing of it is a result")
    with ScriptedServer(rule=replies) as server, open(PLACE / "log.txt", "w") as log:
        status, lines = run(options.names, log=log, jobs=options.jobs, OPENAI_BASE_URL=server.url)
        asked = len(server.requests)
    report = [sys.executable, "-m", "earlib.harness.pages", "--profile", PROFILE]
    status |= subprocess.run(report, cwd=PLACE, env=environment(), stdout=subprocess.DEVNULL).returncode
    failed = [line for line in lines if re.match(r"\[\d+/\d+\] .* FAILED", line)]
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = f"{time.monotonic() - began:.0f} s, {spent.ru_utime + spent.ru_stime:.0f} s of processor time"
    print(f"rehearsed in {told}, with {asked:,} requests to the scripted server; log: {PLACE / 'log.txt'}")
    print("\n".join(["these failed:", *failed]) if failed else "no notebook failed" if not status else "it did not run")
    sys.exit(status)


if __name__ == "__main__":
    main()
