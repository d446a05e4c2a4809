"""A folder for compiled programs in which no other user can plant one."""

import os
import stat
import tempfile
from pathlib import Path


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
