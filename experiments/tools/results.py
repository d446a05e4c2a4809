"""Every experiment at one commit, and the pages of results from what they save.

`python -m experiments.tools.results --data DIR [--out DIR] [--puncc-python PATH]`

Each experiment runs in a process of its own, one after the other, so that nothing
disturbs the timed ones. A run that was stopped goes on where it was: what this commit
has finished is not run again. `--only NAME ...` runs these, `--report` writes the
pages from what is there, `experiments/RESULTS.md` and one in each folder: beside the
tables, while some are missing or are not all of one commit without changes. Without
`--data` published results on real data are left out. What is timed with its compilation
compiles anew; other programs are kept for the next run. All of it takes an hour on two
cores.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm

from experiments import folder_of
from experiments.tools.report import PAGE, commits, report, write
from experiments.tools.reporting import arguments, commit

TIMED = [
    "kernel_speed",
    "cross_speed",
    "full_speed",
    "metrics_speed",
    "proper_speed",
    "multioutput_speed",
    "selection",
    "risk_speed",
    "simulation_speed",
    "first_calls",
    "readme_start",
    "row_counts",
    "data_scale",
    "function_cost",
    "chunks",
    "clusters",
    "batches",
    "groups",
    "checks",
    "conditional_speed",
    "label_thresholds",
    "local",
    "bands",
    "probability_speed",
    "predictive_speed",
    "delays",
    "monitors",
    "panels",
    "selected",
    "serving",
    "streams",
]
MEASURED = [
    "showcase",
    "ranks",
    "jackknife_barber",
    "full_conformal",
    "enbpi_solar",
    "forecasts",
    "any_model",
    "counterfactuals",
    "covariate_shift",
    "claims",
    "fields",
    "survival",
    "label_shift",
    "anomaly",
    "boxes",
    "threshold_gradients",
    "conformal_training",
    "conformal_bayes",
    "multioutput_toys",
    "multioutput_real",
    "risk_control",
    "risk_laws",
    "rows",
    "coverage_grid",
    "conditional",
    "conditional_classes",
    "rectified_law",
    "band_laws",
    "pit",
    "probabilities",
    "predictive",
]
WITH_DATA = {"showcase", "covariate_shift", "anomaly", "conformal_training"}
WITH_DATA |= {
    "label_shift",
    "risk_control",
    "conditional",
    "probabilities",
    "predictive",
}
TWICE = {"showcase"}  # the second run finds the programs of the first compiled
ONLY_WITH_DATA = {"any_model", "claims", "enbpi_solar", "forecasts"}
ONLY_WITH_DATA |= {"multioutput_real"}


def command(name: str, folder: Path, data: Path | None, puncc: str | None) -> list[str]:
    """Returns the command line of an experiment."""
    words = [sys.executable, "-m", f"experiments.{folder_of(name)}.{name}"]
    words += ["--out", str(folder)]
    if data is not None and name in WITH_DATA | ONLY_WITH_DATA:
        words += ["--data", str(data)]
    if puncc is not None and name == "kernel_speed":
        words += ["--puncc-python", puncc]
    return words


def run(name: str, folder: Path, words: list[str]) -> dict:
    """Runs one experiment and returns how it ended; its output goes to `log.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    ended, path = {"experiment": name, "commit": commit()}, folder / "run.json"
    path.unlink(missing_ok=True)  # until it has ended, it is not done
    ended |= timed(words, folder / "log.txt")
    if name in TWICE and ended["status"] == 0:
        again = timed(words, folder / "log.txt")
        ended |= {"status": again["status"], "second run s": again["seconds"]}
    if commit() != ended["commit"]:  # the code has changed under the run
        ended["commit"] = None
    part = path.with_suffix(".part")
    part.write_text(json.dumps(ended) + "\n")
    part.replace(path)
    return ended


def timed(words: list[str], log: Path) -> dict:
    """Returns how a process ended, its seconds, and the most memory that it held."""
    start = time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
    return {
        "status": os.waitstatus_to_exitcode(status),
        "seconds": time.perf_counter() - start,
        "peak GiB": usage.ru_maxrss / 2**20,
    }


def is_done(folder: Path) -> bool:
    """Returns whether an experiment has ended well at this commit, and nothing else."""
    path, now = folder / "run.json", commit()
    if now is None or now.endswith("+") or not path.exists():
        return False
    ended = json.loads(path.read_text())
    return ended["status"] == 0 and ended["commit"] == now


def shortcomings(out: Path) -> list[str]:
    """Returns why these tables are not the results of one commit, none if they are."""
    missing = [n for n in TIMED + MEASURED if not (out / n / "run.json").exists()]
    found = commits(out)
    lacking = [f"without {', '.join(missing)}"] if missing else []
    if len(found) > 1:
        lacking.append(f"of several commits: {', '.join(found)}")
    lacking += [f"of files that no commit has: {v}" for v in found if v.endswith("+")]
    lacking += ["of an unknown commit"] if "unknown" in found else []
    return lacking


def main() -> None:
    """Runs what is missing and writes the report."""
    parser = arguments(__doc__, times=True)
    parser.add_argument("--data", type=Path, help="folder with the real data")
    parser.add_argument("--puncc-python", help="an interpreter with puncc installed")
    parser.add_argument("--only", nargs="*", default=TIMED + MEASURED)
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    unknown = set(args.only) - {*TIMED, *MEASURED}
    if unknown:
        parser.error(f"expected names among {TIMED + MEASURED}, got {sorted(unknown)}")
    names = [
        name
        for name in args.only
        if not (args.report or is_done(args.out / name))
        and (args.data is not None or name not in ONLY_WITH_DATA)
    ]
    failed = []
    for name in (bar := tqdm(names, unit="experiment")):
        bar.set_postfix_str(name)
        words = command(name, args.out / name, args.data, args.puncc_python)
        if run(name, args.out / name, words)["status"]:
            failed.append(name)
    lacking = shortcomings(args.out)
    home = args.out if lacking else Path(__file__).parents[1]
    write(report(args.out), home)
    print("; ".join([f"report: {home / PAGE}", *lacking]))
    if failed:
        sys.exit(f"failed, see log.txt of each: {', '.join(failed)}")


if __name__ == "__main__":
    main()
