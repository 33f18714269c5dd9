"""PostgreSQL refuses to run as root: whom it runs as instead, and what that user can reach."""

import hashlib
import os
import pwd
import shutil
import stat
from pathlib import Path

from cli.process import StartFailed, User

ELSEWHERE = Path("/var/tmp")  # noqa: S108 - folders in it are checked to be root's own before use


def user_to_drop_to() -> User | None:
    """`nobody` when we are root, otherwise None: stay who we are."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise StartFailed("PostgreSQL does not run as root, and this system has no user `nobody` to run it as") from None
    return User(entry.pw_uid, entry.pw_gid)


def reachable(path: Path) -> bool:
    """Whether every existing folder on the way to `path`, itself included, lets everybody pass."""
    here = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (here, *here.parents) if folder.exists())


def folder_for(path: Path) -> Path:
    """A folder that everybody can pass, standing in for an unreachable `path`: the same one each time, root's own."""
    digest = hashlib.sha256(bytes(path.resolve())).hexdigest()[:10]
    folder = ELSEWHERE / f"backburner-{digest}"
    folder.mkdir(mode=0o711, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise StartFailed(f"{folder} belongs to somebody else; remove it first")
    folder.chmod(0o711)
    return folder


def copy_for_everybody(sources: list[Path], to: Path) -> None:
    """Copy folder trees side by side into `to`, readable by everybody; nothing happens when `to` is there already."""
    if to.exists():
        return
    unfinished = to.with_name(f"{to.name}.{os.getpid()}")
    for source in sources:
        shutil.copytree(source, unfinished / source.name, symlinks=True)
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
    try:
        unfinished.rename(to)
    except OSError:
        if not to.exists():
            raise
        shutil.rmtree(unfinished)  # another process was faster
