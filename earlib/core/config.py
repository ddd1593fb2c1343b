"""Every hyper-parameter of the system: its name, the paper's symbol, its default and where the paper states it.

Where the paper can be read in two ways, both readings are named values of one field; the default comes first in
its `Literal`.
"""

import difflib
import os
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator


def near(name, known):
    """', did you mean ...?' with known names that begin so (zeros aside: tab2, tab02_...), else the closest, or ""."""
    name, start = str(name).lower(), str(name).lower().replace("0", "")
    begun = [one for one in known if start and one.replace("0", "").startswith(start)]
    matches = begun[:3] or difflib.get_close_matches(name, known, cutoff=0.5)
    return f", did you mean {' or '.join(repr(match) for match in matches)}?" if matches else ""


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
    depth: int = Field(20, ge=1)  # K: candidates of a query (Section 5; Problem Formulation)
    slate_size: int = Field(5, ge=1)  # s: memories in a slate (Experiments)

    # Residual adapter
    init: Literal["zero", "normal"] = "zero"  # start of W_q and W_m (Eq. 3); normal has deviation 0.01
    normalise: bool = True  # adapted embeddings have unit length (Eq. 3; Algorithm 3, line 1 does not)
    # Form of W_q and W_m: any matrix (Eq. 3); our own: a product B A of rank r; a diagonal; or W_q alone, with W_m = 0.
    adapter: Literal["full", "low-rank", "diagonal", "query"] = "full"
    rank: int = Field(16, ge=1)  # r: rank of a low-rank adapter
    # Our own: scores gain a term w p_i, a reranker's score p_i with a weight w learned with the adapter.
    learned_side: bool = False

    # Exploratory Reflection
    # S^(t) in training (Eq. 8): the Explorer's; RMM's top s of score + Gumbel noise, fresh each round; as controls s at
    # random, or all K candidates at once.
    training_slates: Literal["explorer", "gumbel", "random", "all"] = "explorer"
    rounds: int = Field(4, ge=1)  # T: slates in training, each a critic call; RMM has one (Implementation Details)
    relevance: float = Field(0.4, ge=0)  # lambda_rel: weight of query-memory similarity (Appendix A)
    diversity: float = Field(0.3, ge=0)  # lambda_div: weight of the redundancy penalty (Appendix A)
    exploration: float = Field(0.3, ge=0)  # lambda_exp: weight of the upper-confidence value (Appendix A)
    ucb: float = Field(0.5, ge=0)  # alpha: UCB coefficient (Appendix A)
    # lambda_side: weight of a reranker's score in Eq. 7; our own: the paper names such scores and prints no equation.
    side: float = Field(0.0, ge=0)
    statistics: Literal["kept", "reset"] = "kept"  # N and mu live for a query, or a call (Eq. 9; Algorithm 2, line 3)
    # Slate returned: S^(T), or after its feedback, cited first (Training and Inference).
    test_slate: Literal["before", "after"] = "before"
    test_noise: bool = False  # RMM draws its slate with Gumbel noise at test time too

    # Critic
    precision: float = Field(88.0, gt=0, le=100)  # p: target precision of the simulated critic, % (Citation Scores)
    recall: float = Field(86.0, gt=0, le=100)  # r: target recall of the simulated critic, % (Citation Scores)
    # p_fp (Appendix A.2): false positives by the gold in the slate; at one rate for all; drawn once per query and
    # memory; or, as a control, about other memories: the gold labels of a query are shuffled among its candidates.
    errors: Literal["slate", "global", "persistent", "shuffled"] = "slate"

    # Objective
    # L_rank: the paper's reward-weighted likelihood of slates (Eq. 10); our own: a loss over all candidates by whether
    # they were cited: cross-entropy of their softmax, each cited one against the others, pairs, all cited ones first.
    objective: Literal["reward", "softmax", "contrastive", "logistic", "plackett-luce"] = "reward"
    softmax_temperature: float = Field(1.0, gt=0)  # by which scores are divided in the loss; the paper has none
    baseline: float = 0.5  # b: action-independent baseline (Appendix A.1)
    # p_phi (Eq. 4): softmax over all candidates; with the slate's noise, divided by tau; without replacement.
    likelihood: Literal["clean", "noisy", "plackett-luce"] = "clean"

    # Experience Buffer
    replay_size: int = Field(4, ge=0)  # B: experiences replayed for a query; 0: no buffer (Appendix A.1)
    replay_weight: float = Field(1.0, ge=0)  # lambda_rep: weight of the replay loss (Appendix A.1)
    replay_choice: Literal["similarity", "reward", "random"] = "similarity"  # J_n (Eq. 15; Appendix B.2)
    replay_current: bool = False  # the current query's experience may be replayed too; Eq. 15 has r < n
    # Top s of z + g; of z / tau + g; or a draw without replacement from softmax((z + g) / tau) (Appendix A.1).
    replay_slate: Literal["gumbel", "scaled", "softmax"] = "gumbel"
    # tau: Gumbel temperature (Appendix A.1); used by likelihood "noisy" and replay_slate "scaled" and "softmax" alone.
    temperature: float = Field(0.5, gt=0)
    # O^(n) (Appendix A.1; Eq. 11): candidates never shown to the critic count as -1, or not at all.
    unseen: Literal["negative", "left out"] = "negative"
    # y-bar (Eq. 12; Algorithm 1): citations averaged over the rounds that showed them, or over T.
    aggregate: Literal["shown", "rounds"] = "shown"

    # Update
    optimizer: Literal["adam", "sgd"] = "adam"  # a departure: the paper prints a plain gradient step
    learning_rate: float = Field(0.001, gt=0)  # eta: step of the update rule (Appendix A.1)
    side_start: float = 0.0  # what the learned weight w starts from
    side_rate: float = Field(0.01, gt=0)  # step of the learned weight w
    batch_size: int = Field(4, ge=1)  # queries that share one update (Appendix A.1)

    @model_validator(mode="before")
    @classmethod
    def _of_a_whole_run(cls, given):  # `-p depth` gives all configurations of a notebook another K
        depth = os.environ.get("EARLIB_DEPTH")
        return {"depth": int(depth), **given} if depth else given

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
    # As RMM itself prints it: p = softmax((z + g) / tau), where z = q~ . m~ is not normalised.
    "rmm_printed_p": Variant({**_RMM, "replay_size": 0, "likelihood": "noisy", "normalise": False}),
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
    "oracle": Variant({"training_slates": "all", "rounds": 1, "precision": 100.0, "recall": 100.0, "replay_size": 0}),
}


# The loss of the extensions; the notebook ext01_objective compares it with the paper's at equal conditions.
ASSIMILATION = {"objective": "softmax", "softmax_temperature": 0.05}
HYBRID = {"depth": 50, "learned_side": True}  # with first_stage "hybrid" and the reranker "bm25" in the setting
