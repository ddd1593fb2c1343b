"""An `EARMemory` as the retriever of LangChain or LlamaIndex; each package is an extra that only its function needs.

What these packages return carries the memory's id, so that feedback can be given about it.
"""

from earlib import extra


def as_langchain(memory, k=5):
    """A LangChain retriever (the extra `langchain`).

    Parameters
    ----------
    memory : EARMemory
    k : int
        Memories that it returns.

    Returns
    -------
    langchain_core.retrievers.BaseRetriever
        Its documents carry `id` (as text) and, in their metadata, `id` and `score`.

    Raises
    ------
    ModuleNotFoundError
        If the package is not installed; the extra that brings it is named.
    """
    with extra("langchain"):
        from langchain_core.documents import Document
        from langchain_core.retrievers import BaseRetriever

    class EARRetriever(BaseRetriever):
        """Ranks by an `EARMemory`."""

        def _get_relevant_documents(self, query, *, run_manager):
            return [
                Document(page_content=one.text, id=str(one.id), metadata={"id": one.id, "score": one.score})
                for one in memory.retrieve(query, k)
            ]

    return EARRetriever()


def as_llamaindex(memory, k=5):
    """A LlamaIndex retriever (the extra `llamaindex`).

    Parameters
    ----------
    memory : EARMemory
    k : int
        Memories that it returns.

    Returns
    -------
    llama_index.core.retrievers.BaseRetriever
        Its nodes carry the id as text and, in their metadata, as it is.

    Raises
    ------
    ModuleNotFoundError
        If the package is not installed; the extra that brings it is named.
    """
    with extra("llamaindex"):
        from llama_index.core.retrievers import BaseRetriever
        from llama_index.core.schema import NodeWithScore, TextNode
    hidden = {f"excluded_{kind}_metadata_keys": ["id"] for kind in ("llm", "embed")}  # no model reads it

    class EARRetriever(BaseRetriever):
        """Ranks by an `EARMemory`."""

        def _retrieve(self, query_bundle):
            return [
                NodeWithScore(
                    node=TextNode(text=one.text, id_=str(one.id), metadata={"id": one.id}, **hidden), score=one.score
                )
                for one in memory.retrieve(query_bundle.query_str, k)
            ]

    return EARRetriever()
