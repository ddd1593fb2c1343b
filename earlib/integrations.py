"""`earlib.memory.integrations` under the name that users have typed."""

from earlib.memory.integrations import as_langchain, as_llamaindex  # noqa: F401
