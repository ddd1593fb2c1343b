"""Residual Retrieval Adapter (Eqs. 3 and 4): scores of candidate memories after a learned linear map.

R adapters, one a replica (a seed), are held side by side and run as batched matrix products.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from earlib.core import randomness

LARGE = 2**23  # multiply-adds from which a product fills a CPU's cores by itself


def plain_scores(W_q: Tensor, W_m: Tensor, query: Tensor, memory: Tensor, normalise: bool = True) -> Tensor:
    """z = q~ . m~ with q~ = (I + W_q) q and m~ = (I + W_m) m of unit length (Eqs. 3 and 4), `[R, Q, U]`.

    The readable form of `AdaptedScores`, which a test holds to it.
    """
    q, m = query + query @ W_q.mT, memory + memory @ W_m.mT
    if normalise:
        q, m = F.normalize(q, dim=-1), F.normalize(m, dim=-1)
    return q @ m.mT


class AdaptedScores(torch.autograd.Function):
    """`plain_scores` with its gradient written out, most of which is thin.

    With g = dL/dz and u the adapted embeddings before normalisation,

        dL/du_m = sum over queries of  g u_q / (|u_q| |u_m|)  -  u_m (sum over queries of g z) / |u_m|^2,

    whose first part has one direction a query, so that only the second is a sum over all memories.
    """

    @staticmethod
    def forward(ctx, W_q, W_m, query, memory, normalise):
        u_q = _product(query, W_q.mT, query.clone(), beta=1)
        u_m = _product(memory, W_m.mT, memory.clone(), beta=1)
        scores = _product(u_q, u_m.mT, query.new_empty(*query.shape[:2], memory.shape[1]))
        length_q, length_m = query.new_ones(1), memory.new_ones(memory.shape[:2])
        if normalise:
            length_q = torch.linalg.vector_norm(u_q, dim=-1, keepdim=True)
            length_m = torch.linalg.vector_norm(u_m, dim=-1)
            scores /= length_q * length_m.unsqueeze(1)
        ctx.normalise = normalise
        ctx.save_for_backward(query, memory, u_q, u_m, length_q, length_m, scores)
        ctx.mark_non_differentiable(u_m, length_m)
        return scores, u_m, length_m

    @staticmethod
    def backward(ctx, g, _memory, _length):
        query, memory, u_q, u_m, length_q, length_m, scores = ctx.saved_tensors
        along = g / (length_q * length_m.unsqueeze(1)) if ctx.normalise else g
        grad_u_q = _product(along, u_m, torch.empty_like(query))
        shrink = g * scores
        if ctx.normalise:
            grad_u_q -= u_q * (shrink.sum(-1, keepdim=True) / length_q.square())
        grad_q, grad_m = query.new_empty(2, len(query), query.shape[2], query.shape[2])
        _product(grad_u_q.mT, query, grad_q)
        if not ctx.needs_input_grad[1]:
            return grad_q, None, None, None, None
        _product(u_q.mT, _product(along, memory, torch.empty_like(query)), grad_m)
        if ctx.normalise:
            scaled = u_m * (shrink.sum(1) / length_m.square()).unsqueeze(-1)
            _product(scaled.mT, memory, grad_m, beta=1, alpha=-1)
        return grad_q, grad_m, None, None, None


def _product(left, right, out, beta=0, alpha=1):
    """out = beta * out + alpha * left @ right, `[R, a, b] x [R, b, c]`.

    On a CPU large products run replica by replica: a batched one gives each thread whole matrices, so that three
    replicas on two cores would leave one of them idle for a third of the time.
    """
    if out.is_cuda or left[0].numel() * right.shape[2] < LARGE:
        return out.baddbmm_(left, right, beta=beta, alpha=alpha)
    for replica in range(len(out)):
        out[replica].addmm_(left[replica], right[replica], beta=beta, alpha=alpha)
    return out


class Adapter:
    """R residual adapters with matrices W_q and W_m, `[R, d, d]` each, from initial parameters as `start` makes them.

    `kind` is `Config.adapter`, how the parameters form W_q and W_m. A low-rank product is formed: it saves parameters,
    not time.
    """

    def __init__(
        self,
        start: Sequence[Tensor],
        kind: str = "full",
        normalise: bool = True,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ):
        self.kind, self.normalise = kind, normalise
        self.parameters = [part.to(device, dtype).clone().requires_grad_() for part in start]

    @property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """W_q and W_m, differentiable in the parameters."""
        if self.kind == "low-rank":
            A_q, A_m, B_q, B_m = self.parameters
            return B_q @ A_q, B_m @ A_m
        if self.kind == "query":
            return self.parameters[0], torch.zeros_like(self.parameters[0])
        W_q, W_m = self.parameters
        return (torch.diag_embed(W_q), torch.diag_embed(W_m)) if self.kind == "diagonal" else (W_q, W_m)

    def score(self, query: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Score every memory for every query of a replica (z of Eq. 4).

        Parameters
        ----------
        query, memory : torch.Tensor
            Embeddings of the frozen encoder, `[R, Q, d]` and `[R, U, d]`.

        Returns
        -------
        scores : torch.Tensor
            `[R, Q, U]`, differentiable in the parameters.
        adapted : torch.Tensor
            (I + W_m) m before normalisation, `[R, U, d]`; without gradient.
        length : torch.Tensor
            Lengths by which they are divided, `[R, U]`; ones without normalisation.
        """
        return AdaptedScores.apply(*self.matrices, query, memory, self.normalise)


def start(config, seeds: Sequence[int], dimension: int, device: str | torch.device = "cpu") -> list[Tensor]:
    """Initial parameters of adapters, one replica a seed: at zero they rank as the retriever does.

    Low-rank: A_q and A_m, `[R, r, d]`, with entries of deviation 1 / sqrt(d), then B_q and B_m, `[R, d, r]`, zero.
    """
    R, d = len(seeds), dimension

    def normal(deviation, shape):
        drawn = [randomness.generator(seed, "start").normal(0, deviation, (2, *shape)) for seed in seeds]
        return list(torch.from_numpy(np.stack(drawn, 1)))

    if config.adapter == "low-rank":
        return normal(d**-0.5, (config.rank, d)) + [torch.zeros(R, d, config.rank) for _ in range(2)]
    if config.init == "normal":
        return normal(0.01, (d, d))
    shape = (R, d) if config.adapter == "diagonal" else (R, d, d)
    return [torch.zeros(shape, device=device) for _ in range(1 if config.adapter == "query" else 2)]


def gram(adapted: Tensor, length: Tensor, place: Tensor) -> Tensor:
    """Similarity of each pair of a query's adapted candidates (Eq. 6), `[R, Q, K, K]`.

    Parameters
    ----------
    adapted, length : torch.Tensor
        As returned by `Adapter.score`.
    place : torch.Tensor
        Positions of a query's K candidates among the U memories, `[R, Q, K]`.
    """
    (R, U, d), (_, Q, K) = adapted.shape, place.shape
    row = (place + torch.arange(0, R * U, U, device=place.device)[:, None, None]).flatten()
    vectors = adapted.view(-1, d).index_select(0, row).view(R * Q, K, d)
    lengths = length.flatten().index_select(0, row).view(R * Q, 1, K)
    return (vectors @ vectors.mT / (lengths * lengths.mT)).view(R, Q, K, K)
