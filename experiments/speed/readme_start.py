"""What the first block of README takes in a process of its own.

`python -m experiments.speed.readme_start [--out DIR]`

Once without a cache, once with an empty one, and then with what that has kept; each the
least of five processes. Seconds are of the processor, of all threads; "all" is the
whole process, imports too. Python's own files are compiled before, as by an install.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.tools.reporting import ROOT, arguments, print_table, save_results

REPEATS = 5
CACHE = "JAX_COMPILATION_CACHE_DIR"
PROCESS = """
import time
import jax, jax.numpy as jnp
import jaxcp
from jaxcp import datasets, metrics, scores
imports, programs = time.process_time(), []
def note(event, duration, **about):
    if event == "/jax/core/compile/backend_compile_duration":
        programs.append(duration)
jax.monitoring.register_event_duration_secs_listener(note)
{block}
import json, os
whole = sum(os.times()[:2])
print(json.dumps([imports, time.process_time() - imports, whole, len(programs)]))
"""
COLUMNS = "imports s", "calls s", "all s", "programs"


def block() -> str:
    """Returns the first block of README."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[0]


def run(environment: dict[str, str]) -> dict:
    """Returns what one process takes: seconds of its parts, and programs."""
    words = [sys.executable, "-c", PROCESS.format(block=block())]
    done = subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return dict(zip(COLUMNS, json.loads(done.stdout.splitlines()[-1]), strict=True))


def measure(folder: Path) -> list[dict]:
    """Returns a row for each state of the cache."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    plain.pop("PYTHONDONTWRITEBYTECODE", None)
    plain["PYTHONPYCACHEPREFIX"] = str(folder / "python")
    kept = {**plain, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    empty = [{**kept, CACHE: str(folder / f"empty {i}")} for i in range(REPEATS)]
    states = {
        "no cache": [plain] * REPEATS,
        "first time with a cache": empty,
        "second time": [empty[0]] * REPEATS,
    }
    run(plain)  # compiles Python's files
    rows = []
    for name, environments in states.items():
        found = [run(environment) for environment in environments]
        rows.append({"start": name, **min(found, key=lambda row: row["all s"])})
    return rows


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__, compiles=True).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder))
    print_table("the first block of README, seconds of the processor", rows)
    save_results(args.out, "readme_start", rows, {"processes": REPEATS})


if __name__ == "__main__":
    main()
