"""Experiments: `python -m experiments.FOLDER.NAME` from the root of the repository."""

from pathlib import Path

FOLDERS = ("laws", "speed", "data", "peers", "pictures")  # `tools` has what they share


def folder_of(name: str) -> str:
    """Returns the folder of an experiment.

    Raises:
      ValueError: if no folder has an experiment of this name.
    """
    home = Path(__file__).parent
    for folder in FOLDERS:
        if (home / folder / f"{name}.py").exists():
            return folder
    raise ValueError(f"expected the name of an experiment, got {name!r}")
