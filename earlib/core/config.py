"""Every hyper-parameter of the system: its name, the paper's symbol, its default and where the paper states it.

Where the paper can be read in two ways, both readings are named values of one field; the default comes first in
its `Literal`.
"""

import difflib
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator


def near(name, known):
    """', did you mean ...?' with the closest of the known names, or nothing."""
    matches = difflib.get_close_matches(str(name).lower(), known, cutoff=0.5)
    return f", did you mean {' or '.join(repr(match) for match in matches)}?" if matches else ""


def _field(default, symbol, section, text, **limits):
    return Field(default, description=text, json_schema_extra={"symbol": symbol, "section": section}, **limits)


class Checked(BaseModel):
    """Settings by name; an unknown name is refused with the names that it resembles."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given):
        for name in given:
            if name not in cls.model_fields:
                raise ValueError(f"unknown parameter {name!r}{near(name, cls.model_fields)}")
        return given


class Config(Checked):
    """Hyper-parameters of one system; the defaults are the paper's EAR.

    Raises
    ------
    pydantic.ValidationError
        For an unknown name, a wrong type, or a value out of range.
    """

    # Candidates and slates
    depth: int = _field(20, "K", "Section 5; Problem Formulation", "candidates of a query", ge=1)
    slate_size: int = _field(5, "s", "Experiments", "memories in a slate", ge=1)

    # Residual adapter
    init: Literal["zero", "normal"] = _field("zero", "W", "Eq. 3", "start of W_q and W_m; normal has deviation 0.01")
    normalise: bool = _field(True, "", "Eq. 3; Algorithm 3 line 1 does not", "adapted embeddings have unit length")
    adapter: Literal["full", "low-rank", "diagonal", "query"] = _field(
        "full",
        "W",
        "Eq. 3; the others are the package's own",
        "form of W_q and W_m: any matrix; a product B A of rank r; a diagonal; or W_q alone, with W_m = 0",
    )
    rank: int = _field(16, "r", "the package's own", "rank of a low-rank adapter", ge=1)
    learned_side: bool = _field(
        False,
        "w",
        "the package's own",
        "scores gain a term w p_i, a reranker's score p_i with a weight w learned with the adapter, from side_start",
    )

    # Exploratory Reflection
    training_slates: Literal["explorer", "gumbel", "random", "all"] = _field(
        "explorer",
        "S^(t)",
        "Eq. 8",
        "slates in training: the Explorer's; RMM's top s of score + Gumbel noise, fresh each round; as controls s at "
        "random, or all K candidates at once",
    )
    rounds: int = _field(4, "T", "Implementation Details", "slates in training, each a critic call; RMM has one", ge=1)
    relevance: float = _field(0.4, "lambda_rel", "Appendix A", "weight of query-memory similarity", ge=0)
    diversity: float = _field(0.3, "lambda_div", "Appendix A", "weight of the redundancy penalty", ge=0)
    exploration: float = _field(0.3, "lambda_exp", "Appendix A", "weight of the upper-confidence value", ge=0)
    ucb: float = _field(0.5, "alpha", "Appendix A", "UCB coefficient", ge=0)
    side: float = _field(
        0.0,
        "lambda_side",
        "the package's own term; the paper makes such scores available and prints no equation",
        "weight of a reranker's score in Eq. 7",
        ge=0,
    )
    statistics: Literal["kept", "reset"] = _field(
        "kept", "N, mu", "Eq. 9; Algorithm 2 line 3", "bandit statistics live for a query, or for one call"
    )
    test_slate: Literal["before", "after"] = _field(
        "before", "S^(T)", "Training and Inference", "slate returned: S^(T), or after its feedback, cited first"
    )
    test_noise: bool = _field(False, "g", "RMM", "RMM draws its slate with Gumbel noise at test time too")

    # Critic
    precision: float = _field(88.0, "p", "Citation Scores", "target precision of the simulated critic, %", gt=0, le=100)
    recall: float = _field(86.0, "r", "Citation Scores", "target recall of the simulated critic, %", gt=0, le=100)
    errors: Literal["slate", "global", "persistent", "shuffled"] = _field(
        "slate",
        "p_fp",
        "Appendix A.2",
        "false positives by the gold in the slate; at one rate for all; drawn once per query and memory; or, as a "
        "control, about other memories: the gold labels of a query are shuffled among its candidates",
    )

    # Objective
    objective: Literal["reward", "softmax", "contrastive", "logistic", "plackett-luce"] = _field(
        "reward",
        "L_rank",
        "Eq. 10; the others are the package's own",
        "the paper's reward-weighted likelihood of slates; or a loss over all candidates by whether they were cited: "
        "cross-entropy of their softmax, each cited one against those that were not, pairs, or all cited ones first",
    )
    softmax_temperature: float = _field(
        1.0, "tau_p", "the package's own; the paper has none", "by which scores are divided in the loss", gt=0
    )
    baseline: float = _field(0.5, "b", "Appendix A.1", "action-independent baseline")
    likelihood: Literal["clean", "noisy", "plackett-luce"] = _field(
        "clean", "p_phi", "Eq. 4", "softmax over all candidates; with the slate's noise; without replacement"
    )

    # Experience Buffer
    replay_size: int = _field(4, "B", "Appendix A.1", "experiences replayed for a query; 0: no buffer", ge=0)
    replay_weight: float = _field(1.0, "lambda_rep", "Appendix A.1", "weight of the replay loss", ge=0)
    replay_choice: Literal["similarity", "reward", "random"] = _field(
        "similarity", "J_n", "Eq. 15; Appendix B.2", "which experiences are replayed"
    )
    replay_current: bool = _field(False, "r < n", "Eq. 15", "the current query's experience may be replayed too")
    replay_slate: Literal["gumbel", "scaled", "softmax"] = _field(
        "gumbel",
        "S~^(r)",
        "Appendix A.1",
        "top s of z + g; of z / tau + g; or a draw without replacement from softmax((z + g) / tau)",
    )
    temperature: float = _field(0.5, "tau", "Appendix A.1", "Gumbel temperature, where a reading uses it", gt=0)
    unseen: Literal["negative", "left out"] = _field(
        "negative", "O^(n)", "Appendix A.1; Eq. 11", "candidates never shown to the critic count as -1, or not at all"
    )
    aggregate: Literal["shown", "rounds"] = _field(
        "shown", "y-bar", "Eq. 12; Algorithm 1", "citations averaged over the rounds that showed them, or over T"
    )

    # Update
    optimizer: Literal["adam", "sgd"] = _field(
        "adam", "eta", "a departure: the paper prints a plain gradient step", "update rule"
    )
    learning_rate: float = _field(0.001, "eta", "Appendix A.1", "step of the update rule", gt=0)
    side_start: float = _field(0.0, "w", "the package's own", "what the learned weight w starts from")
    side_rate: float = _field(0.01, "eta_w", "the package's own", "step of the learned weight w", gt=0)
    batch_size: int = _field(4, "", "Appendix A.1", "queries that share one update", ge=1)

    @model_validator(mode="after")
    def _fits(self):
        if self.slate_size > self.depth:
            raise ValueError(f"slate_size (s = {self.slate_size}) exceeds depth (K = {self.depth})")
        if self.replay_current and self.replay_choice == "reward":
            raise ValueError("replay_current: a query cannot be chosen by its reward before its feedback is known")
        if self.side_start and not self.learned_side:
            raise ValueError(f"side_start = {self.side_start:g}: expected 0 where no weight is learned (learned_side)")
        if self.init == "normal" and self.adapter != "full":
            raise ValueError(f"init = normal: expected with a full adapter, not {self.adapter}")
        return self


class Variant(NamedTuple):
    """A row of a table: a configuration, whether it learns, and how it answers."""

    changes: dict  # of Config's defaults
    learns: bool = True
    explorer: bool = False  # Explorer-assisted inference, which asks the critic
    reranker: str = "none"  # whose scores the Explorer has as side information


_RMM = {"training_slates": "gumbel", "rounds": 1}
_SIDE = {"side": 0.4}  # as much as lambda_rel: the paper names no weight
VARIANTS = {
    "retriever": Variant({}, learns=False),
    "rmm": Variant({**_RMM, "replay_size": 0}),
    "explorer_training": Variant({"replay_size": 0}),
    "buffer_training": Variant(_RMM),
    "ear_adapter": Variant({}),
    "explorer_test": Variant({}, learns=False, explorer=True),
    "ear": Variant({}, explorer=True),
    "monot5_ear": Variant(_SIDE, explorer=True, reranker="monot5"),
    # Controls that the paper lacks: the simplest scores in MonoT5's place; what the adapter learns from other slates,
    # wrong citations, or all gold labels.
    "bm25_ear": Variant(_SIDE, explorer=True, reranker="bm25"),
    "rmm_fresh_slates": Variant({"training_slates": "gumbel", "replay_size": 0}),
    "random_slates": Variant({"training_slates": "random"}),
    "shuffled_citations": Variant({"errors": "shuffled"}),
    "oracle": Variant(
        {"training_slates": "all", "rounds": 1, "precision": 100.0, "recall": 100.0, "replay_size": 0},
    ),
}


# What learns better from the same citations: the notebooks ext01_objective and ext03_candidates show by how much.
ASSIMILATION = {"objective": "softmax", "softmax_temperature": 0.05}
HYBRID = {"depth": 50, "learned_side": True}  # with first_stage "hybrid" and the reranker "bm25" in the setting
