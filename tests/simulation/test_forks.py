"""Processes that fork: jax would wait in the child for ever, which is told so."""

import os
import signal
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest

import jaxcp
from jaxcp import metrics, outliers, pvalues
from rows import ABSOLUTE, KEY, RIDGE, SETS9, X2, X

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are of Unix")
CP = jaxcp.calibrate(ABSOLUTE, 0 * X, X)
VERBS = {
    "a calibration": lambda: CP(np.zeros(1), alpha=0.1),
    "a threshold": lambda: CP.quantile(0.1),
    "p-values": lambda: CP.p_values(X, X),
    "calibrate": lambda: jaxcp.calibrate(ABSOLUTE, np.zeros(9), np.ones(9)),
    "cv_plus": lambda: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, X, num_folds=3),
    "a quantile": lambda: jaxcp.conformal_quantile(X, 0.1),
    "outliers": lambda: outliers.outlier_p_values(X, X),
    "Benjamini-Hochberg": lambda: pvalues.benjamini_hochberg(np.ones(3), 0.1),
    "a metric": lambda: metrics.coverage(SETS9, X),
    "membership": lambda: SETS9.contains(X),
    "uniforms": lambda: jaxcp.uniforms(KEY, 3),
    "simulate": lambda: jaxcp.simulate(jax.random.normal, KEY, 8),
}


def of_child(call):
    """Returns what a forked child makes of a call; nothing if it hangs."""
    read, write = os.pipe()
    with warnings.catch_warnings(action="ignore"):
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            call()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(write)
    with open(read) as file:
        found = file.read()
    os.waitpid(child, 0)
    return found


@pytest.mark.parametrize("name", VERBS)
def test_a_fork_after_the_first_call_is_told(name):
    CP.quantile(0.1)
    expected = "RuntimeError: expected a process that was not forked after jax had"
    found = of_child(VERBS[name])
    assert found.startswith(expected) and "get_context('spawn')" in found


def test_a_server_that_loads_and_forks_is_told(tmp_path):
    """Also where nothing of the library ran before, beside what made arrays."""
    jaxcp.save(tmp_path / "cp.npz", CP)
    program = """
import os, signal, sys, warnings, jaxcp
warnings.simplefilter("ignore")
cp = jaxcp.load(sys.argv[1])
if os.fork() == 0:
    signal.alarm(20)
    try:
        cp([0.3], alpha=0.1)
    except RuntimeError as error:
        print(str(error)[:40], flush=True)
    os._exit(0)
os.wait()
"""
    run = [sys.executable, "-c", program, tmp_path / "cp.npz"]
    found = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == "expected a process that was not forked a\n"


def test_a_fork_before_the_first_call_works():
    """And so do programs that a fork starts, whatever was called before."""
    program = """
import os, subprocess, sys, jaxcp
call = "import jaxcp; print(jaxcp.kth_smallest([3.0, 1.0], 1))"
if os.fork() == 0:
    exec(call, {})
    sys.stdout.flush()
    print(subprocess.run([sys.executable, "-c", call]).returncode, flush=True)
    os._exit(0)
os.wait()
exec(call, {})
"""
    run = [sys.executable, "-c", program]
    found = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.split() == ["1.0", "1.0", "0", "1.0"]
