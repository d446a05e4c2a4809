"""Wrong calls of the verbs that save and load."""

import dataclasses
import enum
import tempfile
from pathlib import Path

import numpy as np

import jaxcp
from rows import ABSOLUTE, X, refuses

FOLDER = Path(tempfile.mkdtemp())
CP = jaxcp.calibrate(ABSOLUTE, X, X + 1)
SPLIT = jaxcp.split_conformal(lambda _, x: x, None, ABSOLUTE, X, X + 1)


class Model:
    coef = 3.0


@dataclasses.dataclass
class Mutable:
    model: object


def save(value):
    return lambda: jaxcp.save(FOLDER / "refused", value)


def load(value, **given):
    def call():
        jaxcp.save(FOLDER / "a", value)
        jaxcp.load(FOLDER / "a", **given)

    return call


Animal = enum.IntEnum("Animal", ["CAT", "DOG"])


class Line:
    def predict(self, x):
        return 2 * x


def predict_of_a_model():
    jaxcp.save(FOLDER / "a", SPLIT)
    jaxcp.load(FOLDER / "a", predict=Line().predict)(X, 0.5)


test_wrong_calls = refuses(
    {
        "a type of fields": (save(np.dtype("i4, f4")), "a dtype as text, got "),
        "names of a class": (
            save({"classes": list(Animal)}),
            r"got Animal at classes.0; save",
        ),
        "a method": (
            predict_of_a_model,
            r"predict\(params, x\), got Line.predict, .* lambda _, x: model.predict",
        ),
        "model": (save(Model()), "got Model; save a fitted model in its own way"),
        "model inside": (save({"a": [Model()]}), r"got Model at a\.0; save a fitted"),
        "class that changes": (save(Mutable(3)), "got Mutable; save"),
        "set": (save({1, 2}), "got set; save"),
        "function": (save(lambda x: x), "got function; save"),
        "objects": (
            save([np.array([{}])]),
            "or text, got ndarray of object at",
        ),
        "masked": (save(np.ma.array([1.0], mask=[1])), "got MaskedArray of float64"),
        "fields": (save(np.zeros(2, "i4, f4")), "of numbers or text, got ndarray of"),
        "no function": (
            load(SPLIT),
            r"hold, predict \(function .*<lambda>\), got",
        ),
        "a number for it": (load(SPLIT, predict=3), "predict as a function, got 3"),
        "none wanted": (load(CP, predict=len), r"cannot hold, nothing, got predict"),
        "another name": (
            load(SPLIT, predikt=len),
            r"hold, predict \(.* got predikt; .*predict=\.\.\.\)",
        ),
        "types": (load(CP, types=[CP]), "types as frozen dataclasses of yours"),
    }
)


def test_nothing_was_written():
    assert not (FOLDER / "refused").exists()
