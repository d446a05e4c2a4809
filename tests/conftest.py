import gc
import os
import subprocess
from copy import deepcopy
from pathlib import Path

import jaxlib

# Compiling is most of the time of the suite, and takes half as long with little
# optimization. An unknown flag ends the process, so the last ones are for
# versions known to have them. `XLA_FLAGS= pytest` runs what users run.
_FLAGS = ["--xla_backend_optimization_level=0"]
if jaxlib.__version__.startswith("0.10."):
    _FLAGS += ["--xla_llvm_disable_expensive_passes=true"]
    _FLAGS += ["--xla_cpu_use_fusion_emitters=false"]
    _FLAGS += ["--xla_cpu_parallel_codegen_split_count=1"]
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))

import jax  # noqa: E402
import pytest  # noqa: E402

from experiments.tools import compiled  # noqa: E402

# Compiled programs are kept between runs: the second run of the suite is much faster.
compiled.keep_programs()
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 4)  # for the tests of meshes
jax.config.update("jax_traceback_in_locations_limit", 0)  # of each operation: dear


def lower_in_one_context():
    """Programs are made in one MLIR context: a fresh one takes 3 ms, and most are tiny.

    What is lowered within another program, as constants are, has a context of its own.
    """
    from jax._src.interpreters import mlir

    make = mlir.make_ir_context
    shared = make()

    def context():
        return shared if mlir.ir.Context.current is None else make()

    mlir.make_ir_context = context


def put_arrays():
    """`jnp.asarray` of numpy.s arrays is no longer a program for each shape."""
    from jax._src.lax import lax

    def put(x):
        return x if isinstance(x, jax.Array) else jax.device_put(deepcopy(x))

    lax.stage_p.def_impl(put)


if jax.__version__.startswith("0.10."):  # in which they are known to be as they were
    lower_in_one_context()
    put_arrays()

# Tracing makes objects by the million, few of which are garbage: the collector is
# told to look for it less often, and never among what was imported.
gc.set_threshold(50_000, 20, 100)
_MUCH_MEMORY = 6e9  # of a worker, in bytes

pytest_plugins = ["reach"]


def untracked(folder):
    """Returns the files of a checkout that git does not know; none without git."""
    command = "git", "-C", folder, "ls-files", "--others", "--exclude-standard"
    quiet = {"text": True, "stderr": subprocess.DEVNULL}
    try:
        return {*subprocess.check_output(command, **quiet).splitlines()}
    except (OSError, subprocess.CalledProcessError):
        return set()


def pytest_sessionstart(session):
    """Notes which files are there, once for all workers."""
    if not hasattr(session.config, "workerinput"):
        session.config.untracked = untracked(session.config.rootpath)


def pytest_sessionfinish(session):
    """Fails where tests have left files in the checkout."""
    before = getattr(session.config, "untracked", None)
    left = set() if before is None else untracked(session.config.rootpath) - before
    if left:
        print(f"\nexpected no new files after the tests, got {sorted(left)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Workers start with half of the files each: a file's programs are traced once."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadfile" if config.option.map else "worksteal"


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


def memory():
    """Returns the bytes in memory of this process, about as many where none says."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 4000 * len(gc.get_objects())  # slow
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """Programs are dropped at the end of a file once there are many gigabytes."""
    yield
    if memory() > _MUCH_MEMORY:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def programs():
    """What is compiled from here on, an entry for each program."""
    found: list[str] = []

    def note(event, duration, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    jax.monitoring.unregister_event_duration_listener(note)
