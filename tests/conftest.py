import os
import tempfile
from pathlib import Path

# Compiling is most of the time of the suite, and a fifth shorter at this level.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")

import jax
import pytest

# Compiled programs are kept between runs: the second run of the suite is much faster.
_CACHE = Path(tempfile.gettempdir()) / f"jaxcp-test-cache-{os.getuid()}"
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)  # for the tests of sharded scores


@pytest.fixture
def key():
    return jax.random.key(0)
