"""A frozen encoder at work: texts to unit vectors on a device, batch by batch."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from earlib import devices
from earlib.data import model_files

TEXTS = 32  # texts of a batch on a CPU, at most; more exceed its cache
NUMBERS = 2**24  # tokens of a batch on a CPU times the width of an embedding, at most, but for a batch of one text
TOKENS = 2**16  # tokens of a batch on a GPU, padding included; halved for as long as they exceed its memory


class Embedder:
    """A loaded encoder: an `Encoder`, a device and a precision of `devices`, and whether the publisher's code runs.

    A ValueError if the files do not fit the registry's entry, or the device does not exist.
    """

    def __init__(self, entry, device="cpu", precision="full", remote_code=False):
        self.entry, self.device, self.precision = entry, devices.ready(device), precision
        self.model = _load(entry, self.device, remote_code)
        self.tokens, self.texts = TOKENS, TEXTS

    def __call__(self, pieces, prompt):
        """Embeddings of many texts, each piece tokenised while the one before it is embedded.

        Parameters
        ----------
        pieces : iterable of list of str
        prompt : str
            Prepended to every text.

        Yields
        ------
        numpy.ndarray
            float32, `[texts of the piece, d]`, rows of unit length.

        Raises
        ------
        ValueError
            If one text alone exceeds the device's memory.
        """
        if self.entry.folder:
            yield from (self._as_its_files_state(piece, prompt) for piece in pieces)
            return
        with ThreadPoolExecutor(1) as pool:
            waiting = None
            for piece in pieces:
                ready, waiting = waiting, pool.submit(self._tokens, piece, prompt)
                if ready:
                    yield self._embed(ready.result())
            if waiting:
                yield self._embed(waiting.result())

    def _as_its_files_state(self, texts, prompt):
        """Embeddings of a piece by the user's own model, whose modules the library runs."""
        options = {"prompt": prompt, "show_progress_bar": False, "convert_to_tensor": True}
        while True:
            try:
                return self._unit(lambda: self.model.encode(texts, batch_size=self.texts, **options)).cpu().numpy()
            except torch.OutOfMemoryError as error:
                if self.texts == 1:
                    raise self._too_long("one text") from error
            self.texts //= 2
            torch.cuda.empty_cache()

    def _unit(self, embed):
        """The vectors that a function makes, without gradients and in the precision, at unit length."""
        mixed = torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "mixed")
        with torch.inference_mode(), mixed:
            return torch.nn.functional.normalize(embed().float(), dim=1)

    def _too_long(self, text):
        return ValueError(
            f"encoder {self.entry.name}: {text} does not fit the memory of {self.device}; choose "
            "EARLIB_PRECISION=mixed, a smaller encoder or another device"
        )

    def _tokens(self, texts, prompt):
        """Token ids of each text, truncated to the encoder's length, by the tokenizer's own threads."""
        tokenizer = self.model.tokenizer.backend_tokenizer
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.entry.max_length)
        return [torch.tensor(one.ids) for one in tokenizer.encode_batch_fast([prompt + text for text in texts])]

    def _embed(self, tokens):
        """Embeddings of a piece, the longest texts first, so that a batch needs little padding."""
        lengths = np.array([len(ids) for ids in tokens])
        order, batches = np.argsort(-lengths, kind="stable"), []
        while (start := sum(map(len, batches))) < len(order):
            batches.append(order[start : start + self._count(int(lengths[order[start]]))])
        found = self._side_by_side([[tokens[row] for row in rows] for rows in batches])
        return torch.cat(found).cpu().numpy()[np.argsort(order)]

    def _side_by_side(self, batches):
        """Unit vectors of each batch; on a CPU one thread computes each, since their number changes the rounding."""
        threads = torch.get_num_threads()
        if self.device.type != "cpu":
            return [self._fitting(batch) for batch in batches]
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(int(os.environ.get("EARLIB_ENCODING_THREADS") or threads)) as pool:
                return list(pool.map(self._fitting, batches))
        finally:
            torch.set_num_threads(threads)

    def _fitting(self, tokens):
        """Unit vectors of the texts of a batch, in halves where it exceeds the device's memory."""
        try:
            return self._forward(tokens)
        except torch.OutOfMemoryError as error:
            half, longest = len(tokens) // 2, len(tokens[0])
            if not half:
                raise self._too_long(f"one text of {longest:,} tokens") from error
            self.tokens = min(self.tokens, half * longest)
        torch.cuda.empty_cache()  # not before the error is gone, which holds the batch's tensors
        return torch.cat([self._fitting(tokens[:half]), self._fitting(tokens[half:])])

    def _count(self, longest):
        if self.device.type == "cpu":
            return texts_on_a_cpu(self.entry.dimension, longest)
        return max(1, self.tokens // max(1, longest))

    def _forward(self, tokens):
        """Unit vectors of the texts of one batch, on the device; the longest text comes first."""
        tokenizer, tokens = self.model.tokenizer, [torch.as_tensor(ids) for ids in tokens]
        pad = partial(pad_sequence, batch_first=True, padding_side=tokenizer.padding_side)
        ids = pad(tokens, padding_value=tokenizer.pad_token_id).to(self.device)
        mask = pad([torch.ones_like(ids) for ids in tokens]).to(self.device)
        return self._unit(lambda: self.model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"])


def texts_on_a_cpu(width, longest):
    """Texts of a batch on a CPU; `TEXTS` for widths up to 1,024 and 512 tokens, whatever their lengths."""
    return max(1, min(TEXTS, NUMBERS // (width * max(1, longest))))


embedder = lru_cache(maxsize=1)(Embedder)  # one encoder in memory at a time


def _load(entry, device, remote_code):
    place = None if entry.folder else model_files.locate(entry, code=remote_code)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers.utils import logging

    logging.disable_progress_bar()  # the bar of the weights' loading floods a log that is not a terminal
    local = {"local_files_only": True, "trust_remote_code": remote_code}
    if entry.folder:
        return SentenceTransformer(entry.folder, device=str(device), **local).eval()
    reader = Transformer(
        str(place),
        max_seq_length=entry.max_length,
        model_kwargs={"dtype": entry.dtype, **local},
        config_kwargs=local,
        processor_kwargs=local,
    )
    if entry.bidirectional and not remote_code:
        _look_both_ways(reader.model)
    if entry.eos:
        _end_with(reader.tokenizer, entry.eos)
    modules = [reader, Pooling(reader.get_embedding_dimension(), entry.pooling)]
    if entry.head:
        modules.append(Dense.load(str(place), subfolder=entry.head, local_files_only=True))
    model = SentenceTransformer(modules=modules, device=str(device)).eval()
    found = {"dimension": model.get_embedding_dimension()}
    if (place / "1_Pooling" / "config.json").is_file():
        found["pooling"] = Pooling.load(str(place), subfolder="1_Pooling", local_files_only=True).pooling_mode
    for name, value in found.items():
        if value != getattr(entry, name):
            expected = f"{name} {getattr(entry, name)!r} (encoder {entry.name}), found {value!r}"
            raise ValueError(f"{place}: expected {expected}; put the publisher's files of {entry.model} there")
    return model


def _look_both_ways(model):
    """Let a decoder's tokens attend to later ones too, as it was trained to for embeddings.

    The configuration decides the mask; a batch without padding has none, and each layer's own attribute decides.
    """
    model.config.is_causal = False
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False


def _end_with(tokenizer, token):
    """Make every text end with a token, whose state is the embedding, also where it was truncated."""
    from tokenizers.processors import TemplateProcessing

    number = tokenizer.convert_tokens_to_ids(token)
    if tokenizer("a")["input_ids"][-1:] != [number]:
        ending = TemplateProcessing(single=f"$A {token}", special_tokens=[(token, number)])
        tokenizer.backend_tokenizer.post_processor = ending
