"""Compiled programs are kept where no other user can plant one."""

import os
import stat
from pathlib import Path

import pytest

import folders


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(folders.tempfile, "tempdir", str(tmp_path))
    return tmp_path / "home"


def assert_private(folder):
    found = folder.lstat()
    assert stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    assert found.st_uid == os.getuid()


def test_the_folder_is_in_the_cache_of_the_user(home, monkeypatch):
    folder = folders.private_cache("tests")
    assert folder == home / ".cache" / "tests" == folders.private_cache("tests")
    assert_private(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, by its standard
    assert folders.private_cache("tests") == folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "other"))
    assert folders.private_cache("tests") == home / "other" / "tests"


def test_a_folder_that_others_may_read_is_closed(home):
    (home / ".cache" / "tests").mkdir(parents=True, mode=0o755)
    assert_private(folders.private_cache("tests"))


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
        monkeypatch.setattr(folders.os, "getuid", lambda: 12345)
    else:
        monkeypatch.setattr(folders.Path, "home", lambda: Path("/dev/null"))
    one, other = folders.private_cache("tests"), folders.private_cache("tests")
    assert one != other and one.parent == home.parent
    monkeypatch.undo()
    assert_private(one)
