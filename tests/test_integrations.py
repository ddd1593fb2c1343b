"""The memory in other packages: retrievers, and a server; each test needs its package, an extra of this one."""

import asyncio
import importlib
import os
import pickle
import sys
from pathlib import Path

import pytest
from made_memory import made, text

from earlib.memory import integrations
from earlib.memory.folder import MemoryFolder


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


def test_langchain_gets_what_the_memory_returns(memory, tmp_path):
    needs("langchain_core")
    from langchain_core.prompts import PromptTemplate
    from langchain_core.runnables import RunnableLambda

    retriever = integrations.as_langchain(memory, k=3)
    found = retriever.invoke("red cello")
    expected = memory.retrieve("red cello", 3)
    assert [(one.page_content, one.id, one.metadata) for one in found] == [
        (one.text, str(one.id), {}) for one in expected
    ]
    prompt = PromptTemplate.from_template("{found}").invoke({"found": found[0]}).to_string()
    assert str(found[0].id) not in prompt.replace(found[0].page_content, "")
    assert asyncio.run(retriever.ainvoke("red cello")) == found
    chain = retriever | RunnableLambda(lambda documents: documents[0].page_content)
    assert chain.batch(["red cello", "one with a name"]) == [expected[0].text, "one with a name"]
    memory.feedback("red cello", found, [False, False, True])
    memory.feedback("one", cited=retriever.invoke("one with a name")[:1])  # whose id is a name
    after = {one.id: one.score for one in memory.retrieve("red cello", 41)}
    best, last = expected[0], expected[2]
    assert after[best.id] - after[last.id] < best.score - last.score  # it learned from what the chain saw
    memory.save(tmp_path)
    again = pickle.loads(pickle.dumps(integrations.as_langchain(memory, 2, "a", {"n": 1})))
    memory.add(["a cello", "a red cello"], None, "a", [{"n": 1}, {}])
    assert [(one.page_content, one.metadata) for one in again.invoke("cello")] == [("a cello", {"n": 1})]


def test_llamaindex_gets_what_the_memory_returns(memory, tmp_path):
    needs("llama_index.core")
    from llama_index.core.schema import MetadataMode, QueryBundle

    retriever = integrations.as_llamaindex(memory, k=3)
    expected = memory.retrieve(text(3), 3)
    for found in (retriever.retrieve(text(3)), retriever.retrieve(QueryBundle(text(3)))):
        assert [(one.node.get_content(), one.node_id) for one in found] == [(one.text, str(one.id)) for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected])
        assert {one.node.get_content(mode) for one in found for mode in MetadataMode} == {one.text for one in expected}
    assert asyncio.run(retriever.aretrieve("one with a name"))[0].node.node_id == "its name"
    assert memory.feedback(text(3), found, cited=found[:1]) == 3
    memory.save(tmp_path)
    assert [one.node_id for one in pickle.loads(pickle.dumps(retriever)).retrieve(text(5))] == [
        one.node_id for one in retriever.retrieve(text(5))
    ]


def test_a_client_of_the_protocol_uses_a_memory_over_stdio(tmp_path):
    """The package's own client starts the server, twice: what was remembered is there again."""
    needs("mcp")
    from mcp import Client, StdioServerParameters, stdio_client

    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {name: value for name, value in os.environ.items() if name.startswith(("EARLIB_", "OMP_"))}
    command = ["-m", "earlib.memory.serve", "~/m"]
    MemoryFolder(tmp_path / "m", create=True).close()  # as a first save leaves it that was cut off
    kept |= {"PYTHONPATH": path, "HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}
    started = StdioServerParameters(command=sys.executable, args=command, env=kept)

    async def life(*calls):
        async with Client(stdio_client(started)) as client:
            assert {one.name for one in (await client.list_tools()).tools} == {"add", "search", "feedback", "forget"}
            return [await client.call_tool(name, given) for name, given in calls]

    about = {"namespace": "u", "metadata": [{"by": "Ada"}, {"by": "Ben"}]}
    question = {"query": "Who plays an instrument?", "namespace": "u"}
    added, found, told, wrong = asyncio.run(
        life(
            ("add", {"texts": ["Ada plays the cello", "Ben is allergic to nuts"], **about}),
            ("search", question | {"k": 1}),
            ("feedback", {"query": question["query"], "shown": [0, 1], "cited": [0]}),
            ("forget", {"ids": [7]}),
        )
    )
    assert added.structured_content == {"result": [0, 1]} and told.structured_content == {"result": 2}
    (first,) = found.structured_content["result"]
    assert (first["id"], first["text"], first["metadata"]) == (0, "Ada plays the cello", {"by": "Ada"})
    assert wrong.is_error and "7: expected the id of a memory" in wrong.content[0].text
    found, forgot, left = asyncio.run(
        life(("search", question | {"where": {"by": "Ben"}}), ("forget", {"ids": [0]}), ("search", question))
    )
    assert [one["id"] for one in found.structured_content["result"]] == [1]
    assert forgot.structured_content == {"result": 1}
    assert [one["id"] for one in left.structured_content["result"]] == [1]


@pytest.mark.parametrize(
    ("made_of", "package", "extra"),
    [
        (integrations.as_langchain, "langchain_core.documents", "langchain"),
        (integrations.as_llamaindex, "llama_index.core.retrievers", "llamaindex"),
    ],
)
def test_without_the_package_the_extra_is_named(monkeypatch, memory, made_of, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"earlib.memory.for_{extra}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'earlib\[{extra}\]'"):
        made_of(memory)
