"""Residual Retrieval Adapter (Eqs. 3 and 4): scores of candidate memories after a learned linear map.

R adapters, one a replica (a seed), are held side by side and run as batched matrix products.
"""

import torch

LARGE = 2**23  # multiply-adds from which a product fills a CPU's cores by itself


def _product(left, right, out, beta=0, alpha=1):
    """out = beta * out + alpha * left @ right, `[R, a, b] x [R, b, c]`; on a CPU large ones replica by replica.

    A batched product gives each thread whole matrices: three replicas on two cores would leave one core idle for a
    third of the time. One product after the other keeps both busy, once it is large enough to be worth the call.
    """
    if out.is_cuda or left[0].numel() * right.shape[2] < LARGE:
        return out.baddbmm_(left, right, beta=beta, alpha=alpha)
    for replica in range(len(out)):
        out[replica].addmm_(left[replica], right[replica], beta=beta, alpha=alpha)
    return out


class _AdaptedScores(torch.autograd.Function):
    """z = q~ . m~ for every pair, with q~ = (I + W_q) q and m~ = (I + W_m) m, of unit length or not.

    The gradient is written out, since most of it is thin: with g = dL/dz and u the adapted embeddings before scaling,

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
        grad_q, grad_m = query.new_empty(2, len(query), query.shape[2], query.shape[2])
        _product(u_q.mT, _product(along, memory, torch.empty_like(query)), grad_m)
        if ctx.normalise:
            shrink = g * scores
            grad_u_q -= u_q * (shrink.sum(-1, keepdim=True) / length_q.square())
            scaled = u_m * (shrink.sum(1) / length_m.square()).unsqueeze(-1)
            _product(scaled.mT, memory, grad_m, beta=1, alpha=-1)
        return _product(grad_u_q.mT, query, grad_q), grad_m, None, None, None


class Adapter:
    """R residual adapters W_q, W_m of shape [R, d, d].

    Parameters
    ----------
    replicas : int
        R, how many adapters stand side by side.
    dimension : int
        d, the width of the embeddings.
    normalise : bool
        Whether adapted embeddings have unit length (Eq. 3) or not (Algorithm 3, line 1).
    start : torch.Tensor, optional
        Start of both matrices, `[2, R, d, d]`; zero if left out, so that the ranking starts as the retriever's.
    dtype, device
        Of the matrices.
    """

    def __init__(self, replicas, dimension, normalise=True, start=None, dtype=torch.float32, device="cpu"):
        if start is None:
            start = torch.zeros(2, replicas, dimension, dimension)
        self.normalise = normalise
        self.W_q, self.W_m = (W.to(device, dtype).clone().requires_grad_() for W in start)

    @property
    def parameters(self):
        """The matrices W_q and W_m."""
        return [self.W_q, self.W_m]

    def score(self, query, memory):
        """Score every memory for every query of a replica (Eq. 4's z).

        Parameters
        ----------
        query : torch.Tensor
            Embeddings of the frozen encoder, `[R, Q, d]`.
        memory : torch.Tensor
            Likewise, `[R, U, d]`: each memory once, whoever has it as a candidate.

        Returns
        -------
        scores : torch.Tensor
            `[R, Q, U]`, differentiable in W_q and W_m.
        adapted : torch.Tensor
            (I + W_m) m, `[R, U, d]`, before scaling; without gradient.
        length : torch.Tensor
            What each is divided by, `[R, U]`; ones where embeddings are not normalised.
        """
        return _AdaptedScores.apply(self.W_q, self.W_m, query, memory, self.normalise)


def gram(adapted, length, place):
    """Similarity of each pair of a query's adapted candidates (Eq. 6), `[R, Q, K, K]`.

    Parameters
    ----------
    adapted, length : torch.Tensor
        As `Adapter.score` returns them.
    place : torch.Tensor
        Where a query's K candidates stand among the U memories, `[R, Q, K]`.
    """
    (R, U, d), (_, Q, K) = adapted.shape, place.shape
    row = (place + torch.arange(0, R * U, U, device=place.device)[:, None, None]).flatten()
    vectors = adapted.view(-1, d).index_select(0, row).view(R * Q, K, d)
    lengths = length.flatten().index_select(0, row).view(R * Q, 1, K)
    return (vectors @ vectors.mT / (lengths * lengths.mT)).view(R, Q, K, K)
