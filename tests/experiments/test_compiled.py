"""Compiled programs are kept where no other user can plant one, by processor."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments.tools import compiled, reporting

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(compiled.tempfile, "tempdir", str(tmp_path))
    return tmp_path / "home"


def assert_private(folder):
    found = folder.lstat()
    assert stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    assert found.st_uid == os.getuid()


def test_the_folder_is_in_the_cache_of_the_user(home, monkeypatch):
    folder = compiled.private_cache("tests")
    assert folder == home / ".cache" / "tests" == compiled.private_cache("tests")
    assert_private(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, by its standard
    assert compiled.private_cache("tests") == folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "other"))
    assert compiled.private_cache("tests") == home / "other" / "tests"


def test_a_folder_that_others_may_read_is_closed(home):
    (home / ".cache" / "tests").mkdir(parents=True, mode=0o755)
    assert_private(compiled.private_cache("tests"))


@pytest.mark.parametrize("trap", ["file", "link", "owner", "no home"])
def test_what_is_not_ours_is_left_alone(home, monkeypatch, trap):
    cache = home / ".cache"
    cache.mkdir(parents=True)
    if trap == "file":
        (cache / "tests").write_text("")
    elif trap == "link":
        (cache / "elsewhere").mkdir()
        (cache / "tests").symlink_to(cache / "elsewhere")
    elif trap == "owner":
        monkeypatch.setattr(compiled.os, "getuid", lambda: 12345)
    else:
        monkeypatch.setattr(compiled.Path, "home", lambda: Path("/dev/null"))
    one, other = compiled.private_cache("tests"), compiled.private_cache("tests")
    assert one != other and one.parent == home.parent
    monkeypatch.undo()
    assert_private(one)


INFO = "processor\t: {}\nmodel name\t: {}\ncpu MHz\t: {}\nflags\t: {}\n"


def test_the_name_is_of_the_processor_and_jaxlib(tmp_path, monkeypatch):
    def name(*told):
        (tmp_path / "info").write_text(INFO.format(*told))
        return compiled._machine(tmp_path / "info")

    own = name(0, "A", 1000, "avx avx2")
    assert own == name(1, "A", 2000, "avx avx2")
    assert len({own, name(0, "B", 1000, "avx avx2"), name(0, "A", 1000, "avx")}) == 3
    monkeypatch.setattr(compiled, "version", lambda package: "0.0")
    assert own != name(0, "A", 1000, "avx avx2")
    assert compiled._machine(tmp_path / "none") == compiled._machine(tmp_path / "none")


def test_flags_are_of_a_version_that_knows_them(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(compiled, "version", lambda package: "0.11.0")
    compiled.compile_quickly()
    assert "XLA_FLAGS" not in os.environ
    monkeypatch.setattr(compiled, "version", lambda package: "0.10.2")
    compiled.compile_quickly()
    assert os.environ["XLA_FLAGS"].split() == list(compiled.QUICKLY)
    monkeypatch.setenv("XLA_FLAGS", "")  # chosen by the user, as any other
    compiled.compile_quickly()
    assert os.environ["XLA_FLAGS"] == ""


@pytest.mark.parametrize("options", [{}, {"compiles": True}, {"times": True}])
def test_what_times_programs_compiles_them_as_users_do(monkeypatch, options):
    seen = []
    monkeypatch.setattr(compiled, "compile_quickly", lambda: seen.append("quickly"))
    monkeypatch.setattr(compiled, "compile_anew", lambda: None)
    monkeypatch.setattr(compiled, "keep_programs", lambda: None)
    reporting.arguments("An experiment.", **options)
    assert bool(seen) is not bool(options)


def test_a_folder_that_the_user_chose_stays(home, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    folder, seconds = compiled.settings().values()
    assert Path(folder).parent == home / ".cache" and seconds == "0"
    assert_private(Path(folder))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    assert compiled.settings()["JAX_COMPILATION_CACHE_DIR"] == "/elsewhere"


EXPERIMENT = """
import json, jax
from experiments.tools.reporting import arguments
arguments("An experiment.", compiles={})
jax.jit(lambda x: x + 1)(1.0)
print(json.dumps(jax.config.jax_compilation_cache_dir))
"""


def alone(code, **variables):
    """Returns what code prints in a process of its own, without variables of jax."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    words, own = [sys.executable, "-c", code], {**own, **variables}
    return subprocess.check_output(words, env=own, text=True, cwd=ROOT).strip()


@pytest.mark.slow
@pytest.mark.parametrize("compiles", [False, True])
def test_experiments_keep_programs_unless_they_time_them(compiles, home):
    folder = json.loads(alone(EXPERIMENT.format(compiles), HOME=str(home)))
    kept = [] if folder is None else list(Path(folder).iterdir())
    assert bool(kept) is not compiles
    assert not kept or Path(folder).parent == home / ".cache"
