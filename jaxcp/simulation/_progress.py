"""Progress bars, for those who ask for one."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any


def progress_bar(
    total: int, finished: int, unit: str, shown: bool
) -> AbstractContextManager[Any]:
    """Returns a context with a bar of tqdm, or one that is not shown."""
    if not shown:
        return nullcontext(_Silent())
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=finished, unit=unit, unit_scale=unit == "trial")


class _Silent:
    """A progress bar that is not shown."""

    def update(self, count: int) -> None:
        """Shows nothing."""
