"""The retriever of `integrations.as_llamaindex`, in a module of its own so that it can be pickled."""

from earlib import extra

with extra("llamaindex"):
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, TextNode


class EARRetriever(BaseRetriever):
    """Ranks by an `EARMemory`."""

    def __init__(self, *asked):
        super().__init__()
        self.asked = asked

    def _retrieve(self, query_bundle):
        memory, *asked = self.asked
        found = memory.retrieve(query_bundle.query_str, *asked)
        nodes = [TextNode(text=one.text, id_=str(one.id), metadata=one.metadata) for one in found]
        return [NodeWithScore(node=node, score=one.score) for node, one in zip(nodes, found, strict=True)]
