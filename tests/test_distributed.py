import signal

import pytest

from jaxcp import distributed


@pytest.fixture(autouse=True)
def outside_of_clusters(monkeypatch):
    for name in ("SLURM_PROCID", "OMPI_MCA_orte_hnp_uri", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_cluster_it_says_what_is_missing(monkeypatch):
    with pytest.raises(ValueError, match="JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES"):
        distributed.initialize()
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:9900")
    with pytest.raises(ValueError, match="or JAX_PROCESS_ID in the environment"):
        distributed.initialize(num_processes=2)
    with pytest.raises(ValueError, match=r"process_id in 0, \.\.\., 1, got 2"):
        distributed.initialize(num_processes=2, process_id=2)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(ValueError, match="JAX_NUM_PROCESSES as an int, got 'two'"):
        distributed.initialize()


def test_after_jax_has_started_it_is_too_late():
    with pytest.raises(RuntimeError, match="before"):
        distributed.initialize("localhost:9900", 1, 0)


def test_launchers_of_mpi_that_jax_does_not_know(monkeypatch):
    assert distributed._mpi() is None
    monkeypatch.setenv("PMI_SIZE", "2")
    assert distributed._mpi() == "mpi4py"
    monkeypatch.setenv("SLURM_PROCID", "0")  # jax finds SLURM by itself
    assert distributed._mpi() is None


def test_launch_returns_the_statuses():
    code = "import os, sys; sys.exit(3 * int(os.environ['JAX_PROCESS_ID']))"
    assert distributed.launch(3, ["-c", code]) == [0, 3, 6]
    code = "import os, sys; sys.exit(os.environ['JAX_NUM_CPU_DEVICES'] != '5')"
    assert distributed.launch(1, ["-c", code], devices=5) == [0]


def test_one_failure_ends_the_others(monkeypatch):
    monkeypatch.setattr(distributed, "_GRACE", 0.2)
    code = "import os, sys, time\nif os.environ['JAX_PROCESS_ID'] == '1': sys.exit(4)\n"
    assert distributed.launch(2, ["-c", code + "time.sleep(60)"]) == [
        -signal.SIGTERM,
        4,
    ]


def test_errors():
    for arguments in [(0, ["-c", ""]), (2, [])]:
        with pytest.raises(ValueError, match="num_processes >= 1, devices >= 1 and a"):
            distributed.launch(*arguments)
