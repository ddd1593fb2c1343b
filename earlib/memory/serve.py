"""`python -m earlib.memory.serve FOLDER`: a memory as a server of the Model Context Protocol, over stdin and stdout.

The folder is made where there is none. The server needs the extra `mcp`.
"""

import argparse
import functools
from pathlib import Path
from typing import Any

from earlib import extra
from earlib.memory import EARMemory
from earlib.memory.folder import UnsavedError

with extra("mcp"):
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError


def server(memory: EARMemory) -> "MCPServer":
    """Return a server whose tools are those of a memory."""
    made = MCPServer("earlib memory")

    def tool(work):
        @functools.wraps(work)
        def told(**given):
            try:
                return work(**given)
            except Exception as error:  # of another type no message reaches the client
                raise ToolError(str(error)) from error

        made.add_tool(told)

    @tool
    def add(texts: list[str], namespace: str = "", metadata: list[dict[str, Any]] | None = None) -> list[int | str]:
        """Remember texts; returns their ids. A namespace keeps the memories of a user or a conversation apart."""
        return memory.add(texts, None, namespace, metadata)

    @tool
    def search(
        query: str, k: int = 5, namespace: str = "", where: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Find the k memories of a namespace that matter most for a question; `where` is equalities of metadata."""
        return [one._asdict() for one in memory.retrieve(query, k, namespace, where)]

    @tool
    def feedback(query: str, shown: list[int | str], cited: list[int | str]) -> int:
        """Tell which of the memories that a search has shown were useful, by their ids, so that it ranks better."""
        return memory.feedback(query, shown, cited=cited)

    @tool
    def forget(ids: list[int | str]) -> int:
        """Forget memories by their ids; returns how many."""
        memory.remove(ids)
        return len(ids)

    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=lambda name: Path(name).expanduser())  # a client starts it without a shell
    parser.add_argument("--encoder", help="of a new memory: a name, or the folder of a sentence-transformers model")
    parser.add_argument("--context", help="of a new memory: the key of the metadata that tells sessions apart")
    options = parser.parse_args()
    try:
        memory = EARMemory.load(options.folder, options.encoder)
    except UnsavedError:  # none was ever saved to its end
        memory = EARMemory(options.encoder or "minilm", context=options.context)
        memory.save(options.folder)
    with memory:
        server(memory).run()


if __name__ == "__main__":
    main()
