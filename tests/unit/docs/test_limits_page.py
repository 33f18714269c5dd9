"""docs/limits.md names every setting that bounds something.

A setting with a number has its place there, or below, with the reason why it is no limit: so the
author of a new setting decides.
"""

from pathlib import Path

from cli.configuration.settings_page import numbers

PAGE = Path(__file__).parents[3] / "docs" / "limits.md"
NO_LIMITS = {
    "how often, or in what pieces, this server does its own work": (
        *("LEASE__DURATION", "LEASE__BEAT", "LEASE__CAUTION", "LEASE__OBSERVE", "LEASE__SWEEP"),
        *("LEASE__ENQUEUE_INTERVAL", "WEB__PING", "WEB__POLL", "WORKER__FLUSH_INTERVAL"),
        *("WORKER__FLUSH_BYTES", "WORKER__JOURNAL_GAP", "WORKER__TAIL_BYTES"),
        *("WORKER__PROBATION", "WORKER__PURGE_INTERVAL", "RETRIEVAL__INDEX_MEMORY"),
    ),
    "how long something is kept": (
        *("RETENTION", "AUDIT__RETENTION", "BATCHES__RETENTION", "FILES__BATCH_RETENTION"),
        *("SCHEDULES__RETENTION", "WEBHOOKS__RETENTION", "WORKER__USAGE_ENTRIES", "CACHE__TTL"),
    ),
    "how a process or a session ends (docs/deploy.md)": (
        *("WEB__GRACE", "WORKER__GRACE", "WORKER__CALL_GRACE", "MCP__FAREWELL"),
    ),
    "what a compaction keeps (docs/state.md)": (
        *("COMPACTION__THRESHOLD", "COMPACTION__USER_MESSAGES"),
    ),
    "what an upstream accepts (docs/upstreams.md)": ("UPSTREAM__DESCRIPTION_LIMIT",),
    "of metrics": ("METRICS__PORT", "METRICS__MODELS"),
}


def test_each_setting_that_is_a_limit_is_on_the_page() -> None:
    page = PAGE.read_text()
    exceptions = {f"BACKBURNER_{name}" for names in NO_LIMITS.values() for name in names}
    assert len(numbers()) > 100
    assert exceptions <= numbers(), "an exception is no setting"
    missing = {name for name in numbers() - exceptions if f"`{name}`" not in page}
    assert not missing, "add a row to docs/limits.md, or the reason why there is none"
    assert not {name for name in exceptions if f"`{name}`" in page}
