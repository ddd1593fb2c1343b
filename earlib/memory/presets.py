"""Named configurations of a memory."""

from typing import NamedTuple

from earlib.core.config import ASSIMILATION, HYBRID, Config, near


class Preset(NamedTuple):
    """A configuration of a memory.

    Attributes
    ----------
    config : Config
        Of the learner; its batch size must be 1.
    words : bool
        Whether the first stage fuses BM25 with cosine similarity and candidates carry a BM25 score.
    weights : bool
        Whether a few weights of plain features are learned in place of an adapter (`earlib.memory.weights`).
    """

    config: Config
    words: bool
    weights: bool = False


_HYBRID = Config.model_validate({**ASSIMILATION, **HYBRID, "learning_rate": 1e-4, "batch_size": 1, "side_start": 0.4})
PRESETS: dict[str, Preset] = {
    # The best known on LoCoMo, chosen on training questions. On those a fixed weight of words between 0.3 and 0.5 ranks
    # best: it starts there. The weights learn faster than the adapter and bear wrong labels better (`agent_memory`).
    "best": Preset(_HYBRID, words=True, weights=True),
    # The adapter with the weight of words, learned in large steps: what learns best without the features.
    "adapter": Preset(_HYBRID, words=True),
    # The paper's EAR with two departures: a memory in use learns from each query as it comes, and the update rule is
    # the package's Adam, where the paper prints a plain gradient step (optimizer = "sgd").
    "paper": Preset(Config(batch_size=1), words=False),
}


def resolve_preset(preset: str | Preset) -> Preset:
    """Return the preset of a name, or check a caller's own."""
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"preset = {preset!r}{near(preset, PRESETS)}: expected one of {', '.join(PRESETS)}")
        preset = PRESETS[preset]
    if not isinstance(preset, Preset):
        raise TypeError(f"preset: expected one of {', '.join(PRESETS)} or a Preset, found {preset!r}")
    if (preset.weights or preset.config.learned_side or preset.config.side) and not preset.words:
        raise ValueError("preset: words = False: expected True, since the configuration weighs a score by words")
    if preset.config.batch_size != 1:
        raise ValueError(f"preset: batch_size = {preset.config.batch_size}: expected 1, an update a feedback")
    return preset
