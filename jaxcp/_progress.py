"""Progress bars, for those who ask for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(
    total: int, finished: int, unit: str, shown: bool
) -> Iterator[Callable[[int], object]]:
    """Gives a function that takes how much is done and shows it in a bar of tqdm."""
    if not shown:
        yield lambda count: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError(
            "expected tqdm to be installed for a progress bar, got no such package: "
            "pip install tqdm, or leave progress out"
        ) from error

    scaled = unit == "trial"
    with tqdm(total=total, initial=finished, unit=unit, unit_scale=scaled) as shows:
        yield shows.update
