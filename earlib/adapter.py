"""Residual Retrieval Adapter (Eqs. 3 and 4): scores of candidate memories after a learned linear map.

R adapters, one a replica (a seed), are held side by side and run as batched matrix products.
"""

import torch


class _AdaptedScores(torch.autograd.Function):
    """z_i = q~ . m~_i with q~ = (I + W_q) q and m~ = (I + W_m) m, of unit length or not.

    The gradient is written out, since it is two thin products and one thick one: with g = dL/dz and u the
    adapted embeddings before scaling,

        dL/du_m = g u_q / (|u_q| |u_m|) - g z u_m / |u_m|^2,

    whose first part has one direction a query, so that only the second is summed candidate by candidate.
    """

    @staticmethod
    def forward(ctx, W_q, W_m, query, memory, normalise):
        R, Q, d = query.shape
        u_q = torch.baddbmm(query, query, W_q.mT)
        u_m = torch.baddbmm(memory, memory, W_m.mT)
        scores = (u_m.view(R * Q, -1, d) @ u_q.view(R * Q, d, 1)).view(R, Q, -1)
        length_q = length_m = None
        if normalise:
            length_q = torch.linalg.vector_norm(u_q, dim=-1, keepdim=True)
            length_m = torch.linalg.vector_norm(u_m, dim=-1).view(R, Q, -1)
            scores = scores / (length_q * length_m)
        ctx.save_for_backward(query, memory, u_q, u_m, length_q, length_m, scores)
        u_m, length_m = u_m.detach(), length_m.detach() if normalise else torch.ones_like(scores)
        ctx.mark_non_differentiable(u_m, length_m)
        return scores, u_m, length_m

    @staticmethod
    def backward(ctx, g, _memory, _length):
        query, memory, u_q, u_m, length_q, length_m, scores = ctx.saved_tensors
        R, Q, d = query.shape

        def over_candidates(weight, vectors):
            return (weight.reshape(R * Q, 1, -1) @ vectors.view(R * Q, -1, d)).view(R, Q, d)

        along = g if length_q is None else g / (length_q * length_m)
        grad_u_q = over_candidates(along, u_m)
        grad_m = u_q.mT @ over_candidates(along, memory)
        if length_q is not None:
            shrink = g * scores
            grad_u_q = grad_u_q - u_q * (shrink.sum(-1, keepdim=True) / length_q.square())
            scaled = u_m * (shrink / length_m.square()).view(R, -1, 1)
            grad_m = torch.baddbmm(grad_m, scaled.mT, memory, alpha=-1)
        return grad_u_q.mT @ query, grad_m, None, None, None


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
        """Score candidates (Eq. 4's z).

        Parameters
        ----------
        query : torch.Tensor
            Embeddings of the frozen encoder, `[R, Q, d]`.
        memory : torch.Tensor
            Embeddings of each query's K candidates in turn, `[R, Q * K, d]`.

        Returns
        -------
        scores : torch.Tensor
            `[R, Q, K]`, differentiable in W_q and W_m.
        adapted : torch.Tensor
            (I + W_m) m, `[R, Q * K, d]`, before scaling; without gradient.
        length : torch.Tensor
            What each is divided by, `[R, Q, K]`; ones where embeddings are not normalised.
        """
        return _AdaptedScores.apply(self.W_q, self.W_m, query, memory, self.normalise)


def gram(adapted, length):
    """Similarity of each pair of a query's adapted candidates (Eq. 6), `[R, Q, K, K]`.

    Parameters
    ----------
    adapted, length : torch.Tensor
        As `Adapter.score` returns them.
    """
    R, Q, K = length.shape
    vectors = adapted.view(R * Q, K, -1)
    products = (vectors @ vectors.mT).view(R, Q, K, K)
    return products / (length.unsqueeze(-1) * length.unsqueeze(-2))
