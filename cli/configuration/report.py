"""A configuration, and what an upstream can do, as lines for people. Pure."""

from cli.configuration.conformance import Conformance
from cli.configuration.effective import EffectiveConfiguration
from cli.configuration.features import Finding
from cli.configuration.questions import SettingFinding, toml_lines
from cli.output import clean, table


def configuration(facts: EffectiveConfiguration) -> str:
    """The file, upstreams and routes, and the settings that differ from their defaults."""
    lines = [f"file: {facts.file or 'none'}", ""]
    if facts.upstreams:
        upstreams = [
            (upstream.name, upstream.api, upstream.base_url, upstream.api_key)
            for upstream in facts.upstreams
        ]
        routes = [
            (route.pattern, ", then ".join(map(_format_target, route.targets)))
            for route in facts.routes
        ]
        lines += [table(("UPSTREAM", "API", "BASE URL", "KEY"), upstreams), ""]
        lines += [table(("MODEL", "GOES TO"), routes), ""]
    else:
        lines += ["no upstream is configured; `up` starts a demo", ""]
    values = [
        (f"{upstream.name}: {setting.key}", setting.text, setting.source)
        for upstream in facts.upstreams
        for setting in upstream.settings
    ]
    values += [(setting.key, setting.text, setting.source) for setting in facts.settings]
    return "\n".join(
        [*lines, table(("SETTING", "VALUE", "FROM"), values)] if values else lines
    ).rstrip()


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


def _format_target(target: dict[str, str]) -> str:
    return (
        target["upstream"]
        if target["model"] == "as asked"
        else f"{target['upstream']} as {target['model']}"
    )
