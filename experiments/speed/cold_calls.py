"""First calls of users in fresh processes, beside those of another checkout.

`python -m experiments.speed.cold_calls [--against DIR] [--only NAME] [--out DIR]`

Each call runs in a process of its own: imports, data and the start of the backend come
before, and are not counted. A block of README counts whole, imports too. Seconds are of
the processor, of all threads, the least of some processes. No program is kept between
processes, flags are those of users, and Python's own files are compiled before. With
`--against` the two trees take turns, and the ratio stands beside its bar.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from experiments.tools.reporting import ROOT, arguments, print_table, save_results

REPEATS = 3
MOST, LONG = 0.6, 1.0  # times the other tree, for what took longer than so many seconds
MOSTS = {"conditional": 0.4}
COUNTED = """
import jax
programs = []
def note(event, duration, **about):
    if event == "/jax/core/compile/backend_compile_duration":
        programs.append(duration)
jax.monitoring.register_event_duration_secs_listener(note)
"""
CALL = """
import importlib, pkgutil, time
import jaxcp
for module in pkgutil.walk_packages(jaxcp.__path__, "jaxcp."):
    if not module.name.startswith(("jaxcp.models", "jaxcp.distributed")):
        importlib.import_module(module.name)
import numpy as np
from jaxcp import conditional, learners, metrics, predictive, scores, sets
draw, (n, m, k) = np.random.default_rng(0), (500, 200, 10)
x, x_new = draw.normal(size=(n, 5)), draw.normal(size=(m, 5))
y, y_new = (v.sum(1) + draw.normal(size=len(v)) for v in (x, x_new))
preds, preds_new = x.sum(1), x_new.sum(1)
probs, probs_new = (draw.dirichlet(np.ones(k), size) for size in (n, m))
labels, u, u_new = draw.integers(k, size=n), draw.uniform(size=n), draw.uniform(size=m)
groups, groups_new = draw.integers(3, size=n), draw.integers(3, size=m)
weights, weights_new = draw.uniform(size=n), draw.uniform(size=m)
phis, phis_new = np.c_[np.ones(n), x], np.c_[np.ones(m), x_new]
absolute, ridge, key = scores.Absolute(), learners.Ridge(1.0), jax.random.key(0)
interval = sets.Interval(preds_new - 1, preds_new + 1)
jax.block_until_ready(key)
programs.clear()
start = time.process_time()
jax.block_until_ready([{call}])
print(time.process_time() - start, len(programs))
"""
BLOCK = """
{block}
import os
print(sum(os.times()[:2]), len(programs))
"""
CALLS = {
    "calibrate": "jaxcp.calibrate(absolute, preds, y)(preds_new, 0.1)",
    "LAC": "jaxcp.calibrate(scores.LAC(), probs, labels)(probs_new, 0.1)",
    "APS": "jaxcp.calibrate(scores.APS(randomized=True), (probs, u), labels)"
    "((probs_new, u_new), 0.1)",
    "groups": "jaxcp.calibrate_groups(absolute, preds, y, groups, num_groups=3)"
    "(preds_new, 0.1, groups=groups_new)",
    "weights": "jaxcp.calibrate(absolute, preds, y, weights=weights)"
    "(preds_new, 0.1, test_weights=weights_new)",
    "jackknife+": "jaxcp.jackknife_plus(key, ridge, absolute, x, y)(x_new, 0.1)",
    "CV+": "jaxcp.cv_plus(key, ridge, absolute, x, y, num_folds=10)(x_new, 0.1)",
    "EnbPI": "jaxcp.enbpi(key, ridge, absolute, x, y, num_resamples=20)(x_new, 0.1)",
    "full": "jaxcp.full_conformal(key, ridge, absolute, x, y)(x_new, 0.1)",
    "discretized": "jaxcp.discretized_conformal("
    "key, ridge, absolute, x, y, np.linspace(-9, 9, 25))(x_new, 0.1)",
    "conditional": "jaxcp.calibrate_conditional(absolute, preds, y, phis)"
    "(preds_new, 0.1, features=phis_new)",
    "local": "jaxcp.calibrate_local(absolute, preds, y, x, conditional.Gaussian(1.0))"
    "(preds_new, 0.1, x=x_new, anchors=x_new + draw.normal(size=x_new.shape))",
    "predictive": "(system := predictive.calibrate_predictive("
    "scores.Residual(), preds, y)).cdf(preds_new, y_new, u=u_new), "
    "system.quantile(preds_new, [0.1, 0.5, 0.9], side='upper'), "
    "system.crps(preds_new, y_new)",
    "summary": "dict(metrics.summary(interval, y_new, 0.1))",
}


def sources(tree: Path) -> dict[str, str]:
    """Returns the program of each call, and of each block of a tree's README."""
    blocks = re.findall(r"```python\n(.*?)```", (tree / "README.md").read_text(), re.S)
    calls = {name: CALL.replace("{call}", call) for name, call in CALLS.items()}
    for i, block in enumerate(blocks, 1):
        calls[f"README {i}"] = BLOCK.replace("{block}", block)
    return {name: COUNTED + call for name, call in calls.items()}


def run(tree: Path, source: str, environment: dict[str, str]) -> tuple[float, int]:
    """Returns seconds and programs of a process in which a tree is imported."""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**environment, "PYTHONPATH": str(tree)},
        cwd=tree,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"in {tree}: {done.stderr}")
    seconds, programs = done.stdout.splitlines()[-1].split()
    return float(seconds), int(programs)


def measure(
    name: str, trees: list[Path], environment: dict[str, str], repeats: int
) -> dict:
    """Returns the row of a call: of this tree, and of another one if there is one."""
    programs = {tree: sources(tree)[name] for tree in trees}
    found: dict[Path, list[tuple[float, int]]] = {tree: [] for tree in trees}
    for i in range(repeats):
        for tree in trees if i % 2 else trees[::-1]:
            found[tree].append(run(tree, programs[tree], environment))
    least = {tree: min(pairs) for tree, pairs in found.items()}
    own, count = least[trees[0]]
    row = {"call": name, "CPU s": own, "programs": count}
    for other in trees[1:]:
        seconds, count = least[other]
        bar = MOSTS.get(name, MOST if seconds > LONG else None)
        row |= {"other CPU s": seconds, "other programs": count}
        row |= {"ratio": own / seconds, "at most": bar}
    return row


def main() -> None:
    """Prints and saves the table."""
    parser = arguments(__doc__, compiles=True)
    parser.add_argument("--against", type=Path, help="the root of another checkout")
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="processes each")
    args = parser.parse_args()
    trees = [ROOT, *([args.against.resolve()] if args.against else [])]
    names = [name for name in sources(ROOT) if args.only in name]
    left_out = ("JAX_", "XLA_", "PYTHONDONTWRITEBYTECODE")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    rows = []
    for tree in trees:  # compiles Python's files
        run(tree, sources(tree)["LAC"], plain)
    for name in names:
        rows.append(measure(name, trees, plain, args.repeats))
        print_table("first calls, seconds of the processor", rows[-1:])
    print_table("first calls, seconds of the processor", rows)
    save_results(args.out, "cold_calls", rows, {"processes": args.repeats})


if __name__ == "__main__":
    main()
