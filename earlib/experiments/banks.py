"""Banks larger than RAM: embeddings in a mapped file, searched exactly by a scan or approximately by an index."""

from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import torch

from earlib import paths
from earlib.core.ordering import best
from earlib.data.search import ROWS, stream, top_k

TRAINED_ON = 64  # rows a list on which an index learns its lists
RESCORED = 5  # candidates of an index that are multiplied again, for each that is wanted
AIM = 0.95  # recall that the lists searched must reach at the lower end of its interval


def write_bank(path, blocks, count, dimension):
    """Write M unit embeddings, in blocks `[m, d]`, as a NumPy file of float16, and remove the index of an older bank.

    Raises ValueError for a wrong width or number, or numbers that are not finite; the old file stays.
    """
    written = 0
    with paths.replacing(path) as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": (count, dimension)}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            with np.errstate(over="ignore"):  # too large for the format: infinite, which is refused
                kept = np.ascontiguousarray(block, "<f2")
            if kept.shape[1:] != (dimension,):
                raise ValueError(f"{path}: expected {dimension} dimensions, got a block of shape {kept.shape}")
            if not (finite := np.isfinite(kept).all(axis=1)).all():
                raise ValueError(f"{path}: memory {written + int(np.argmin(finite))} is not finite; encode it anew")
            file.write(kept)
            written += len(kept)
        if written != count:
            raise ValueError(f"{path}: expected {count:,} memories, got {written:,}; the old file stays")
    index_path(path).unlink(missing_ok=True)


def index_path(path):
    """File of the index of a bank, in the same folder."""
    return Path(path).with_suffix(".faiss")


class Bank:
    """A bank in a file, mapped into memory; ValueError if the file is no bank, or truncated."""

    def __init__(self, path):
        self.path = Path(path)
        try:
            rows = np.load(self.path, mmap_mode="c", allow_pickle=False)  # torch warns of read-only memory
        except (ValueError, EOFError) as error:
            raise ValueError(f"{self.path}: not a whole bank ({error}); write the bank anew") from None
        if rows.ndim != 2 or rows.dtype != np.float16 or not rows.flags.c_contiguous:
            found = f"found {rows.dtype} of shape {rows.shape}"
            raise ValueError(f"{self.path}: expected rows of float16, {found}; write the bank anew")
        self.rows, self.dimension = torch.from_numpy(rows), rows.shape[1]

    def __len__(self):
        return len(self.rows)

    def blocks(self):
        """The bank in float32, `[m, d]` at a time."""
        return (block.float() for block in self.rows.split(ROWS))

    def search(self, query, k):
        """The k memories closest to each query, `[..., d]` float32: similarities, descending, and rows, `[..., k]`.

        As `top_k` of the same numbers in float32, ties included. One query is multiplied in the format of the file,
        about as fast as reading; several share float32 blocks.
        """
        if query.numel() != self.dimension or not 1 <= k <= len(self):
            return top_k(query, self.rows, k)
        similarity, index = stream(self.rows, query.reshape(-1), k, self.path, ROWS)
        return similarity.view(*query.shape[:-1], k), index.view(*query.shape[:-1], k)


# -- the approximate index ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Index:
    """Lists of memories, in 8 bits a number, around centres; those nearest to a query are searched.

    What they return is multiplied again with the bank's own rows.
    """

    bank: Bank
    lists: faiss.IndexIVF  # its nprobe is the number of lists searched

    def search(self, query, k):
        """As `Bank.search`, except that memories in other lists are missed."""
        flat, wanted = query.reshape(-1, self.bank.dimension), min(RESCORED * k, len(self.bank))
        _, rows = self.lists.search(flat.numpy(), wanted)
        if (rows[:, k - 1] < 0).any():  # the lists searched hold fewer than k
            _, rows = self.lists.search(flat.numpy(), wanted, params=faiss.SearchParametersIVF(nprobe=self.lists.nlist))
        rows = torch.from_numpy(rows).sort(1).values  # in the bank's order: of equal ones the first wins
        found = self.bank.rows[rows.clamp(min=0)].double()
        similarity = torch.einsum("qd,qkd->qk", flat.double(), found).masked_fill(rows < 0, -torch.inf)
        order = best(similarity, k)
        similarity, rows = similarity.gather(1, order).float(), rows.gather(1, order)
        return similarity.view(*query.shape[:-1], k), rows.view(*query.shape[:-1], k)


def build_index(bank, query):
    """Build the index of a bank, write it next to the bank, and print its recall@20 for queries, `[Q, d]`.

    There are as many lists as the root of the bank's size. The number of lists searched doubles until the lower end of
    the recall's 95 % interval over queries is 0.95.
    """
    lists, k = max(1, round(len(bank) ** 0.5)), min(20, len(bank))
    made = faiss.index_factory(bank.dimension, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    made.cp.min_points_per_centroid = 1  # no warning for a small bank
    made.train(bank.rows[:: max(1, len(bank) // (TRAINED_ON * lists))].float().numpy())
    for block in bank.blocks():
        made.add(block.numpy())
    made.parallel_mode = 1  # one query uses all threads
    _, expected = bank.search(query, k)
    while True:
        shares = overlap(Index(bank, made).search(query, k)[1], expected)
        low = shares.mean() - 1.96 * shares.std(correction=0) / len(shares) ** 0.5
        recall = f"recall@{k} {shares.mean():.4f}, at least {low:.4f} by {len(query)} queries"
        print(f"{lists:,} lists, {made.nprobe} searched: {recall}")
        if low >= AIM or made.nprobe == lists:
            break
        made.nprobe = min(2 * made.nprobe, lists)
    with paths.replacing(index_path(bank.path)) as file:
        faiss.write_index(made, faiss.PyCallbackIOWriter(file.write))
    return Index(bank, made)


def overlap(found, expected):
    """Share of the expected rows, `[Q, k]`, that were found, `[Q]`."""
    return (found.unsqueeze(-1) == expected.unsqueeze(-2)).any(-2).double().mean(-1)
