"""What only several processes can show: kills, workers and programs of many."""

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp import distributed
from jaxcp.simulation import Moments, Quantiles, Total, collect, merge, run_grid

pytestmark = pytest.mark.slow
ROOT = Path(jaxcp.__file__).parents[1]


def trial(key):
    x = jnp.abs(jax.random.normal(key, (3000,)))
    return {"q": jaxcp.conformal_quantile(x, 0.1), "low": x[:3] < 1, "x": x[0]}


STATISTICS = {"q": Moments(), "low": Total(), "x": Quantiles((0.5,))}


def digest(tree):
    leaves = [np.asarray(v) for v in jax.tree.leaves(tree)]
    return hashlib.sha256(b"".join(v.tobytes() for v in leaves)).hexdigest()


def simulated(num_trials, checkpoint=None):
    return jaxcp.simulate(
        trial,
        jax.random.key(0),
        num_trials,
        batch_size=64,
        reduce=STATISTICS,
        checkpoint=checkpoint,
    )


def slow_square(x, log):
    time.sleep(0.03)
    with Path(log).open("a") as file:
        file.write(f"{x}\n")
    return {"square": x * x}


def dies_once(x, marker):
    if x == 2 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if x == 5:
        raise ArithmeticError("unlucky")
    return {"square": x * x}


def exits(x):
    if x == 3:
        sys.exit("bad arguments")
    return {"x": x}


def start(call, devices=1, **environment):
    """Starts a process that runs a line of Python on this module's names."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += "from jaxcp import distributed\n"
    code += (
        "if 'JAX_PROCESS_ID' in __import__('os').environ: distributed.initialize()\n"
    )
    code += f"from test_processes import *\n{call}"
    environment |= {
        "PYTHONPATH": str(ROOT),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir or "",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_more(folder, pattern, count, process):
    """Waits until there are more files than so many, or the process has ended."""
    end = time.monotonic() + 60
    while len(list(folder.glob(pattern))) <= count and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.005)


def contents(folder, pattern):
    return {path.name: path.read_bytes() for path in folder.glob(pattern)}


def test_a_simulation_that_is_killed_ten_times(tmp_path):
    """Every chunk that was finished is kept as it was, on any number of devices."""
    num_trials, kept = 12_000, {}
    for i in range(10):
        call = f"simulated({num_trials}, {str(tmp_path / 'run')!r})"
        process = start(call, devices=(1, 2, 4)[i % 3])
        wait_for_more(tmp_path / "run", "*.npz", len(kept), process)
        time.sleep(random.Random(i).uniform(0, 0.4))
        process.kill()
        process.wait()
        now = contents(tmp_path / "run", "*.npz")
        assert kept.items() <= now.items() and len(now) > len(kept)
        kept = now
    finished = digest(simulated(num_trials, tmp_path / "run"))
    spans = sorted(tuple(map(int, name[:-4].split("-"))) for name in kept)
    assert all(a < b for a, b in spans)
    assert all(b <= c for (_, b), (c, _) in pairwise(spans))
    assert kept.items() <= contents(tmp_path / "run", "*.npz").items()
    assert finished == digest(simulated(num_trials))


def test_a_grid_that_is_killed_ten_times(tmp_path):
    """Cells that have a file never run again, and every file can be read."""
    out, log, kept = tmp_path / "out", tmp_path / "log", {}
    cells = [{"x": x, "log": str(log)} for x in range(300)]
    call = f"run_grid(slow_square, {cells!r}, {str(out)!r})"
    for i in range(10):
        process = start(call)
        wait_for_more(out, "*.json", len(kept), process)
        time.sleep(random.Random(i).uniform(0, 0.3))
        process.kill()
        process.wait()
        now = contents(out, "*.json")
        assert kept.items() <= now.items() and len(now) > len(kept)
        kept = now
        assert len(collect(out)) == len(kept)
    before = len(log.read_text().splitlines())
    assert len(kept) <= before <= len(kept) + 10  # the running cell of each kill
    records = run_grid(slow_square, cells, out)
    assert [r["results"]["square"] for r in records] == [x * x for x in range(300)]
    assert len(log.read_text().splitlines()) == before + 300 - len(kept)


def test_a_cell_that_exits_leaves_the_workers_of_a_pool_alive(tmp_path, monkeypatch):
    folder = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    monkeypatch.setenv("PYTHONPATH", folder)
    cells = [{"x": x} for x in range(6)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        records = run_grid(exits, cells, tmp_path, pool)
    assert [r["status"] for r in records] == ["done"] * 3 + ["failed"] + ["done"] * 2
    assert "SystemExit: bad arguments" in records[3]["error"]
    assert len(collect(tmp_path)) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_after_the_chunk(number, tmp_path):
    process = start(f"simulated(10**6, {str(tmp_path / 'run')!r})")
    wait_for_more(tmp_path / "run", "*.npz", 0, process)
    before = len(contents(tmp_path / "run", "*.npz"))
    process.send_signal(number)
    text, _ = process.communicate(timeout=30)
    saved = contents(tmp_path / "run", "*.npz")
    assert before <= len(saved) <= before + 3  # the running chunk is kept, no more run
    if number == signal.SIGINT:
        assert process.returncode in (1, -signal.SIGINT)
        assert "KeyboardInterrupt" in text
    else:
        assert process.returncode == -signal.SIGTERM


def test_two_processes_are_one_program(tmp_path, capfd, monkeypatch):
    """The same bits as in one process; all stop, and go on, together."""
    whole = digest(simulated(4000))
    folder = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    monkeypatch.setenv("PYTHONPATH", folder)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from jaxcp import distributed\n"
        "distributed.initialize()\n"
        "import jax, numpy as np\n"
        "import jaxcp\n"
        "from test_processes import digest, simulated\n"
        "x = np.random.default_rng(0).normal(size=1001)\n"
        "mesh = jax.make_mesh((jax.device_count(),), ('a',))\n"
        "q = jaxcp.sharded_conformal_quantile(x, 0.1, mesh)\n"
        "assert q == jaxcp.conformal_quantile(x, 0.1)\n"
        "print('digest', digest(simulated(4000, sys.argv[1])), jax.device_count())\n"
    )
    for _ in range(2):  # fresh, and from the checkpoint
        command = [str(script), str(tmp_path / "run")]
        assert distributed.launch(2, command) == [0, 0]
        lines = [v for v in capfd.readouterr().out.splitlines() if "digest" in v]
        assert lines == [f"digest {whole} 2"] * 2


def two(call):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        start(
            call,
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(i),
        )
        for i in range(2)
    ]


def test_peers_stop_together_and_notice_a_death(tmp_path):
    call = f"simulated(10**6, {str(tmp_path / 'run')!r})"
    for number in (signal.SIGTERM, signal.SIGKILL):
        before = len(contents(tmp_path / "run", "*.npz"))
        first, second = two(call)
        wait_for_more(tmp_path / "run", "*.npz", before, first)
        (second if number == signal.SIGTERM else first).send_signal(number)
        texts = [process.communicate(timeout=60)[0] for process in (first, second)]
        if number == signal.SIGTERM:  # a notice to one stops both
            assert first.returncode == second.returncode == -signal.SIGTERM
        else:
            assert second.returncode != 0
            assert "another process of this program ended" in texts[1]
            assert "finished chunks are in" in texts[1]


def test_peers_raise_the_error_of_the_first(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    for folder, message in [
        (tmp_path, "with thesis.tex"),
        (tmp_path / "thesis.tex" / "c", "Not a directory"),
    ]:
        processes = two(f"simulated(100, {str(folder)!r})")
        texts = [process.communicate(timeout=60)[0] for process in processes]
        kinds = [text.strip().splitlines()[-1].partition(":")[0] for text in texts]
        assert all(message in text for text in texts), texts
        assert kinds[0] == kinds[1] and all(process.returncode for process in processes)


def test_peers_run_a_grid_together(tmp_path):
    cells = [{"x": x} for x in (1, 2, 3, 4)]
    call = f"print('done', *run_grid(exits, {cells!r}, {str(tmp_path)!r}))"
    for _ in range(2):  # fresh, and from the files
        texts = [process.communicate(timeout=60)[0] for process in two(call)]
        lines = [t[t.index("done ") :] for t in texts]
        assert all(line.count("'status': 'done'") == 3 for line in lines), texts
    assert len(collect(tmp_path)) == 3


def test_a_missing_peer_is_not_waited_for():
    code = "from jaxcp import distributed; distributed.initialize("
    code += "'127.0.0.1:1', 2, 1, connect_timeout=2)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "DEADLINE_EXCEEDED" in done.stderr


def test_dask_brings_back_the_cells_of_a_dead_worker(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    from dask.distributed import Client

    folder = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    monkeypatch.setenv("PYTHONPATH", folder)
    cells = [{"x": x, "marker": str(tmp_path / "marker")} for x in range(8)]
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        records = run_grid(dies_once, cells, tmp_path / "out", client.get_executor())
    assert (tmp_path / "marker").exists()
    assert [r["status"] for r in records] == ["done"] * 5 + ["failed"] + ["done"] * 2
    assert "ArithmeticError: unlucky" in records[5]["error"]
    assert len(collect(tmp_path / "out")) == 7


def span_of(start, stop, folder):
    options = {"batch_size": 64, "reduce": STATISTICS, "checkpoint": folder}
    key = jax.random.key(0)
    return jaxcp.simulate(trial, key, 6000, span=(start, stop), **options)


def test_three_spans_in_two_processes_one_of_them_killed(tmp_path):
    """The same bits as one run; what is missing until then is told."""
    folders = [str(tmp_path / name) for name in "abc"]
    first = start(
        f"span_of(0, 1000, {folders[0]!r}); span_of(1000, 2777, {folders[1]!r})"
    )
    killed = start(f"span_of(2777, 6000, {folders[2]!r})", devices=2)
    wait_for_more(tmp_path / "c", "*.npz", 1, killed)
    killed.kill()
    killed.wait()
    kept = contents(tmp_path / "c", "*.npz")
    assert kept
    assert first.wait(timeout=120) == 0
    with pytest.raises(ValueError, match=r"to 5999 not yet in .*c$"):
        merge(folders)
    span_of(2777, 6000, folders[2])
    assert kept.items() <= contents(tmp_path / "c", "*.npz").items()
    assert digest(merge(folders)) == digest(simulated(6000))


def test_quantiles_of_scores_that_lie_on_workers(tmp_path):
    """Dask futures, delayed values and functions; a pool of processes, and weights."""
    pytest.importorskip("distributed")
    import dask
    from dask.distributed import Client, LocalCluster

    x = np.abs(np.random.default_rng(0).standard_normal(40_000, dtype=np.float32))
    weights = np.round(16 * x) / 256
    parts = np.split(x, 20)
    pairs = list(zip(parts, np.split(weights, 20), strict=True))
    paths = [tmp_path / f"{i}.npy" for i in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        np.save(path, part)
    files = [partial(np.load, path, mmap_mode="r") for path in paths]
    wanted = jaxcp.conformal_quantile(x, 0.1)
    weighted = distributed.quantile(pairs, 0.1)
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        futures = client.map(np.load, paths)
        delayed = [dask.delayed(np.load)(path) for path in paths]
        for chunks in (futures, delayed, files, parts):
            assert distributed.quantile(chunks, 0.1, client=client) == wanted
        assert distributed.quantile(pairs, 0.1, client=client) == weighted
        with pytest.raises(ValueError, match="got float16 and float32"):
            distributed.quantile([*futures, x[:3].astype("f2")], 0.1, client=client)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert distributed.quantile(files, 0.1, client=pool) == wanted
        on_device = [jnp.asarray(part) for part in parts]
        assert distributed.quantile(on_device, 0.1, client=pool) == wanted
