"""The Dockerfile, docker-compose.yml and lock files as data."""

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"
DOCKERIGNORE = ROOT / ".dockerignore"
LOCK = ROOT / "requirements.lock"
PRODUCTION_LOCK = ROOT / "requirements-production.lock"
EMBEDDED_LOCK = ROOT / "requirements-embedded.lock"
DEPLOY = ROOT / "docs" / "deploy.md"

VARIABLE = re.compile(r"(?<!\$)\$\{(?P<name>\w+)(?P<operator>:?[-?+])?(?P<word>[^}]*)\}")
"""`${NAME:?message}` and the like; `$$` is a dollar for the container's own shell."""
DEFAULTS = {
    match["name"]: match["word"]
    for match in VARIABLE.finditer(COMPOSE.read_text())
    if match["operator"] == ":-"
}
"""What docker-compose.yml takes for an unset variable."""


def services() -> dict[str, dict[str, Any]]:
    """The services of docker-compose.yml, with anchors and merges resolved."""
    entries: dict[str, dict[str, Any]] = YAML(typ="safe").load(COMPOSE)["services"]
    return entries


def volumes_and_networks() -> tuple[dict[str, Any], dict[str, Any]]:
    """The volumes and networks of docker-compose.yml."""
    whole = YAML(typ="safe").load(COMPOSE)
    return whole["volumes"], whole["networks"]


def with_defaults(text: str) -> str:
    """The text with unset variables of Compose substituted; a required one becomes its name."""
    return VARIABLE.sub(
        lambda match: match["word"] if match["operator"] == ":-" else match["name"], text
    )


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with continued lines joined."""
    lines = [
        line
        for line in DOCKERFILE.read_text().splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def copied_sources() -> list[str]:
    """The paths that the Dockerfile copies from the repository, without trailing slashes."""
    copied = [
        source.rstrip("/")
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from=")
        for source in rest.split()[:-1]
    ]
    return list(dict.fromkeys(copied))


def pins(lock: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """The lines `name==version ; marker` of a lock file by name and marker, with their hashes."""
    entries = {}
    for entry in re.findall(
        r"^(\S.*?) \\\n((?:    --hash=\S+(?: \\)?\n)+)", lock.read_text(), re.MULTILINE
    ):
        name, _, rest = entry[0].partition("==")
        entries[f"{name} {rest.partition(' ')[2]}".strip()] = (
            rest.partition(" ")[0],
            frozenset(re.findall(r"--hash=(\S+)", entry[1])),
        )
    return entries
