"""What the numbers were measured on, and the same machine with narrower instructions.

Figures depend on the processor and on its instruction sets, for NumPy and XLA alike: a
table that compares the two is measured again in a process in which both are kept to
AVX2, where the processor has AVX-512.
"""

import os
import platform
from pathlib import Path

import jax
import jaxlib
import numpy as np
from numpy._core import _multiarray_umath as umath

NARROW = "--xla_cpu_max_isa=AVX2"
MASKED = "AVX2 (AVX-512 masked, for NumPy and XLA)"
SETS = {"avx2": "AVX2", "avx512f": "AVX-512", "asimd": "NEON", "sve": "SVE"}


def machine() -> dict:
    """Returns what the numbers were measured on."""
    about, on_cpu = _cpuinfo(), jax.default_backend() == "cpu"
    accelerator = {} if on_cpu else {"accelerator": jax.devices()[0].device_kind}
    return {
        "processor": processor(about),
        "instructions": MASKED if is_masked() else instructions(about),
        "cores": _cores(),
        "memory": f"{_memory() / 2**30:.0f} GiB",
        **accelerator,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def processor(about: dict) -> str:
    """Returns the name of a processor, with the numbers that tell models apart.

    Args:
      about: What Linux tells of it, in /proc/cpuinfo; nothing elsewhere.
    """
    name = about.get("model name", platform.processor() or platform.machine())
    numbers = {"family": about.get("cpu family"), "model": about.get("model")}
    told = " ".join(f"{k} {v}" for k, v in numbers.items() if v is not None)
    return f"{name}, {told}" if told else name


def instructions(about: dict) -> str:
    """Returns the instruction sets of a processor that matter here."""
    flags = about.get("flags", about.get("Features", "")).split()
    return ", ".join(name for flag, name in SETS.items() if flag in flags) or "unknown"


def can_be_masked() -> bool:
    """Returns whether this process could be run again with AVX2 alone."""
    return jax.default_backend() == "cpu" and _is_wide() and not _narrow_xla()


def is_masked() -> bool:
    """Returns whether NumPy and XLA are kept to AVX2 though the processor has more."""
    return _is_wide() and _narrow_xla() and not _wide_features()


def masked_environment() -> dict[str, str]:
    """Returns the environment of a process that is kept to AVX2.

    NumPy refuses a name that belongs to its baseline: only those that it has, that it
    chooses at run time, and that the processor has are named.
    """
    names = [os.environ.get("NPY_DISABLE_CPU_FEATURES", ""), *_wide_features()]
    flags = [os.environ.get("XLA_FLAGS", ""), NARROW]
    return os.environ | {
        "NPY_DISABLE_CPU_FEATURES": " ".join(filter(None, names)),
        "XLA_FLAGS": " ".join(filter(None, flags)),
    }


def peak_gib(*, reset: bool = False) -> float | None:
    """Returns the most memory of this process so far, or since the last reset.

    None where the system does not tell. `resource` tells too much: a process starts
    with the peak of the one that started it.
    """
    status = Path("/proc/self/status")
    if jax.default_backend() != "cpu":
        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 2**30
    if not status.exists():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    peak = int(lines["VmHWM"].split()[0]) / 2**20
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return peak


def _is_wide():
    return "avx512f" in _cpuinfo().get("flags", "").split()


def _narrow_xla():
    return NARROW in os.environ.get("XLA_FLAGS", "").split()


def _wide_features():
    """Returns the features beyond AVX2 that this NumPy uses."""
    wide = [v for v in umath.__cpu_dispatch__ if v.startswith(("AVX512", "X86_V4"))]
    baseline, has = umath.__cpu_baseline__, umath.__cpu_features__
    return [name for name in wide if has.get(name) and name not in baseline]


def _cpuinfo():
    """Returns what Linux tells of the first processor, nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    first: dict[str, str] = {}
    for name, value in pairs:
        first.setdefault(name.strip(), value.strip())
    return first


def _memory():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cores():
    has = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has else os.cpu_count()
