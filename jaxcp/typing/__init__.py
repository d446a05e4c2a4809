"""What jaxcp asks of scores, sets, learners, methods and bets: also of yours.

A class need not name the protocol that it follows: its methods are enough. Classes with
hyperparameters are a `jaxcp.pytree`. Optional methods have protocols of their own.
"""

from jaxcp.typing.learners import (
    AnyLearner,
    Augments,
    ChecksData,
    FitsOnHost,
    Learner,
    LeavesOneOut,
)
from jaxcp.typing.scores import (
    CheckedMartingale,
    EstimatesSets,
    HasSteps,
    LabelScore,
    Martingale,
    MemorylessMartingale,
    Online,
    Score,
    Scorecaster,
)
from jaxcp.typing.sets import (
    AnySet,
    HasBounds,
    HasEnds,
    HasEstimate,
    HasLabels,
    HasLogSize,
    HasMarks,
    HasNames,
    HasPieces,
    HasRounding,
    HasShapes,
    HasSize,
    HasSoftSize,
    HasWidths,
    MayBeEmpty,
    Set,
)
from jaxcp.typing.values import (
    ArrayLike,
    AxisName,
    Number,
    Predict,
    PyTree,
)

# fmt: off
__all__ = [
    "AnyLearner", "AnySet", "ArrayLike", "Augments", "AxisName", "CheckedMartingale",
    "ChecksData", "EstimatesSets", "FitsOnHost", "HasBounds", "HasEnds", "HasEstimate",
    "HasLabels", "HasLogSize", "HasMarks", "HasNames", "HasPieces", "HasRounding",
    "HasShapes", "HasSize", "HasSoftSize", "HasSteps", "HasWidths", "LabelScore",
    "Learner", "LeavesOneOut", "Martingale", "MayBeEmpty", "MemorylessMartingale",
    "Number", "Online", "Predict", "PyTree", "Score", "Scorecaster", "Set",
]
# fmt: on
__dir__ = __all__.copy
