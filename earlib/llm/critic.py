"""Citations by a language model."""

from collections import Counter

import torch

from earlib.llm import Request, parsing, prompts


def request(question, memories, tokens, sample=0):
    """The request for the citations of a slate."""
    return Request(prompts.citation_prompt(question, memories), tokens, sample=sample)


def citations(reply, question, memories):
    """`parsing.Citations` of the reply to it; of one that was refused or failed none, with its status as the reason."""
    read = reply.read(parsing.read_citations, len(memories), [question, *memories])
    return read or parsing.Citations(None, reply.status)


class LLMCritic:
    """Critic that asks a language model which memories of a slate it used for its answer (the paper's prompt).

    One call cites a slate. It reads the question and the memories, never a gold label. Citations that cannot be read,
    or are refused, are masked: the statistics then stay as they are, the Explorer shows the slate again, and the model
    is asked once more (`Request.sample`). Otherwise equal slates of a question are one call, whose reply is stored: its
    errors persist, while those of the simulated critic are drawn afresh.

    Parameters
    ----------
    client : earlib.llm.client.Client
    questions, memories : sequence of str
        Texts, by query number and by row of the bank.
    index : torch.Tensor
        Rows of the candidates, `[N, K]`.
    tokens : int
        Maximum length of a reply.
    sample : int
        Number of the first try: under another one a slate is asked about again.

    Attributes
    ----------
    unread : collections.Counter
        Slates whose citations are masked, by the reason.
    """

    def __init__(self, client, questions, memories, index, tokens, sample=0):
        self.client, self.questions, self.memories, self.index = client, questions, memories, index
        self.tokens, self.sample = tokens, sample
        self.unread = Counter()
        self._again = Counter()  # by question and slate: replies so far that could not be read

    def __call__(self, queries, slates, uniforms=None):
        """Cite the memories of each slate, all in one round of calls; nothing is drawn."""
        shown = list(zip(queries.flatten().tolist(), map(tuple, slates.flatten(0, -2).tolist()), strict=True))
        slate_texts = [[self.memories[row] for row in self.index[query, list(slate)]] for query, slate in shown]
        texts = [(self.questions[query], read) for (query, _), read in zip(shown, slate_texts, strict=True)]
        tries = [self.sample + self._again[one] for one in shown]
        requests = [request(*given, self.tokens, number) for given, number in zip(texts, tries, strict=True)]
        read = [self._read(*one) for one in zip(self.client.ask(requests), texts, strict=True)]
        self._again.update(one for one, indices in zip(shown, read, strict=True) if indices is None)
        cited = torch.tensor([[at in (indices or ()) for at in range(slates.shape[-1])] for indices in read])
        # An estimate counts as "nothing useful": the next round then shows other memories, and is counted.
        readable = torch.tensor([indices is not None or self.client.estimating for indices in read]).unsqueeze(-1)
        citations = torch.where(cited, 1, -1).view(slates.shape).to(slates.device)
        return citations, readable.view(*slates.shape[:-1], 1).expand(slates.shape).to(slates.device)

    def _read(self, reply, shown):
        """Positions that a reply cites; None if they cannot be read."""
        indices, reason = citations(reply, *shown)
        if indices is None:
            self.unread[reason] += 1
        return indices
