"""The memory as a retriever of other packages; each test needs its package, an extra of this one."""

import asyncio
import importlib
import os
import sys

import pytest
from test_memory import made, text

from earlib.memory import integrations


@pytest.fixture
def memory():
    held = made(40)
    held.add(["one with a name"], ["its name"])
    return held


def needs(package):
    """Skip a test whose package is not installed, unless the environment says that it is."""
    if os.environ.get("EARLIB_TEST_INTEGRATIONS"):
        return importlib.import_module(package)
    return pytest.importorskip(package, reason=f"{package} is an extra; `make test-integrations` installs it")


def test_langchain_gets_what_the_memory_returns(memory):
    needs("langchain_core")
    from langchain_core.runnables import RunnableLambda

    retriever = integrations.as_langchain(memory, k=3)
    found = retriever.invoke("red cello")
    expected = memory.retrieve("red cello", 3)
    assert [(one.page_content, one.metadata["id"]) for one in found] == [(one.text, one.id) for one in expected]
    assert [one.metadata["score"] for one in found] == [one.score for one in expected]
    assert asyncio.run(retriever.ainvoke("red cello")) == found
    chain = retriever | RunnableLambda(lambda documents: documents[0].page_content)
    assert chain.batch(["red cello", "one with a name"]) == [expected[0].text, "one with a name"]
    assert retriever.invoke("one with a name")[0].metadata["id"] == "its name"
    memory.feedback("red cello", [one.metadata["id"] for one in found], [False, False, True])
    after = {one.id: one.score for one in memory.retrieve("red cello", 40)}
    best, last = found[0].metadata, found[2].metadata
    assert after[best["id"]] - after[last["id"]] < best["score"] - last["score"]  # it learned from what the chain saw
    assert retriever.invoke("red cello")[0].metadata["score"] == max(after.values())


def test_llamaindex_gets_what_the_memory_returns(memory):
    needs("llama_index.core")
    from llama_index.core.schema import QueryBundle

    retriever = integrations.as_llamaindex(memory, k=3)
    expected = memory.retrieve(text(3), 3)
    for found in (retriever.retrieve(text(3)), retriever.retrieve(QueryBundle(text(3)))):
        assert [(one.node.get_content(), one.node.metadata["id"]) for one in found] == [
            (one.text, one.id) for one in expected
        ]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected])
    assert asyncio.run(retriever.aretrieve("one with a name"))[0].node.node_id == "its name"


def test_no_model_reads_the_ids_of_llamaindexs_nodes(memory):
    needs("llama_index.core")
    from llama_index.core.schema import MetadataMode

    (found,) = integrations.as_llamaindex(memory, k=1).retrieve("one with a name")
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        assert found.node.get_content(mode) == "one with a name"


@pytest.mark.parametrize(
    ("made_of", "package", "extra"),
    [
        (integrations.as_langchain, "langchain_core.documents", "langchain"),
        (integrations.as_llamaindex, "llama_index.core.retrievers", "llamaindex"),
    ],
)
def test_without_the_package_the_extra_is_named(monkeypatch, memory, made_of, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'earlib\[{extra}\]'"):
        made_of(memory)
