"""MonoT5: scores as transformers computes them, on a tiny T5 made here; and side information for the Explorer."""

import dataclasses
import hashlib
import io
import shutil

import numpy as np
import pytest
import sentencepiece
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from test_encoders import child

from earlib.data import benchmarks, rerankers
from earlib.data import candidates as first_stage
from earlib.data.rerankers import Reranker, score
from earlib.experiments import runs
from earlib.experiments.settings import Setting, candidates_of

WORDS = ["Query:", "Document:", "Relevant:", "true", "false", "red", "green", "blue", "cat", "dog", "runs", "nan"]
QUERIES = ["red cat", "red cat", "", "", "red cat", "blue dog", "dog"]
STRANGE = "Document: red Relevant: true  cat\n\tsleeps"
PAIRS = list(zip(QUERIES, ["green dog runs", "", "dog", "", "green dog runs", STRANGE, "cat abc " * 9], strict=True))
BLANK = "\N{LOWER ONE EIGHTH BLOCK}"  # before a word, in SentencePiece


def vocabulary(words):
    """A SentencePiece file as T5's publishers give it: their normalisation, our words and letters."""
    trained = io.BytesIO()
    options = {"vocab_size": 80, "hard_vocab_limit": False, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["abc"]), model_writer=trained, minloglevel=2, **options
    )
    model = sentencepiece_model_pb2.ModelProto.FromString(trained.getvalue())
    del model.pieces[3:]
    for word in words:
        model.pieces.add(piece=BLANK + word, score=-1.0)
    for letter in BLANK + "abcdefghijklmnopqrstuvwxyz:.,'?0123456789":
        model.pieces.add(piece=letter, score=-9.0)
    return model.SerializeToString()


def t5_files(folder, broken=("nan",)):
    """A tiny T5 with random weights; some tokens have a NaN embedding."""
    from transformers import T5Config, T5ForConditionalGeneration, T5Tokenizer

    folder.mkdir()
    (folder / "spiece.model").write_bytes(vocabulary(WORDS))
    tokenizer = T5Tokenizer.from_pretrained(folder)
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "initializer_factor": 1.0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, **shape))
    with torch.no_grad():
        model.shared.weight[[tokenizer.convert_tokens_to_ids(BLANK + word) for word in broken]] = float("nan")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return t5_files(tmp_path_factory.mktemp("models") / "tiny-t5")


@pytest.fixture
def tiny(checkpoint, tmp_path, monkeypatch):
    """The tiny reranker in the registry, its files in the search path, an empty cache, no network."""
    weights = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    entry = Reranker("tiny", "nobody/tiny-t5", "a" * 40, (("model.safetensors", weights),), "none", max_length=64)
    monkeypatch.setitem(rerankers.REGISTRY, "tiny", entry)
    monkeypatch.setenv("EARLIB_MODELS", str(checkpoint.parent))
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    return entry


@pytest.fixture
def kept(tmp_path):
    """Lists the files of the score cache."""
    return lambda: sorted((tmp_path / "cache" / "scores").glob("*"))


def directly(folder, prompt):
    """Log-probability of "true" beside "false", one prompt at a time, by what the library offers anyone."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        first = model.generate(**inputs, max_new_tokens=1, **options)
    true, false = (first.logits[0][0, tokenizer(word)["input_ids"][0]].item() for word in ("true", "false"))
    return -np.logaddexp(0, false - true)


def test_scores_are_those_of_the_library(tiny, checkpoint):
    found = score(PAIRS, "tiny")
    assert found.dtype == np.float32 and found.shape == (7,) and (found < 0).all()
    expected = [directly(checkpoint, f"Query: {query} Document: {memory} Relevant:") for query, memory in PAIRS]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert len(set(np.round(expected, 4))) > 4  # the model tells pairs apart


texts = st.lists(st.sampled_from([*WORDS[:-1], "?", "abc", "\n"]), max_size=12).map(" ".join)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(texts, texts), max_size=6))
def test_each_score_belongs_to_its_pair(tiny, pairs):
    together = score(pairs, "tiny")
    assert together.shape == (len(pairs),)
    for pair, one in zip(pairs, together, strict=True):
        np.testing.assert_allclose(one, score([pair], "tiny")[0], rtol=1e-4, atol=1e-5)
        assert together[pairs.index(pair)] == one  # equal pairs, equal bits


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, texts)
def test_the_parts_of_a_prompt_have_the_tokens_of_the_whole(tiny, query, memory):
    entry = dataclasses.replace(tiny, max_length=512)
    tokenizer, _ = rerankers._model(tiny, "cpu")
    whole = tokenizer(f"Query: {query} Document: {memory} Relevant:")["input_ids"]
    assert rerankers._inputs(entry, tokenizer, [(query, memory)]) == [whole]


@pytest.mark.parametrize("query, asked", [("red cat", ["red", "cat"]), ("red " * 5000, ["red"] * 32)])
def test_a_long_memory_keeps_what_is_asked_and_half_of_the_room(tiny, checkpoint, query, asked):
    tokenizer, _ = rerankers._model(tiny, "cpu")
    (ids,) = rerankers._inputs(tiny, tokenizer, [(query, "dog runs " * 1200)])
    words = [word.lstrip(BLANK) for word in tokenizer.convert_ids_to_tokens(ids)]
    read = (["dog", "runs"] * 40)[: tiny.max_length - 4 - len(asked)]
    assert words == ["Query:", *asked, "Document:", *read, "Relevant:", "</s>"]
    expected = directly(checkpoint, f"Query: {' '.join(asked)} Document: {' '.join(read)} Relevant:")
    assert score([(query, "dog runs " * 1200)], "tiny")[0] == pytest.approx(expected, rel=1e-5)


def test_the_cache_serves_without_the_model(tiny, tmp_path, kept):
    found = score(PAIRS, "tiny")
    code = f"""
found = rerankers.score({PAIRS!r}, "tiny")
print([name for name in ("torch", "transformers") if name in sys.modules], found.tobytes().hex())
"""
    done = child(tiny, code, EARLIB_MODELS=str(tmp_path / "nowhere"))
    assert (done.stdout.split(), done.stderr) == (["[]", found.tobytes().hex()], "")
    assert len(kept()) == 1


def test_whatever_decides_a_score_is_another_file(tiny, kept, monkeypatch):
    prints = {rerankers.fingerprint("tiny")}
    score(PAIRS, "tiny")
    for name, value in {"max_length": 32, "prompt": ("Query:", "Document:", "true"), "answers": ("red", "cat")}.items():
        monkeypatch.setitem(rerankers.REGISTRY, "tiny", dataclasses.replace(tiny, **{name: value}))
        score(PAIRS, "tiny")
        prints.add(rerankers.fingerprint("tiny"))
    monkeypatch.setitem(rerankers.REGISTRY, "tiny", tiny)
    for pairs in (PAIRS[::-1], PAIRS[1:], [("red", "cat green")], [("red cat", "green")]):
        score(pairs, "tiny")
    monkeypatch.setattr(rerankers, "VERSION", rerankers.VERSION + 1)
    score(PAIRS, "tiny")
    assert len(prints) == 4 and len(kept()) == 9


def test_a_run_that_was_stopped_goes_on_from_its_blocks(tiny, kept, monkeypatch, capsys):
    monkeypatch.setattr(rerankers, "BLOCK", 32)
    pairs, compute = [(f"cat {i}", "dog " * (i % 7)) for i in range(2 * 32 + 9)], rerankers._compute

    def stopped(*given):
        if kept():
            raise KeyboardInterrupt
        return compute(*given)

    monkeypatch.setattr(rerankers, "_compute", stopped)
    with pytest.raises(KeyboardInterrupt):
        score(pairs, "tiny")
    (first,) = kept()
    monkeypatch.setattr(rerankers, "_compute", compute)
    made = first.stat().st_mtime_ns
    capsys.readouterr()
    found = score(pairs, "tiny")
    assert len(kept()) == 3 and first.stat().st_mtime_ns == made
    told = [line.rsplit(",", 1)[0] for line in capsys.readouterr().err.splitlines()]
    assert told[0] == "scoring with tiny: 32 of 73 pairs were kept by an earlier run"
    assert told[1:] == ["scoring with tiny: 64 of 73 pairs", "scoring with tiny: 73 of 73 pairs"]
    for number in (0, 31, 32, len(pairs) - 1):
        np.testing.assert_allclose(found[number], score([pairs[number]], "tiny")[0], rtol=1e-4, atol=1e-5)


def test_a_score_that_is_no_number_is_named(tiny, kept):
    with pytest.raises(ValueError, match=r"reranker tiny: the score of \('red cat', 'dog nan runs'\)"):
        score([("red cat", "dog"), ("red cat", "dog nan runs"), ("red", "a much longer memory than that")], "tiny")
    assert kept() == []


@pytest.fixture
def elsewhere(tiny, checkpoint, tmp_path, monkeypatch):
    """Another folder of the reranker, without a vocabulary, where it is looked for."""
    folder = tmp_path / "tiny-t5"
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("*token*", "spiece*"))
    monkeypatch.setenv("EARLIB_MODELS", str(tmp_path))
    monkeypatch.setattr(rerankers, "_model", rerankers._model.__wrapped__)  # nothing that was loaded before
    return folder


def test_an_answer_of_several_tokens_is_refused(elsewhere):
    for another in (vocabulary([word for word in WORDS if word != "false"]), None):
        if another:
            (elsewhere / "spiece.model").write_bytes(another)
        else:  # the library then makes one of its own, without a word
            (elsewhere / "spiece.model").unlink()
        with pytest.raises(ValueError, match="tiny: expected each of true, false to be one token"):
            score(PAIRS, "tiny")


def test_bad_arguments(tiny):
    with pytest.raises(ValueError, match="unknown reranker 'mono-t5'.*did you mean 'monot5'"):
        score(PAIRS, "mono-t5")
    with pytest.raises(TypeError, match=r"texts\[1\]: expected a string, found int '7'"):
        score([("a", 7)], "tiny")
    assert score([], "tiny").shape == (0,)


def test_what_is_not_at_hand_is_told_without_asking_the_publisher(tiny, tmp_path, monkeypatch):
    assert rerankers.absent("tiny") is None and rerankers.absent("bm25") is None
    monkeypatch.setenv("EARLIB_MODELS", str(tmp_path / "nowhere"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert rerankers.absent("tiny") == f"weights not at hand: nobody/tiny-t5 at {'a' * 12}"


def test_parameters_are_counted_without_loading(tiny, checkpoint):
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    assert rerankers.size("tiny") == sum(weight.numel() for weight in model.parameters())
    assert rerankers.size("bm25") == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_scores_as_the_processor(tiny, tmp_path, monkeypatch):
    expected = score(PAIRS, "tiny")
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "other"))
    np.testing.assert_allclose(score(PAIRS, "tiny", "cuda"), expected, rtol=1e-4, atol=1e-5)


# -- side information --------------------------------------------------------------------------------------------------


def toy(store="dialogue", queries=None):
    """The toy benchmark with its first questions, and their candidates."""
    made = benchmarks.load("toy")
    made = dataclasses.replace(made, queries=made.queries[:queries])
    return made, first_stage.retrieve(made, "minilm", 20, store)


def test_probabilities_stand_beside_their_candidates(tiny):
    benchmark, found = toy(queries=8)
    side = first_stage.with_side(benchmark, found, "tiny").side
    assert side.shape == found.index.shape and (side > 0).all() and (side < 1).all()
    for number, place in ((0, 0), (3, 19), (len(found.query) - 1, 7)):
        memory = benchmark.memories[found.index[number, place]].text
        expected = np.exp(score([(benchmark.asked[number].text, memory)], "tiny")[0])
        assert side[number, place].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("store", ["dialogue", "both"])
def test_words_score_candidates_as_they_rank_memories(store):
    benchmark, found = toy(store)
    side = first_stage.word_scores(benchmark, found, store)
    assert side.min() == 0 and ((side.max(1).values == 1) | (side == 0).all(1)).all()
    ranked = first_stage.by_words(benchmark, found, 5, store).index
    for number in range(0, len(side), 17):
        candidates = found.index[number].tolist()
        places = [candidates.index(row) for row in ranked[number].tolist() if row in candidates]
        scored = side[number, places].tolist()
        assert scored == sorted(scored, reverse=True)  # the best of all memories are the best of the candidates
        assert len(places) < 5 or min(scored) >= np.delete(side[number].numpy(), places).max()


def test_candidates_of_another_ranking_have_no_side_information():
    benchmark, found = toy()
    with_words = first_stage.with_side(benchmark, found, "bm25")
    assert with_words.fingerprint() != found.fingerprint()
    assert first_stage.by_words(benchmark, with_words, 20).side is None


SMALL = {"dataset": "toy", "seeds": 2, "train_queries": 24}


def test_a_whole_experiment_with_side_information(tiny, monkeypatch):
    """EAR on a reranker's scores, on that of no weight, and the reranker alone, from the registry to the measures."""
    monkeypatch.setitem(rerankers.REGISTRY, "monot5", dataclasses.replace(tiny, name="monot5"))
    setting = Setting(**SMALL)
    ear, queries, slates = runs.answers(setting, "ear")
    for name in ("monot5_ear", "bm25_ear"):
        without = runs.answers(setting, name, side=0.0)
        np.testing.assert_array_equal(without.slates, slates)
        with_side = runs.answers(setting, name)
        assert not np.array_equal(with_side.slates, slates) and np.array_equal(with_side.queries, queries)
    only = runs.answers(setting, "monot5_ear", side=1e6, diversity=0.0, exploration=0.0, relevance=0.0)
    alone = runs.answers(setting, "monot5")
    np.testing.assert_array_equal(only.slates, alone.slates)  # with nothing but its scores, EAR is the reranker
    side = candidates_of(Setting(**SMALL, reranker="monot5"), 20).side.numpy()
    scored = np.take_along_axis(side[queries], alone.slates, -1)
    assert (np.diff(scored) <= 0).all() and np.array_equal(scored[..., 0], side[queries].max(-1))


def test_words_alone_rank_the_candidates():
    setting = Setting(**SMALL)
    values, queries, slates = runs.answers(setting, "bm25_reranked")
    side = candidates_of(Setting(**SMALL, reranker="bm25"), 20).side.numpy()
    np.testing.assert_array_equal(slates, np.argsort(-side[queries], axis=-1, kind="stable")[..., :5])
    ceiling = runs.answers(setting, "ceiling").values
    assert (values[0] <= ceiling[0])[~np.isnan(values[0])].all()
