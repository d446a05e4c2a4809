"""Many processes as one program: on clusters, and on this machine to try it out.

Every process calls `initialize()` before anything else of jax and then runs the same
script; `jaxcp.simulate` and sharded arrays use the devices of all of them.

* This machine: `python -m jaxcp.distributed 2 script.py` starts two processes.
* SLURM: `srun python script.py` in a job with `--ntasks`; with one task for each GPU.
* MPI: `mpiexec -n 4 python script.py`; Open MPI by itself, others with mpi4py.
* Kubernetes: an indexed Job with `pip install 'jax[k8s]'` and a service account that
  may read its pods; or set JAX_COORDINATOR_ADDRESS=host:port, JAX_NUM_PROCESSES and
  JAX_PROCESS_ID (the job's completion index) in each pod.

Clusters announce the end of a job by SIGTERM (SLURM: `--signal=TERM@60`): a simulation
with a checkpoint then stops after the running chunk, in all processes.

`quantile` needs no such program: any executor, or a Dask cluster, whose workers hold
the scores.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import jax

from jaxcp.quantiles import _chunks
from jaxcp.typing import ArrayLike

__all__ = ["initialize", "launch", "quantile"]
__dir__ = __all__.copy

_ADDRESS = "JAX_COORDINATOR_ADDRESS"
_NUMBER, _ID = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
_MPI = {"PMI_SIZE", "PMIX_RANK"}
_FOUND_BY_JAX = {"SLURM_PROCID", "OMPI_MCA_orte_hnp_uri", "KUBERNETES_SERVICE_HOST"}
_GRACE = 15.0  # seconds that the others have to end after one has failed


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    cluster: str | None = None,
    connect_timeout: int = 60,
    heartbeat_timeout: int = 10,
) -> None:
    """Makes this process part of a program of several; call it before jax is used.

    Calls `jax.distributed.initialize`. It also reads JAX_NUM_PROCESSES and
    JAX_PROCESS_ID (set by `launch`) and finds MPI through mpi4py. It waits one minute
    for the other processes in place of five, and notices a process that dies after 10
    seconds in place of 100. Arrays travel by gloo on CPUs and by NCCL on GPUs.

    Args:
      coordinator_address: host:port of process 0. Defaults to what the environment, or
        else SLURM, Open MPI, mpi4py or Kubernetes, says; so do the next two.
      num_processes: Number of processes.
      process_id: Number of this process, from 0.
      cluster: How to find the cluster: "slurm", "ompi", "mpi4py" or "k8s". Defaults to
        whichever is there.
      connect_timeout: Seconds to wait for the other processes.
      heartbeat_timeout: Seconds of silence after which a process counts as dead.

    Returns:
      None.

    Raises:
      ValueError: if there is no cluster and an argument is missing or out of range.
      RuntimeError: if jax has started already. (A process whose peers do not come is
        ended by jax itself, with a message on stderr.)

    Cost:
      Waits for the other processes, at most `connect_timeout` seconds.

    See also:
      distributed.launch, simulate, sharded_conformal_quantile

    Example:
      >>> initialize("localhost:9900", num_processes=2, process_id=2)
      Traceback (most recent call last):
      ValueError: expected process_id below 2, got 2
    """
    address = coordinator_address or os.environ.get(_ADDRESS)
    number = _from_environment(num_processes, _NUMBER)
    process_id = _from_environment(process_id, _ID)
    cluster = cluster or _mpi()
    missing = any(value is None for value in (address, number, process_id))
    if number is not None and process_id is not None and not 0 <= process_id < number:
        raise ValueError(f"expected process_id below {number}, got {process_id}")
    jax.distributed.initialize(
        address,
        number,
        process_id,
        cluster_detection_method=cluster if missing else "deactivate",
        initialization_timeout=connect_timeout,
        heartbeat_timeout_seconds=heartbeat_timeout,
        shutdown_timeout_seconds=heartbeat_timeout,
    )


def launch(
    num_processes: int, command: Sequence[str], *, devices: int | None = None
) -> list[int]:
    """Runs a script in several processes of this machine that make one program.

    Each of them finds the others through `initialize()`. If one fails the others are
    stopped after some seconds, by SIGTERM, and then killed. Ctrl-C and SIGTERM are
    passed on.

    Args:
      num_processes: Number of processes.
      command: Script with its arguments, or `-m` with a module's, for this Python.
      devices: CPU devices of each process. Defaults to JAX_NUM_CPU_DEVICES, or to one.

    Returns:
      Exit status of each process; minus the number of a signal that ended it.

    Raises:
      ValueError: if `num_processes` or `devices` is not positive or there is no script.

    Cost:
      `num_processes` processes of Python, each of which imports jax.

    See also:
      distributed.initialize, simulate

    Example:
      >>> launch(2, ["-c", "from jaxcp.distributed import initialize; initialize()"])
      [0, 0]
    """
    if num_processes < 1 or (devices is not None and devices < 1) or not command:
        given = f"{num_processes}, {devices} and {list(command)}"
        raise ValueError(f"expected processes, devices and a command, got {given}")
    processes: list[subprocess.Popen] = []
    shared = {_ADDRESS: f"127.0.0.1:{_free_port()}", _NUMBER: str(num_processes)}
    if devices is not None:
        shared["JAX_NUM_CPU_DEVICES"] = str(devices)
    with ExitStack() as stack:
        stack.callback(_send, processes, signal.SIGKILL)
        for i in range(num_processes):
            environment = os.environ | shared | {_ID: str(i)}
            arguments = [sys.executable, *command]
            processes.append(subprocess.Popen(arguments, env=environment))
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.signal(number, lambda n, _: _send(processes, n))
                stack.callback(signal.signal, number, handler or signal.SIG_DFL)
        return _wait(processes)


def quantile(
    chunks: Iterable,
    alpha: ArrayLike,
    *,
    client: Any = None,
    test_weight: ArrayLike | None = None,
) -> jax.Array:
    """Returns the conformal quantile of scores in chunks, which stay where they are.

    The k-th smallest of all n, k = n + 1 - floor(alpha (n + 1)), +inf when k = n + 1:
    the bits of `conformal_quantile` of the chunks joined. With weights min{v :
    sum_{i : S_i > v} w_i + w_{n+1} <= alpha (w_1 + ... + w_{n+1})}.

    Args:
      chunks: Each one scores, shape (n_j,), of numpy or jax, a memmap, a function of no
        arguments that returns scores, or a Dask future or delayed value of them. Pairs
        (scores, weights) in their place have weights. Types are the same in all.
      alpha: Miscoverage level, shape () or (a,) for several, read as by
        `conformal_rank`; of a jax array, too, the numbers are read as decimals.
      client: Where to work: an executor of `concurrent.futures`, a Dask `Client`, or
        anything else with their `map`. Defaults to this process, a chunk after the
        other.
      test_weight: Weight of the test point, if there are weights. Defaults to 1.

    Returns:
      Thresholds, shape of `alpha`, dtype of the scores (integers become floats). NaN
      scores count as +inf.

    Raises:
      ValueError: if there are no chunks, they differ in type, have other axes, or only
        some have weights, a weight is negative or not finite, or above 1 where
        `test_weight` is left out, or an `alpha` is outside (0, 1).

    Guarantee:
      P(S_{n+1} <= q) >= 1 - alpha, and with weights that of
      `weighted_conformal_quantile`. Ranks, counts and sums are exact integers whatever
      n, weights as multiples of at most n / 2^60 of the largest one. What is in a
      chunk, and the order of chunks, do not matter. Where the weight above a score is
      alpha of the total within rounding, `weighted_conformal_quantile` of single
      precision may return a neighboring score.

    Assumption:
      S_1, ..., S_{n+1} are exchangeable; with weights those of
      `weighted_conformal_quantile`. A chunk is the same each time it is read.

    Cost:
      O(n) time. Each chunk is used three times, a function called as often: once for
      type and number, then for two histograms of 65,536 counts (0.5 MB), which alone
      travel (four for double precision, one for half). A further alpha adds one use,
      or three. Memory is that of a chunk. A pool of processes, or a Dask client, is
      sent chunks that are arrays, memmaps too: give it functions or futures.

    See also:
      conformal_quantile, weighted_conformal_quantile, sharded_conformal_quantile,
      simulation.run_grid

    Example:
      >>> quantile([jnp.arange(1.0, 5.0), jnp.arange(5.0, 10.0)], 0.2)
      Array(8., dtype=float32)
    """
    return _chunks.quantiles(chunks, alpha, client, test_weight)


def _wait(processes):
    """Returns the exit statuses; one failure ends all, after a while."""
    deadline = None
    while any(p.poll() is None for p in processes):
        if deadline is None and any(p.poll() for p in processes):
            deadline = time.monotonic() + _GRACE
        late = -1 if deadline is None else time.monotonic() - deadline
        if late > 0:
            _send(processes, signal.SIGKILL if late > _GRACE else signal.SIGTERM)
        time.sleep(1.0 if late > 0 else 0.05)
    return [p.returncode for p in processes]


def _send(processes, number):
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _from_environment(value, name):
    text = os.environ.get(name)
    return int(text) if value is None and text is not None else value


def _mpi():
    """Returns "mpi4py" under an MPI launcher that jax does not know."""
    names = os.environ.keys()
    return "mpi4py" if names & _MPI and not names & _FOUND_BY_JAX else None


def main() -> None:
    """Runs `python -m jaxcp.distributed NUM_PROCESSES script.py arguments`."""
    parser = argparse.ArgumentParser(description="Starts processes of one program.")
    parser.add_argument("num_processes", type=int)
    parser.add_argument("--devices", type=int, help="of each process")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="script or -m module")
    statuses = launch(**vars(parser.parse_args()))
    sys.exit(max(map(abs, statuses)))


if __name__ == "__main__":
    main()
