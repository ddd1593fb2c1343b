"""Exact search: the k memories closest to a query by cosine, in banks of any size."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from earlib.core.ordering import best

PRODUCTS = 2**20  # float32 products of queries and rows of a bank at a time
ROWS = 2**16  # rows of a bank that are made, read or searched at a time: 50 MB of 384 dimensions in fp16
EXACT = 2**8  # rows of a bank that are multiplied in float64 at a time


def top_k(query, bank, k):
    """The k rows of a bank closest to each query by cosine, by the tie rule of `earlib.core.ordering`.

    Products are summed in float64, since sums in float32 depend on where in the bank a row stands and on how many
    queries share the product, so that equal memories would not tie. A large bank is read once and never copied: float32
    products tell which rows can be among the k best, and only those are multiplied again in float64.

    Unit embeddings of one query or many, `[..., d]` float32, and of a bank, `[M, d]` float32 or float16, which may lie
    in a memory-mapped file. Returns descending similarities, `[..., k]` float32, and rows, `[..., k]` int64. A
    ValueError if k is not between 1 and M, or an embedding is not finite.
    """
    if not 1 <= k <= len(bank):
        raise ValueError(f"k = {k}: expected 1 to {len(bank)}, the number of memories in the bank")
    flat = query.reshape(-1, query.shape[-1])
    similarity = torch.empty(len(flat), 0, dtype=torch.float64)
    index = torch.empty(len(flat), 0, dtype=torch.int64)
    step = max(EXACT, PRODUCTS // max(1, len(flat)))
    for start in range(0, len(bank), step):
        block = bank[start : start + step].float()
        for rows in _close(flat, block, k, similarity).split(EXACT):
            products = flat.double() @ block[rows].double().T
            similarity = torch.cat([similarity, products], 1)
            index = torch.cat([index, (start + rows).expand(len(flat), -1)], 1)
            order = best(similarity, k)  # what was found before stands first, so that it wins a tie
            similarity, index = similarity.gather(1, order), index.gather(1, order)
    _check_finite(similarity.numpy())
    similarity = similarity.float()
    return similarity.view(*query.shape[:-1], k), index.view(*query.shape[:-1], k)


def _close(query, block, k, found):
    """Rows of a block that can be among the k best of some query, given the similarities found in blocks before it.

    A row whose product lies more than its `rounding` below the k-th best found is below that; one more than twice this
    below the k-th product of the block is below k others of the block.
    """
    if len(block) <= EXACT:
        return torch.arange(len(block))
    # NumPy's product with one vector runs at the speed of memory; torch's takes twice as long on some processors.
    products = query.numpy() @ block.numpy().T
    _check_finite(products)
    off = rounding(query)
    bound = np.full(len(query), -np.inf)
    if found.shape[1] == k:
        bound = found[:, -1].numpy() - off
    if len(block) >= k:
        bound = np.maximum(bound, np.partition(products, -k)[:, -k] - 2 * off)
    return torch.from_numpy(np.flatnonzero((products >= bound.astype(np.float32)[:, None]).any(0)))


def stream(rows, query, k, name, size=ROWS):
    """As `top_k` for one query and a bank in float16, in parallel; the bank is read once.

    Of each block of `size` rows, the scan in float16 keeps the best; those that may be among the k closest are
    multiplied again. `name` is the bank's, for messages.
    """
    threads = torch.get_num_threads()
    size = min(size, -(-len(rows) // threads))  # a small bank in as many equal blocks as there are threads
    blocks = list(zip(range(0, len(rows), size), rows.split(size), strict=True))
    # More than k a block, so that a block whose own k are close seldom has to be looked at again.
    with ThreadPoolExecutor(threads) as pool:
        scanned = list(pool.map(lambda block: scan(block[1].numpy(), query.numpy(), 2 * k), blocks))
    bound = np.sort(np.concatenate([products for products, _ in scanned]))[-k] - 2 * rounding(query[None]).item()
    if bound == -np.inf:
        raise ValueError(f"{name}: memories are not finite; write the bank anew")
    near = []
    for (start, block), (products, places) in zip(blocks, scanned, strict=True):
        if len(products) < len(block) and (products >= bound).all():  # there may be more
            places = top_k(query, block.float(), min(k, len(block)))[1].numpy()
        else:
            places = places[products >= bound]
        near.append(start + np.sort(places))  # in the bank's order: of equal ones the first wins
    near = torch.from_numpy(np.concatenate(near))
    similarity, place = top_k(query, rows[near].float(), k)
    return similarity, near[place]


def scan(block, query, count):
    """The highest products of one query with rows in float16, and those rows, in no order.

    The library multiplies float16 without a copy in float32, which makes it as fast as reading.
    """
    import faiss

    count = min(count, len(block))
    products, places = np.full(count, -np.inf, np.float32), np.full(count, -1, np.int64)
    quantizer = faiss.ScalarQuantizer(block.shape[1], faiss.ScalarQuantizer.QT_fp16)
    scanner = quantizer.select_InvertedListScanner(faiss.METRIC_INNER_PRODUCT, None, True, None, False)
    scanner.set_query(faiss.swig_ptr(query))
    scanner.set_list(0, 0.0)
    codes, (heap, ids) = block.view(np.uint8).reshape(-1), map(faiss.swig_ptr, (products, places))
    scanner.scan_codes(len(block), faiss.swig_ptr(codes), None, heap, ids, count)
    return products, places


def rounding(query):
    """Bound of the error of a float32 product of each query with a row of unit length, `[Q]` float64.

    However it is summed, a product of d terms is off by at most d u / (1 - d u) |q| |m| with u = 2^-24, here with room
    for the rounding of lengths and of bounds.
    """
    return 1.02 * (query.shape[1] + 4) * 2.0**-24 * query.double().norm(dim=1).numpy()


def _check_finite(products):
    if not np.isfinite(products).all():
        raise ValueError("the embeddings of a query or a memory are not finite; encode them anew")
