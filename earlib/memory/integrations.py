"""An `EARMemory` as the retriever of LangChain or LlamaIndex; each package is an extra that only its function needs.

What these packages return carries the memory's id beside the text, where no prompt shows it; `feedback` takes it as it
takes what `retrieve` returns. A retriever is pickled with the place of its memory's folder.
"""


def as_langchain(memory, k=5, namespace="", where=None):
    """A LangChain retriever (the extra `langchain`), whose documents carry `id` (as text) and the memory's metadata.

    Parameters
    ----------
    memory : EARMemory
    k, namespace, where : int, str and dict or callable
        As for `EARMemory.retrieve`.

    Raises
    ------
    ModuleNotFoundError
        If the package is not installed; the extra that brings it is named.
    """
    from earlib.memory.for_langchain import EARRetriever

    return EARRetriever(memory=memory, k=k, namespace=namespace, where=where)


def as_llamaindex(memory, k=5, namespace="", where=None):
    """A LlamaIndex retriever (the extra `llamaindex`), whose nodes carry the id (as text) and the memory's metadata.

    Parameters
    ----------
    memory : EARMemory
    k, namespace, where : int, str and dict or callable
        As for `EARMemory.retrieve`.

    Raises
    ------
    ModuleNotFoundError
        If the package is not installed; the extra that brings it is named.
    """
    from earlib.memory.for_llamaindex import EARRetriever

    return EARRetriever(memory, k, namespace, where)
