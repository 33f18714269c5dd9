"""A configuration, and what an upstream can do, as lines for people. Pure."""

from cli.configuration.conformance import Conformance
from cli.configuration.effective import EffectiveConfiguration
from cli.output import table


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


def conformance(facts: Conformance) -> str:
    """A table of what works."""
    rows = [(finding.feature, finding.verdict.value, finding.said) for finding in facts.findings]
    return (
        f"{facts.upstream} ({facts.api}, {facts.base_url}), model {facts.model}\n\n"
        f"{table(('FEATURE', 'VERDICT', ''), rows)}"
    )


def _format_target(target: dict[str, str]) -> str:
    return (
        target["upstream"]
        if target["model"] == "as asked"
        else f"{target['upstream']} as {target['model']}"
    )
