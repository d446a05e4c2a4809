"""What the first block of README takes in a process of its own.

`python -m experiments.speed.readme_start [--out DIR]`

Once without a cache, once with an empty one, and then with what that has kept; each the
least of five processes. Seconds are of the processor, of all threads; "all" is the
whole process, imports too. Python's own files are compiled before, as by an install.
Then what `import jax` and `import jaxcp` take, in turns, each the median of eleven
processes.
"""

import json
import os
import re
import statistics
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
IMPORT = """
import time
start = time.process_time()
import {name}
print(time.process_time() - start)
"""
TURNS, BAR = 11, 1.15  # times what jax takes
COLUMNS = "imports s", "calls s", "all s", "programs"


def block() -> str:
    """Returns the first block of README."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[0]


def printed(code: str, environment: dict[str, str]) -> str:
    """Returns the last line that code prints in a process of its own."""
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def run(environment: dict[str, str]) -> dict:
    """Returns what one process takes: seconds of its parts, and programs."""
    told = json.loads(printed(PROCESS.format(block=block()), environment))
    return dict(zip(COLUMNS, told, strict=True))


def plain_environment(folder: Path) -> dict[str, str]:
    """Returns variables without settings of jax; compiled Python goes to a folder."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    plain.pop("PYTHONDONTWRITEBYTECODE", None)
    return plain | {"PYTHONPYCACHEPREFIX": str(folder / "python")}


def measure_imports(plain: dict[str, str]) -> list[dict]:
    """Returns a row for each import; jaxcp imports jax, too."""
    seconds: dict[str, list[float]] = {"jax": [], "jaxcp": []}
    for _ in range(TURNS):
        for name, of_name in seconds.items():
            of_name.append(float(printed(IMPORT.format(name=name), plain)))
    jax, jaxcp = map(statistics.median, seconds.values())
    times = {"times jax": jaxcp / jax, "bar": f"<= {BAR}"}
    return [{"import": "jax", "s": jax}, {"import": "jaxcp", "s": jaxcp} | times]


def measure(folder: Path, plain: dict[str, str]) -> list[dict]:
    """Returns a row for each state of the cache."""
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
        plain = plain_environment(Path(folder))
        rows = measure(Path(folder), plain)
        imports = measure_imports(plain)
    print_table("the first block of README, seconds of the processor", rows)
    save_results(args.out, "readme_start", rows, {"processes": REPEATS})
    print_table("imports, seconds of the processor", imports)
    save_results(args.out, "readme_start_imports", imports, {"processes": TURNS})


if __name__ == "__main__":
    main()
