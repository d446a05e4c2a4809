"""Compiled programs, kept for the next process where no other user can plant one."""

import hashlib
import os
import platform
import stat
import tempfile
from importlib.metadata import version
from pathlib import Path

import jax

# What takes a third off the time that XLA compiles.
QUICKLY = ("--xla_cpu_use_fusion_emitters=false",)
QUICKLY += ("--xla_cpu_parallel_codegen_split_count=1",)
# What tells processors apart, on the systems that list it: models, what they can do.
_TELLING = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")


def keep_programs() -> Path:
    """Lets this process keep what it compiles, and returns the folder of it."""
    folder, _ = settings().values()
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    return Path(folder)


def compile_quickly() -> None:
    """Lets this process spend less time on compiling: before its first computation.

    Flags that the user has chosen stay.
    """
    if version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
        os.environ.setdefault("XLA_FLAGS", " ".join(QUICKLY))


def compile_anew() -> None:
    """Lets this process compile everything: where the time of that is measured."""
    jax.config.update("jax_enable_compilation_cache", False)


def settings() -> dict[str, str]:
    """Returns the variables of an environment in which processes keep programs.

    A folder that the user has chosen stays.
    """
    own = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return {
        "JAX_COMPILATION_CACHE_DIR": own or str(private_cache(f"jaxcp-{_machine()}")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def private_cache(name: str) -> Path:
    """Returns the folder of this name in the user's cache, or a fresh temporary one."""
    try:
        folder = _cache_home() / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            folder.chmod(0o700)
            return folder
    except (OSError, RuntimeError):  # no home, or one that cannot be written to
        pass
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))


def _cache_home():
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"


def _machine(info: Path = Path("/proc/cpuinfo")) -> str:
    """Returns a name for the processor and jaxlib: programs are for those alone."""
    lines = info.read_text().splitlines() if info.exists() else []
    told = dict.fromkeys(line for line in lines if line.startswith(_TELLING))
    about = "\n".join(told) or platform.processor() or platform.machine()
    text = f"{about}\n{version('jaxlib')}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
