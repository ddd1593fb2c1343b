"""A memory that learns while it is used."""

from earlib.memory.memory import PRESETS, EARMemory, Found, Preset, by_model

__all__ = ["PRESETS", "EARMemory", "Found", "Preset", "by_model"]
