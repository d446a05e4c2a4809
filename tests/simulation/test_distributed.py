import ast
import signal
from pathlib import Path

import jax
import pytest

import jaxcp
from jaxcp import distributed
from jaxcp.simulation._storage import retold, told


@pytest.fixture(autouse=True)
def outside_of_clusters(monkeypatch):
    for name in ("SLURM_PROCID", "OMPI_MCA_orte_hnp_uri", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_numbers_of_processes(monkeypatch):
    with pytest.raises(ValueError, match=r"process_id below 2, got 2"):
        distributed.initialize(num_processes=2, process_id=2)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(ValueError, match="'two'"):
        distributed.initialize()


def test_after_jax_has_started_it_is_too_late():
    jax.devices()
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


def test_launch_keeps_the_devices_that_the_caller_has_set(monkeypatch):
    code = "import os, sys; sys.exit(os.environ.get('JAX_NUM_CPU_DEVICES') != {!r})"
    for before in ("3", None):
        if before is None:
            monkeypatch.delenv("JAX_NUM_CPU_DEVICES")
        else:
            monkeypatch.setenv("JAX_NUM_CPU_DEVICES", before)
        assert distributed.launch(1, ["-c", code.format(before)]) == [0]
        assert distributed.launch(1, ["-c", code.format("5")], devices=5) == [0]


def test_one_failure_ends_the_others(monkeypatch):
    monkeypatch.setattr(distributed, "_GRACE", 0.2)
    code = "import os, sys, time\nif os.environ['JAX_PROCESS_ID'] == '1': sys.exit(4)\n"
    assert distributed.launch(2, ["-c", code + "time.sleep(60)"]) == [
        -signal.SIGTERM,
        4,
    ]


def test_errors():
    for arguments in [(0, ["-c", ""]), (2, [])]:
        with pytest.raises(ValueError, match="processes, devices and a"):
            distributed.launch(*arguments)
    with pytest.raises(ValueError, match="got 2, 0 and"):
        distributed.launch(2, ["-c", ""], devices=0)


def test_processes_exchange_no_pickles():
    """What comes from a port is data: JSON and arrays, never code."""
    for path in Path(jaxcp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                assert "pickle" not in [*names, getattr(node, "module", "")], path


def test_errors_travel_as_what_they_say(tmp_path):
    try:
        (tmp_path / "nowhere").read_text()
    except OSError as error:
        missing = error
    for error in (ValueError("two\nlines"), missing, OSError("full"), OSError()):
        back = retold(*told(error))
        assert type(back) is type(error) and str(back) == str(error)
    strange = retold(*told(UnicodeError("bytes")))
    assert type(strange) is ValueError and str(strange) == "bytes"
