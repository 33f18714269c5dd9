"""Finds out what an upstream can do, by sending it requests: `backburner upstream check`.

Each request goes through the same translation as a worker's, so what works here works in responses.
A model may ignore a feature that the upstream accepts: that is `unused`, not a fault of the
upstream. Then the questions about its settings follow (cli/configuration/questions.py), and where
it could be called by the other API, whether that works.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from structlog.testing import capture_logs

from cli.configuration.features import FeatureChecks, FeatureStatus, Finding, run_check
from cli.configuration.questions import SettingFinding, SettingsSearch, SettingStatus, toml_lines
from cli.configuration.trial import Trial
from cli.errors import CommandFailed
from cli.output import clean
from models.config.groups import LimitSettings
from models.config.routes import Routes
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.upstream_probe import probe_upstream


@dataclass(frozen=True, slots=True)
class Conformance:
    """Everything that was found out."""

    upstream: str
    base_url: str
    api: str
    model: str
    findings: list[Finding] = field(default_factory=list)
    settings: list[SettingFinding] = field(default_factory=list)
    """The questions about settings; empty for a native upstream."""
    toml: list[str] = field(default_factory=list)
    """The lines for backburner.toml that the upstream needs."""
    advice: list[str] = field(default_factory=list)
    """Sentences about its API."""

    @property
    def is_usable(self) -> bool:
        """Whether it answers."""
        return bool(self.findings) and self.findings[0].verdict is FeatureStatus.WORKS

    @property
    def is_complete(self) -> bool:
        """Whether everything works without further settings."""
        return all(finding.verdict is FeatureStatus.WORKS for finding in self.findings) and all(
            finding.verdict in (SettingStatus.ACCEPTED, SettingStatus.ADVISED)
            for finding in self.settings
        )

    @property
    def not_found_out(self) -> list[str]:
        """The names of features and questions of which nothing is known."""
        return [
            *(each.feature for each in self.findings if each.verdict is FeatureStatus.UNTRIED),
            *(each.question for each in self.settings if each.verdict is SettingStatus.UNTRIED),
        ]


Show = Callable[[Finding | SettingFinding], None]
"""Shows a finding as soon as it is there."""


class ConformanceCheck:
    """The check of one upstream with one model."""

    def __init__(
        self,
        settings: UpstreamSettings,
        limits: LimitSettings,
        model: str,
        *,
        seconds: float,
        tokens: int,
    ) -> None:
        """`seconds` and `tokens` limit each request."""
        self._limits = limits
        self._seconds = seconds
        self._tokens = tokens
        self._settings = settings
        self.result = Conformance(settings.name, settings.base_url, settings.api, model)

    @classmethod
    def of(
        cls, settings: Settings, name: str, model: str | None, *, seconds: float, tokens: int
    ) -> Self:
        """The check of the upstream of this name. Without `model` it is done with a model that is
        routed there, else with the first that the upstream lists. Raises CommandFailed."""
        routes = Routes(settings)
        upstream = _select_upstream(routes, name)
        model = model or _routed_model(routes, name) or _first_listed_model(upstream)
        return cls(upstream, settings.limits, model, seconds=seconds, tokens=tokens)

    async def run(self, show: Show) -> None:
        """Runs all checks, one after another; `result` has what was found out."""
        # Log lines would stand between the results.
        with capture_logs():
            await self._run(show)

    async def _run(self, show: Show) -> None:
        await self._check_features(self._settings, show)
        was_refused = self.result.findings[0].is_refusal
        if self._settings.api == "chat" and (self.result.is_usable or was_refused):
            found = await self._search_settings(show)
            if was_refused and found != self._settings:
                await self._check_features(found, show)
        if self.result.is_usable:
            self.result.advice.extend(await self._api_advice())

    def _trial(self, settings: UpstreamSettings) -> Trial:
        return Trial(
            settings, self._limits, self.result.model, seconds=self._seconds, tokens=self._tokens
        )

    async def _check_features(self, settings: UpstreamSettings, show: Show) -> None:
        """Tries the features; with these settings, if the present ones were refused before."""
        findings = self.result.findings
        findings.clear()
        trial = self._trial(settings)
        try:
            for feature, check in FeatureChecks(trial).checks.items():
                if findings and findings[0].verdict is not FeatureStatus.WORKS:
                    findings.append(Finding(feature, FeatureStatus.UNTRIED, ""))
                else:
                    findings.append(await run_check(feature, check))
                show(findings[-1])
        finally:
            await trial.close()

    async def _search_settings(self, show: Show) -> UpstreamSettings:
        """The settings with which the upstream accepts what it accepts at all."""
        # What is refused once is refused again.
        trial = self._trial(self._settings.model_copy(update={"max_retries": 0}))
        search = SettingsSearch(trial)
        try:
            async for finding in search.findings():
                self.result.settings.append(finding)
                show(finding)
        finally:
            await trial.close()
        self.result.toml.extend(toml_lines(search.found))
        return search.settings

    async def _api_advice(self) -> list[str]:
        """Which value of `api` suits the upstream."""
        if self._settings.api == "messages":
            return []
        if self._settings.api == "responses":
            lacking = [
                finding.feature
                for finding in self.result.findings
                if finding.feature in NATIVE_DEMANDS and finding.verdict is not FeatureStatus.WORKS
            ]
            return (
                [f'Its Responses API lacks: {", ".join(lacking)}. Try api = "chat".']
                if lacking
                else []
            )
        native = self._settings.model_copy(update={"api": "responses", "max_retries": 0})
        trial = self._trial(native)
        checks = FeatureChecks(trial).checks
        try:
            lacking = []
            for feature in ("text", *NATIVE_DEMANDS):
                finding = await run_check(feature, checks[feature])
                if finding.verdict is not FeatureStatus.WORKS:
                    lacking.append(feature)
                if lacking == ["text"]:
                    return ['It answers no Responses API: api = "chat" is right.']
        finally:
            await trial.close()
        if not lacking:
            return ['Its Responses API works too: api = "responses" uses it as it is.']
        return [f'Its Responses API lacks: {", ".join(lacking)}. api = "chat" is right.']


NATIVE_DEMANDS = ("tool_choice", "structured output", "length limit")
"""The features that some servers accept at `/responses` and ignore."""


def _select_upstream(routes: Routes, name: str) -> UpstreamSettings:
    """The upstream of this name. Raises CommandFailed."""
    configured = {key: value for key, value in routes.upstreams.items() if value.base_url}
    if name not in configured:
        names = ", ".join(sorted(configured)) or "none"
        raise CommandFailed(f"there is no upstream '{name}'; configured: {names}")
    return configured[name]


def _routed_model(routes: Routes, name: str) -> str | None:
    """A model's name at this upstream, from a route without a `*`."""
    models = (
        target.model or pattern
        for pattern, targets in routes.patterns.items()
        for target in targets
        if target.upstream == name
    )
    return next((model for model in models if "*" not in model), None)


def _first_listed_model(settings: UpstreamSettings) -> str:
    """Raises CommandFailed if none is listed."""
    probe = probe_upstream(settings, timeout=10.0)
    if not probe.models:
        raise CommandFailed(
            probe.problem or f"{settings.base_url} lists no model; name one with --model"
        )
    return probe.models[0]


_NAME_WIDTH = 17
_VERDICT_WIDTH = 8


class ConformanceLines:
    """The lines about an upstream, made as the findings come."""

    def __init__(self) -> None:
        self._kind: type[Finding | SettingFinding] | None = None

    def head(self, facts: Conformance) -> str:
        """The first line."""
        return f"{facts.upstream} ({facts.api}, {facts.base_url}), model {facts.model}"

    def lines(self, finding: Finding | SettingFinding) -> list[str]:
        """The lines of one finding; before the first one of its kind, the head of a table."""
        lines = []
        if type(finding) is not self._kind:
            self._kind = type(finding)
            name = "FEATURE" if isinstance(finding, Finding) else "REQUEST WITH"
            lines += ["", _row(name, "VERDICT", "")]
        if isinstance(finding, Finding):
            return [*lines, _row(finding.feature, finding.verdict.value, finding.said)]
        needed = ", ".join(toml_lines(finding.needs))
        said = f"{needed}: {finding.said}" if needed else finding.said
        return [*lines, _row(finding.question, finding.verdict.value, said)]

    def end(self, facts: Conformance) -> str:
        """What follows from the findings."""
        lines = [""] if facts.toml or facts.advice or facts.not_found_out else []
        if facts.toml:
            lines += [f"[upstreams.{facts.upstream}] needs:", *facts.toml, ""]
        lines += facts.advice
        if facts.not_found_out:
            lines.append(f"Not found out: {', '.join(facts.not_found_out)}.")
        return "\n".join(lines).rstrip()


def _row(name: str, verdict: str, said: str) -> str:
    return f"{name:<{_NAME_WIDTH}}  {verdict:<{_VERDICT_WIDTH}} {clean(said)}".rstrip()
