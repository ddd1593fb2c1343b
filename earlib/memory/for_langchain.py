"""The retriever of `integrations.as_langchain`, in a module of its own so that it can be pickled."""

from typing import Any

from earlib import extra

with extra("langchain"):
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever


class EARRetriever(BaseRetriever):
    """Ranks by an `EARMemory`."""

    memory: Any
    k: int
    namespace: str
    where: Any

    def _get_relevant_documents(self, query, *, run_manager):
        found = self.memory.retrieve(query, self.k, self.namespace, self.where)
        return [Document(page_content=one.text, id=str(one.id), metadata=one.metadata) for one in found]
