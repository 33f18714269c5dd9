"""Makes `.venv` beside `pyproject.toml` and installs what `requirements.lock` pins, then this project, editable.

Run by `./dev` with whatever Python 3.11 or newer the machine has, so: standard library only, and no imports from this project.
Two at once wait for each other; an interrupted one is finished by the next.
"""

import base64
import configparser
import fcntl
import hashlib
import html.parser
import http.client
import importlib.util
import io
import os
import shutil
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".stamp"
SOURCES = [ROOT / "pyproject.toml", ROOT / "requirements.lock"]

# Only for a Python without ensurepip, as Debian has it; the hash is the one the public index publishes.
PIP = "pip-26.3-py3-none-any.whl"
PIP_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
PUBLIC_INDEX = "https://pypi.org/simple"


class CannotInstall(Exception):
    """The message is one sentence for whoever ran `./dev`."""


def main() -> None:
    # the lock file is there anyway, and is ours to open for writing where the venv is ours to make
    with SOURCES[1].open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current() and is_usable():
            return
        print(
            f"Installing into {VENV}; this happens once, and again when the pinned versions change.",
            file=sys.stderr,
        )
        if not is_usable():
            venv.create(VENV, with_pip=False, symlinks=True, clear=VENV.exists())
        newest = max(source.stat().st_mtime_ns for source in SOURCES)
        install()
        STAMP.touch()
        os.utime(
            STAMP, ns=(newest, newest)
        )  # not the present: a file may have changed while we installed


def is_current() -> bool:
    """Whether the last complete installation saw the files as they are; `./dev` asks the same before it starts us."""
    return STAMP.exists() and all(
        source.stat().st_mtime_ns <= STAMP.stat().st_mtime_ns for source in SOURCES
    )


def is_usable() -> bool:
    """Whether there is a venv whose Python still runs and is new enough: an upgrade of the system may have taken it away."""
    if not PYTHON.exists():
        return False
    command = [str(PYTHON), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def install() -> None:
    """With uv where it is on PATH, otherwise with pip."""
    uv = shutil.which("uv")
    if uv is None and not has_pip():
        add_pip()
    installer = (
        [uv, "pip", "install", "--python", str(PYTHON)]
        if uv
        else [str(PYTHON), "-m", "pip", "install"]
    )
    quiet = [
        "--quiet",
        *([] if uv else ["--disable-pip-version-check", "--no-warn-script-location"]),
    ]
    run([*installer, *quiet, "--require-hashes", "-r", str(SOURCES[1])])
    # without isolation the build uses the pinned backend instead of fetching whichever is newest
    run([*installer, *quiet, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])


def run(command: list[str]) -> None:
    """Errors and warnings pass to standard error; progress is of no interest."""
    if subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT, check=False).returncode != 0:
        raise CannotInstall(f"`{' '.join(command)}` failed; what it said stands above")


def has_pip() -> bool:
    return (
        subprocess.run(
            [str(PYTHON), "-m", "pip", "--version"], capture_output=True, check=False
        ).returncode
        == 0
    )


def add_pip() -> None:
    """From the standard library's bundle, else from the index."""
    if importlib.util.find_spec("ensurepip") is not None:
        run([str(PYTHON), "-m", "ensurepip", "--default-pip"])
        return
    wheel = fetch_pip(pip_option("index-url") or PUBLIC_INDEX)
    purelib = subprocess.run(
        [str(PYTHON), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    # a wheel of pure Python is installed by unpacking it
    zipfile.ZipFile(io.BytesIO(wheel)).extractall(purelib)


def pip_option(option: str) -> str | None:
    """What pip itself would be told: PIP_INDEX_URL or PIP_CERT, else the nearest of pip's configuration files."""
    given = os.environ.get(f"PIP_{option.replace('-', '_').upper()}")  # noqa: TID251 - pip's setting, not ours, and this runs before ours can be read
    home = Path.home()
    files = [
        os.environ.get("PIP_CONFIG_FILE"),  # noqa: TID251 - likewise
        home / ".config/pip/pip.conf",
        home / "Library/Application Support/pip/pip.conf",
        home / ".pip/pip.conf",
        "/etc/xdg/pip/pip.conf",
        "/etc/pip.conf",
    ]
    for file in files:
        if given or file is None:
            continue
        parser = configparser.RawConfigParser()
        parser.read(file)
        given = parser.get("install", option, fallback=parser.get("global", option, fallback=None))
    return given or None


class _Links(html.parser.HTMLParser):
    """The addresses on an index page, by file name."""

    def __init__(self) -> None:
        super().__init__()
        self.urls_by_name: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if tag == "a" and name == "href" and value:
                address = urllib.parse.urldefrag(value).url
                self.urls_by_name[urllib.parse.unquote(address.rsplit("/", 1)[-1])] = address


def fetch_pip(index: str) -> bytes:
    """The pinned wheel, checked against its hash."""
    page = f"{index.rstrip('/')}/pip/"
    links = _Links()
    links.feed(fetch(page).decode())
    if PIP not in links.urls_by_name:
        raise CannotInstall(
            f"this Python has no ensurepip, and {PIP} is not on the package index; install python3-venv or uv"
        )
    wheel = fetch(urllib.parse.urljoin(page, links.urls_by_name[PIP]))
    if hashlib.sha256(wheel).hexdigest() != PIP_SHA256:
        raise CannotInstall(
            f"{PIP} from the package index is not the file it should be: its SHA-256 is another"
        )
    return wheel


def fetch(address: str) -> bytes:
    """A page or file over HTTP(S), trusting the certificates and using the password that pip would."""
    if not address.startswith(("https://", "http://")):
        raise CannotInstall(
            "this Python has no ensurepip, and the package index is not on the web; install python3-venv or uv"
        )
    parts = urllib.parse.urlsplit(address)
    login, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl())  # noqa: S310 - the scheme was checked
    if login:
        encoded = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")
    try:
        context = ssl.create_default_context(cafile=pip_option("cert"))
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:  # noqa: S310 - likewise
            return bytes(answer.read())
    except (OSError, http.client.HTTPException) as error:
        raise CannotInstall(
            f"this Python has no ensurepip, and pip could not be fetched from the package index: {error}"
        ) from error


if __name__ == "__main__":
    try:
        main()
    except CannotInstall as failure:
        sys.exit(f"dev: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
