import os

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

from experiments import compiled  # noqa: E402

# Compiled programs are kept between runs: the second run of the suite is much faster.
compiled.keep_programs()
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 4)  # for the tests of meshes


@pytest.fixture
def key():
    return jax.random.key(0)
