"""The judge of the SGLang pair: what aborts, crashes and cancels leave behind in real engines."""

from ops.bench.judge.cancels import Cancels, cancel_many
from ops.bench.judge.cells import CELLS, Outcome, judge_cell
from ops.bench.judge.pair import Pair, pair
from ops.bench.judge.phases import Action, Phase, Subject, act, half_move

__all__ = [
    "CELLS",
    "Action",
    "Cancels",
    "Outcome",
    "Pair",
    "Phase",
    "Subject",
    "act",
    "cancel_many",
    "half_move",
    "judge_cell",
    "pair",
]
