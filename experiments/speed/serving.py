"""A service: a request of one row, threads, odd numbers of rows, memory.

`python -m experiments.speed.serving [--out DIR]`

Three forms of one calibration each answer in a process of their own, which loads a
file: the calibration, its predictor of one level, and the file of NumPy of that, whose
process has no jax. After the programs are made beforehand, requests are timed one by
one: of one row, of one row in each of 8 threads, and of numbers of rows that come anew.
Memory is that of the process at the end, less that of one that has imported NumPy.
"""

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROWS, CLASSES, ALPHA = 100_000, 10, 0.1
REQUESTS, THREADS, MOST = 500, 8, 64
FORMS = ("calibration", "predictor", "NumPy")


def requests(score: str, size: int) -> list:
    """Returns predictions of so many requests of `size` rows, one after the other."""
    draw = np.random.default_rng(1)
    if score == "Normalized":
        rows = draw.normal(size=(REQUESTS, 2, size)).astype(np.float32)
        return [(mu, abs(sigma)) for mu, sigma in rows]
    rows = draw.dirichlet(np.ones(CLASSES), (REQUESTS, size)).astype(np.float32)
    return list(rows)


def write(folder: Path, score: str) -> None:
    """Writes the three forms of a calibration."""
    import jaxcp
    from jaxcp import scores

    draw = np.random.default_rng(0)
    if score == "Normalized":
        mu, noise, sigma = draw.normal(size=(3, ROWS)).astype(np.float32)
        preds, y = (mu, abs(sigma)), mu + noise * abs(sigma)
    else:
        preds = draw.dirichlet(np.ones(CLASSES), ROWS).astype(np.float32)
        y = draw.integers(CLASSES, size=ROWS)
    cp = jaxcp.calibrate(getattr(scores, score)(), preds, y)
    jaxcp.save(folder / "calibration.npz", cp)
    jaxcp.save(folder / "predictor.npz", cp.at(ALPHA))
    cp.at(ALPHA).export(folder)


def answer(folder: Path, score: str, form: str) -> dict:
    """Returns the seconds of requests to one form, in this process."""
    before, start = memory(), time.perf_counter()
    if form == "NumPy":
        sys.path.insert(0, str(folder))
        import predictor

        call = predictor.sets
    else:
        import jax

        import jaxcp

        cp = jaxcp.load(folder / f"{form}.npz")
        cp.compile(2 ** np.arange(MOST.bit_length()))
        options = {"alpha": ALPHA} if form == "calibration" else {}
        call = lambda preds: jax.block_until_ready(cp(preds, **options))  # noqa: E731
    row = {"score": score, "form": form, "start s": time.perf_counter() - start}

    def timed(preds: object) -> float:
        start = time.perf_counter()
        call(preds)
        return 1e6 * (time.perf_counter() - start)

    ones = requests(score, 1)
    alone = [timed(preds) for preds in ones]
    start = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(timed, ones))
    row["8 threads, requests / s"] = REQUESTS / (time.perf_counter() - start)
    odd = [timed(v) for n in range(3, MOST, 9) for v in requests(score, n)[:5]]
    for name, found in (("", alone), ("8 threads, ", together), ("odd sizes, ", odd)):
        row |= {f"{name}p{p} us": np.percentile(found, p).item() for p in (50, 99)}
    return row | {"memory MB": memory() - before}


def memory() -> float:
    """Returns the memory of this process, in MB; NaN where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    lines = dict(v.split(":", 1) for v in status.read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1024


def main() -> None:
    """Prints and saves the table."""
    from experiments.tools.reporting import arguments, print_table, save_results

    args = arguments(__doc__, compiles=True).parse_args()
    rows = []
    for score in ("Normalized", "LAC", "APS"):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), score)
            for form in FORMS:
                code = (
                    "import json, pathlib, sys; from experiments.speed import serving; "
                )
                code += "folder, *of = sys.argv[1:]; print(json.dumps(serving.answer("
                code += "pathlib.Path(folder), *of)))"
                words = [sys.executable, "-c", code, folder, score, form]
                rows.append(json.loads(subprocess.check_output(words)))
    settings = {"rows": ROWS, "requests": REQUESTS, "threads": THREADS, "most": MOST}
    print_table("a service, microseconds of a request", rows)
    save_results(args.out, "serving", rows, settings)


if __name__ == "__main__":
    main()
