"""What the boards and alerts of `deploy/` select: metrics, labels and their values."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.support.deployment_files import ROOT

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))

_GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"(?<![\w$])([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(?!\s*\()(?![\w:])")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_LABEL_VALUES = re.compile(r"label_values\((\w+), (\w+)\)")
_WORDS = frozenset(("and", "or", "unless", "bool", "offset", "on", "ignoring"))


@dataclass(frozen=True)
class Selector:
    """A metric in an expression."""

    name: str
    labels: frozenset[str]
    """that it is selected by"""
    values: frozenset[tuple[str, str]]
    """label and value, of selections by whole values"""


@dataclass(frozen=True)
class Expression:
    """An expression of a board or an alert."""

    place: str
    """the file and the panel or alert"""
    text: str
    legend: str = ""

    @property
    def groups(self) -> set[str]:
        """The labels that the expression groups by."""
        return {
            label.strip()
            for labels in _GROUPING.findall(self.text)
            for label in labels.split(",")
            if label.strip()
        }

    @property
    def legend_labels(self) -> set[str]:
        """The labels that its legend or its message shows."""
        return set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", self.legend))

    @property
    def selectors(self) -> list[Selector]:
        """The metrics that it reads."""
        return [
            Selector(
                name,
                frozenset(label for label, _, _ in _MATCHER.findall(matchers)),
                frozenset(
                    (label, value)
                    for label, operator, text in _MATCHER.findall(matchers)
                    for value in (text.split("|") if "~" in operator else [text])
                    if re.fullmatch(r"\w+", value)
                ),
            )
            for name, matchers in _SELECTOR.findall(_GROUPING.sub(" ", self.text))
            if name not in _WORDS
        ]

    @property
    def plain(self) -> str:
        """The expression with Grafana's variables replaced, as Prometheus would get it."""
        return self.text.replace("$__rate_interval", "5m").replace("$", "")


def alert_rules() -> list[dict[str, Any]]:
    """The rules of alerts.yml."""
    [group] = YAML(typ="safe").load(ALERTS)["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def alert_expressions() -> Iterator[Expression]:
    """One of each alert."""
    for rule in alert_rules():
        yield Expression(rule["alert"], rule["expr"], rule["annotations"]["summary"])


def board_expressions(board: Path) -> Iterator[Expression]:
    """All of a board's panels and variables."""
    content = json.loads(board.read_text())
    for panel in content["panels"]:
        for target in panel.get("targets", ()):
            place = f"{board.name}: {panel['title']}"
            yield Expression(place, target["expr"], target["legendFormat"])
    for variable in content["templating"]["list"]:
        if variable["type"] == "query":
            selected = _LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert selected is not None, variable
            yield Expression(board.name, f'{selected[1]}{{{selected[2]}="$all"}}')
