"""What the experiments tell of the machine, and how they time calls on it."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
import jaxcp
from experiments.speed import (
    checks,
    chunks,
    data_scale,
    groups,
    kernel_scaling,
    kernel_speed,
)
from experiments.tools import bars, machines, reporting, timing

EPYC = {"model name": "AMD EPYC", "cpu family": "26", "model": "2", "flags": "fpu avx2"}


def test_the_model_of_a_processor_is_named():
    assert machines.processor(EPYC) == "AMD EPYC, family 26 model 2"
    assert machines.processor({"model name": "Some CPU @ 2 GHz"}) == "Some CPU @ 2 GHz"
    assert machines.processor({})
    told = machines.machine()
    assert {"processor", "instructions", "cores", "memory"} <= set(told)
    assert told["jaxlib"] and json.dumps(told)
    assert ("accelerator" in told) == (jax.default_backend() != "cpu")


@pytest.mark.parametrize(
    "about, sets",
    [
        (EPYC, "AVX2"),
        ({"flags": "avx2 avx512f avx512bw"}, "AVX2, AVX-512"),
        ({"Features": "fp asimd"}, "NEON"),
        ({}, "unknown"),
    ],
)
def test_instruction_sets(about, sets):
    assert machines.instructions(about) == sets


def test_a_masked_environment_starts_numpy_and_jax(monkeypatch):
    """NumPy ends with an error where a name of its baseline is masked."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    environment = machines.masked_environment()
    assert environment["XLA_FLAGS"].split()[0] == "--xla_backend_optimization_level=0"
    program = """
import jax.numpy as jnp
from experiments.tools import machines
assert jnp.sum(jnp.ones(3)) == 3 and not machines._wide_features()
print(machines.is_masked(), machines.can_be_masked(), machines.machine())
"""
    words = [sys.executable, "-W", "error::ImportWarning", "-c", program]
    run = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    wide = machines._is_wide()
    assert run.stdout.startswith(f"{wide} False")  # never again in a process of its own
    assert (machines.MASKED in run.stdout) == wide


def test_without_wide_instructions_nothing_is_masked(monkeypatch):
    monkeypatch.setattr(machines, "_cpuinfo", lambda: EPYC)
    assert not machines.can_be_masked() and not machines.is_masked()


@pytest.fixture
def started(monkeypatch):
    """The processes that are started, which do not run."""
    seen = []

    def start(words, **options):
        seen.append((words, options["env"]))

    monkeypatch.setattr(reporting, "commit", lambda: "one")
    monkeypatch.setattr(reporting.subprocess, "run", start)
    return seen


TABLES = {"fast": lambda: [{"a": 1}], "other": lambda: [{"b": 2}]}


def test_masked_tables_are_measured_in_a_process_of_their_own(
    tmp_path, monkeypatch, started
):
    monkeypatch.setattr(reporting, "can_be_masked", lambda: True)
    reporting.run_tables(tmp_path, "kernel_speed", TABLES, {}, ("fast",))
    ((words, environment),) = started
    assert words[1:] == ["-m", "experiments.speed.kernel_speed", "--out", str(tmp_path)]
    assert machines.NARROW in environment["XLA_FLAGS"]
    monkeypatch.setattr(reporting, "can_be_masked", lambda: False)
    monkeypatch.setattr(reporting, "is_masked", lambda: True)
    reporting.run_tables(tmp_path, "kernel_speed", TABLES, {}, ("fast",))
    names = {path.stem for path in tmp_path.glob("*.json")}
    assert names == {f"kernel_speed_{v}" for v in ("fast", "other", "fast_avx2")}
    saved = json.loads((tmp_path / "kernel_speed_fast_avx2.json").read_text())
    assert saved["settings"]["instructions"] == machines.MASKED
    assert len(started) == 1


def test_nothing_is_masked_that_is_not_asked_for(tmp_path, monkeypatch, started):
    monkeypatch.setattr(reporting, "can_be_masked", lambda: True)
    monkeypatch.setattr(reporting, "is_masked", lambda: True)
    reporting.run_tables(tmp_path, "kernel_speed", TABLES, {})
    assert len(list(tmp_path.glob("*.json"))) == 2 and not started


def test_the_peak_of_memory_is_of_the_time_since_the_last_reset():
    if machines.peak_gib(reset=True) is None:
        pytest.skip("the system does not tell")
    before = machines.peak_gib()
    held = np.ones(2**25)  # 1/4 GiB
    peak = machines.peak_gib()
    assert peak > before + 0.2
    del held
    machines.peak_gib(reset=True)
    assert machines.peak_gib() < peak


def test_calls_take_turns():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    times = timing.in_turns(calls, repeats=2)
    rounds = ["".join(order[i : i + 2]) for i in (0, 2, 4)]
    assert rounds[0] == "ab" and all(sorted(v) == ["a", "b"] for v in rounds)
    assert set(times) == {"a", "b"} and times["a"].least <= times["a"].median
    order.clear()
    timing.in_turns({"a": lambda: order.append("a")}, repeats=9, seconds=0.0)
    assert len(order) == 4


def test_time_of_cores_is_told_apart_from_time_on_the_wall():
    times = timing.in_turns({"sleep": lambda: time.sleep(0.05)}, repeats=1)["sleep"]
    assert times.median >= 0.05 > times.cpu >= 0


def test_compile_seconds_are_not_of_a_cache(tmp_path):
    def unheard_of(x):
        return jnp.cumsum(x) * 3

    cache = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        program, seconds = timing.compiled(jax.jit(unheard_of), np.ones(4))
        assert seconds > 0 and program(np.ones(4))[-1] == 12
        assert not list(tmp_path.glob("*unheard_of*"))
        assert jax.config.jax_enable_compilation_cache
    finally:
        jax.config.update("jax_compilation_cache_dir", cache)
        timing.compilation_cache.reset_cache()


@pytest.mark.parametrize("n", [1, 2, 100, 1000])
def test_contenders_of_the_kernel_agree(n):
    x = np.random.default_rng(n).integers(-3, 3, (5, n)).astype(np.float32)
    x[0, 0], x[1, 0] = np.inf, -np.inf
    for k in {1, n // 2 + 1, n}:
        calls = kernel_speed.contenders(x, jnp.asarray(x), k)
        np.testing.assert_array_equal(
            kernel_speed.by_sorting(jnp.asarray(x), k), calls["numpy"]()
        )
    k = jnp.array([1, n])
    for several in (kernel_speed.by_one_sort, kernel_speed.by_selections):
        picked = several(jnp.asarray(x[2]), k)
        np.testing.assert_array_equal(picked, np.sort(x[2])[k - 1])


def test_both_ways_of_groups_agree(monkeypatch):
    monkeypatch.setattr(groups, "REPEATS", 1)
    found = groups.measure(1500, 20)
    assert found["rows"] == "1,500, 20 groups" and found["CPU s"] >= 0


def test_checks_are_timed_with_and_without(monkeypatch):
    monkeypatch.setattr(checks, "REPEATS", 1)
    for name, count in {"LAC": 3, "RAPS": 2}.items():
        assert len(checks.measure(name, 50, 4)) == count
    p, y = checks.data(50, 4)
    refused = lambda: jaxcp.calibrate(checks.SCORES["LAC"], 2 * p, y)  # noqa: E731
    with checks.unchecked():
        refused()
    with pytest.raises(ValueError, match="sum to 1"):
        refused()


def test_weighted_quantiles_by_numpy():
    """Of a mass of 101, 80 lies up to 2, too little; of 83 it is enough."""
    x, w = np.array([[3.0, 1.0, 2.0]]), np.array([[20.0, 50.0, 30.0]])
    assert kernel_speed.weighted_by_numpy(x, w)[0] == 3.0
    assert kernel_speed.weighted_by_numpy(x, w * [[0.1, 1, 1]])[0] == 2.0
    rows = kernel_speed.normals((3, 50))[0]
    weights = np.random.default_rng(1).random(rows.shape)
    ours = kernel_speed._WEIGHTED(jnp.asarray(rows), jnp.asarray(weights, rows.dtype))
    np.testing.assert_array_equal(ours, kernel_speed.weighted_by_numpy(rows, weights))


def test_bars_are_of_the_shapes_that_are_measured():
    name = lambda shape: f"{shape[0]} x {shape[1]}"  # noqa: E731
    assert {name(s): most for s, most in kernel_speed.AT_MOST.items()} == bars.KERNEL
    assert set(map(name, kernel_speed.SMALL)) == set(bars.SMALL)
    assert set(map(name, kernel_speed.WEIGHTED)) == set(bars.WEIGHTED)
    for table in bars.MASKED:
        assert bars.BARS[f"{table}_avx2"] == bars.BARS[table]


def test_growth_is_told_against_the_row_above(monkeypatch):
    monkeypatch.setattr(
        kernel_scaling, "SHAPES", {"rows": [(10, 2), (100, 2), (1000, 2)]}
    )
    lines = [
        {"size": 20, "s": 1.0, "peak GiB": 0.1},
        {"size": 200, "s": 2.0, "peak GiB": 0.1},
        {"size": 2000, "s": 40.0, "peak GiB": None},
    ]
    rows = kernel_scaling.with_growth("rows", lines)
    assert [row["times the row above"] for row in rows] == [None, 2.0, 20.0]
    assert [row["linear or below"] for row in rows] == ["", "yes", "no"]
    assert [row["number"] for row in rows] == ["10^1", "10^2", "10^3"]


@pytest.mark.parametrize("verb", data_scale.VERBS)
def test_every_verb_of_the_scaling_runs_in_small(verb):
    line = data_scale.measure(verb, 1000)
    assert line["rows"] == 1000 and line["CPU s"] >= 0


def test_seconds_and_memory_of_one_size():
    line = kernel_scaling.measure((1000,))
    assert line["size"] == 1000 and line["s"] > 0
    assert kernel_scaling.measure((10, 100))["size"] == 1000


def test_quantiles_of_chunks_are_timed_and_equal(monkeypatch, tmp_path):
    monkeypatch.setattr(chunks, "REPEATS", 1)
    with ThreadPoolExecutor(2) as pool:
        rows = chunks.measure(1000, 10, pool, None, tmp_path)
    assert [row["bins"] for row in rows] == [None, None, 65536, 256, 65536]
    assert {row["equal"] for row in rows} == {"yes"}
