"""A memory that learns while it is used."""

from earlib.memory.critics import by_model
from earlib.memory.ear_memory import EARMemory
from earlib.memory.features import plain_features
from earlib.memory.presets import PRESETS, Preset
from earlib.memory.snapshot import Found, Memory

__all__ = ["PRESETS", "EARMemory", "Found", "Memory", "Preset", "by_model", "plain_features"]
