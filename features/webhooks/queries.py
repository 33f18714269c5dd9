"""Endpoints of webhooks and the deliveries to them. A trigger of `responses` makes deliveries
(migrations/functions.sql).

A statement that changes an endpoint and its deliveries locks the endpoint first, so no two of them
wait for each other. A deleted endpoint is disabled too, which all statements of tries look at; it is
hidden from clients, and the purge deletes its rows.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from models.db.queries.common import LATEST
from models.db.statement import Query, Statement, column


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery that this worker tries now."""

    id: UUID
    attempts: int
    """with this try; the number that a result must carry"""
    event_id: UUID
    type: str
    object_id: str
    created_at: datetime
    endpoint_id: UUID
    project_id: UUID
    url: str
    secret_key_id: str
    secrets: bytes
    has_old_secret: bool
    """a rotation is going on: sign with both secrets"""


IS_DUE = column(
    """
    SELECT EXISTS (SELECT 1 FROM webhook_endpoints e
                   WHERE e.disabled_at IS NULL AND (e.paused_until IS NULL OR e.paused_until <= clock_timestamp())
                     AND EXISTS (SELECT 1 FROM webhook_deliveries d
                                 WHERE d.endpoint_id = e.id AND d.next_attempt_at <= clock_timestamp())) AS due
    """,
    bool,
)
"""Whether TAKE_DELIVERIES may find some."""
TAKE_DELIVERIES = Query(
    """
    WITH busy AS (SELECT * FROM unnest(CAST(:busy AS uuid[]), CAST(:tries AS int[])) AS b (id, tries)),
         used AS (SELECT e.project_id, sum(busy.tries) AS tries FROM busy JOIN webhook_endpoints e ON e.id = busy.id
                  GROUP BY e.project_id),
         ready AS (
             SELECT e.id, e.project_id, CASE WHEN e.failures > 0 THEN 1
                 ELSE CAST(:at_once AS int) END - coalesce(busy.tries, 0) AS room,
                    coalesce(used.tries, 0) AS used
             FROM webhook_endpoints e LEFT JOIN busy ON busy.id = e.id LEFT JOIN used ON used.project_id = e.project_id
             WHERE e.disabled_at IS NULL AND (e.paused_until IS NULL OR e.paused_until <= clock_timestamp())),
         placed AS (
             SELECT waiting.id, waiting.next_attempt_at,
                    ready.used + row_number() OVER (PARTITION BY ready.project_id
                                                    ORDER BY waiting.next_attempt_at) AS place
             FROM (SELECT * FROM ready WHERE room > 0) ready CROSS JOIN LATERAL (
                 SELECT d.id, d.next_attempt_at FROM webhook_deliveries d
                 WHERE d.endpoint_id = ready.id AND d.next_attempt_at <= clock_timestamp()
                 ORDER BY d.next_attempt_at LIMIT ready.room FOR UPDATE SKIP LOCKED) waiting),
         due AS (
             SELECT ordered.id FROM (SELECT p.id, p.place,
                                            row_number() OVER (ORDER BY p.place, p.next_attempt_at) AS turn
                                     FROM placed p) ordered
             WHERE ordered.place <= 2 * (CAST(:free AS int) - ordered.turn + 1))
    UPDATE webhook_deliveries d
    SET attempts = d.attempts + 1, next_attempt_at = clock_timestamp() + CAST(:lease AS interval)
        * power(2, least(d.attempts, 10))
    FROM due, webhook_endpoints e WHERE d.id = due.id AND e.id = d.endpoint_id
    RETURNING d.id, d.attempts, d.event_id, d.type, d.object_id, d.created_at, e.id AS endpoint_id, e.project_id, e.url,
        e.secret_key_id, e.secrets,
              coalesce(e.old_secret_until > clock_timestamp(), false) AS has_old_secret
    """,
    Delivery,
)
"""Takes due deliveries for at least the lease: if this worker dies, another one tries them then. With
each try the time is twice as long, so one whose tries kill their workers kills few of them.
At most `at_once` of an endpoint, one of an endpoint whose last try failed, each without the `tries`
that this worker makes of it now: so a slow endpoint holds few of the tries that run at a time.

Projects take turns, the one with the fewest tries first; of a project those that have waited
longest. As in `FairQueue` (models/load/fair_queue.py), a project gets another one while it has fewer than
twice as many as are free: `place` is the number of its tries with this one, and `turn - 1` others
are taken before it. As places grow and what is free shrinks, all that follow the first one that is
left out are left out too."""

DELIVERED = Statement("""
    WITH delivered AS (UPDATE webhook_deliveries SET delivered_at = clock_timestamp(), next_attempt_at = NULL,
                              last_status = :status, last_error = NULL
                       WHERE id = :id)
    UPDATE webhook_endpoints SET failures = 0, failing_since = NULL, paused_until = NULL
    WHERE id = :endpoint AND failures > 0
""")
"""The endpoint has accepted it, whichever try that was."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failed try has led to."""

    is_disabled: bool
    """it has disabled the endpoint"""
    is_given_up: bool
    """the delivery is not tried again"""


NOT_DELIVERED = Query(
    """
    WITH endpoint AS (
             UPDATE webhook_endpoints
             SET failures = failures + 1, failing_since = coalesce(failing_since, clock_timestamp()),
                 paused_until = clock_timestamp() + least(power(2, least(failures, 10)), CAST(:longest_pause AS int))
                     * interval '1 s',
                 disabled_at = CASE WHEN :is_gone
                   OR failing_since < clock_timestamp() - CAST(:disable_after AS interval) THEN clock_timestamp() END,
                 disabled_reason = CASE WHEN :is_gone THEN 'it answered 410 Gone'
                     ELSE 'all tries have failed for days' END
             WHERE id = :endpoint AND disabled_at IS NULL
             RETURNING disabled_at IS NOT NULL AS is_disabled),
         failed AS (
             UPDATE webhook_deliveries d
             SET next_attempt_at = CASE WHEN coalesce(d.resent_at,
                                                      d.created_at) + CAST(:expiry AS interval) > clock_timestamp()
                                        THEN clock_timestamp() + CAST(:pause AS interval) END,
                 last_status = :status, last_error = :error
             FROM (SELECT count(*) FROM endpoint) locked
             WHERE d.id = :id AND d.attempts = :attempts AND d.delivered_at IS NULL
             RETURNING d.next_attempt_at IS NULL AS is_given_up)
    SELECT coalesce((SELECT is_disabled FROM endpoint), false) AS is_disabled,
           coalesce((SELECT is_given_up FROM failed), false) AS is_given_up
    """,
    Failure,
)
"""A try has failed. The delivery waits for `pause`, or is given up after `expiry`. The endpoint gets
nothing for a second, doubled with each failure in a row, and is disabled if it is gone or has
failed for `disable_after`. A later try of another worker keeps its own result."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint as operators and admins see it."""

    id: UUID
    project_id: UUID
    project: str
    name: str
    url: str
    types: list[str]
    created_at: datetime
    updated_at: datetime
    disabled_at: datetime | None
    disabled_reason: str | None
    failures: int
    failing_since: datetime | None
    paused_until: datetime | None
    """nothing is sent to it before, because of failures; null: it is not paused now"""
    waiting: int
    """deliveries that are to be tried"""
    secret_key_id: str
    secrets: bytes

    @property
    def state(self) -> str:
        """`enabled`, `failing` (its last try failed) or `disabled`."""
        if self.disabled_at is not None:
            return "disabled"
        return "failing" if self.failures else "enabled"


_ENDPOINTS = """
    SELECT e.id, e.project_id, p.name AS project, e.name, e.url, e.types, e.created_at,
           coalesce(e.updated_at, e.created_at) AS updated_at,
           e.disabled_at, CASE WHEN e.disabled_at IS NOT NULL THEN e.disabled_reason END AS disabled_reason, e.failures,
           e.failing_since, CASE WHEN e.paused_until > clock_timestamp() THEN e.paused_until END AS paused_until,
           (SELECT count(*) FROM webhook_deliveries d
            WHERE d.endpoint_id = e.id AND d.next_attempt_at IS NOT NULL)::int AS waiting, e.secret_key_id, e.secrets
    FROM webhook_endpoints e JOIN projects p ON p.id = e.project_id WHERE e.deleted_at IS NULL"""
LIST_ENDPOINTS = Query(
    f"{_ENDPOINTS} AND (CAST(:project AS text) IS NULL OR p.name = :project) ORDER BY e.created_at",
    Endpoint,
)
NEWEST_ENDPOINTS = Query(
    f"""{_ENDPOINTS} AND (CAST(:project AS text) IS NULL OR p.name = :project)
      AND (NOT :failing OR e.disabled_at IS NOT NULL OR e.failures > 0)
        AND e.id < CAST(:before AS uuid) ORDER BY e.id DESC LIMIT :max_rows""",
    Endpoint,
)
"""The same, the newest first, behind the one with the id `before`. `failing`: only those that fail or
are disabled."""
ENDPOINTS_PAGE = Query(
    f"""
    {_ENDPOINTS} AND e.project_id = :project AND (CAST(:after AS uuid) IS NULL OR e.id < :after)
    ORDER BY e.id DESC LIMIT :max_rows
    """,
    Endpoint,
)
"""Selects endpoints of a project, the newest first, behind the one with the id `after`; null: from
the start."""
_ENDPOINT = f"{_ENDPOINTS} AND e.id = :id AND e.project_id = :project"
ANY_ENDPOINT = Query(f"{_ENDPOINTS} AND e.id = :id", Endpoint)
"""The endpoint of any project. No row: there is none."""
FIND_ENDPOINT = Query(_ENDPOINT, Endpoint)
LOCK_ENDPOINT = Query(f"{_ENDPOINT} FOR NO KEY UPDATE OF e", Endpoint)
"""The same, and keeps others from changing it until the transaction ends. Deliveries to it are made
meanwhile."""
INSERT_ENDPOINT = column(
    """
    INSERT INTO webhook_endpoints (id, project_id, name, url, types, secret_key_id, secrets, updated_at)
    SELECT :id, p.id, :name, :url, :types, :secret_key_id, :secrets, clock_timestamp() FROM projects p
    WHERE p.id = :project AND p.archived_at IS NULL
      AND (SELECT count(*) FROM webhook_endpoints e
           WHERE e.project_id = p.id AND e.deleted_at IS NULL) < CAST(:most AS int)
    RETURNING id
    """,
    UUID,
)
"""No row: there is no such project, it is archived, or it has `most` endpoints."""
ROTATE_SECRET = Statement("""
    UPDATE webhook_endpoints SET secret_key_id = :secret_key_id, secrets = :secrets,
           old_secret_until = clock_timestamp() + CAST(:overlap AS interval),
           updated_at = clock_timestamp()
    WHERE id = :id AND deleted_at IS NULL
""")
UPDATE_ENDPOINT = column(
    """
    UPDATE webhook_endpoints
    SET name = coalesce(CAST(:name AS text), name), url = coalesce(CAST(:url AS text), url),
        types = coalesce(CAST(:types AS text[]), types),
        disabled_at = CASE WHEN CAST(:enabled AS bool) IS NULL THEN disabled_at
            WHEN NOT :enabled THEN coalesce(disabled_at, clock_timestamp()) END,
        disabled_reason = CASE WHEN NOT CAST(:enabled AS bool)
          AND disabled_at IS NULL THEN 'it was disabled by hand' ELSE disabled_reason END,
        failures = CASE WHEN :enabled OR CAST(:url AS text) IS NOT NULL THEN 0 ELSE failures END,
        failing_since = CASE WHEN :enabled OR CAST(:url AS text) IS NOT NULL THEN NULL ELSE failing_since END,
        paused_until = CASE WHEN :enabled OR CAST(:url AS text) IS NOT NULL THEN NULL ELSE paused_until END,
        updated_at = clock_timestamp()
    WHERE id = :id AND deleted_at IS NULL RETURNING id
    """,
    UUID,
)
"""Changes what is not null. An endpoint that is enabled, or that moves, has not failed yet. No row:
it was deleted."""
_FIRST = "clock_timestamp() - interval '3 d'"
"""When a delivery is due that somebody waits for: before all others of its endpoint."""
_DELETED = """
    UPDATE webhook_endpoints
    SET deleted_at = clock_timestamp(), disabled_at = coalesce(disabled_at, clock_timestamp()),
        disabled_reason = 'it was deleted',
        url = '', secret_key_id = '', secrets = '', old_secret_until = NULL"""
DELETE_ENDPOINT = column(f"{_DELETED} WHERE id = :id AND deleted_at IS NULL RETURNING id", UUID)
"""Forgets where it is and its secrets. The purge deletes it with its deliveries: there may be many,
and the end of a response that makes one more must not wait for that."""
DELETE_ENDPOINTS_OF_PROJECT = Statement(f"{_DELETED} WHERE project_id = :id AND deleted_at IS NULL")
"""The same for the endpoints of a project that is archived."""
INSERT_TEST_EVENT = column(
    f"""
    WITH endpoint AS (UPDATE webhook_endpoints SET paused_until = NULL WHERE id = :endpoint AND disabled_at IS NULL
                      RETURNING id)
    INSERT INTO webhook_deliveries (id, endpoint_id, event_id, type, object_id, next_attempt_at)
    SELECT :id, id, :event_id, :type, :object_id, {_FIRST} FROM endpoint RETURNING event_id
    """,
    UUID,
)
"""Inserts an event for one endpoint, which gets it next, and ends its pause. No row: it is
disabled."""


@dataclass(frozen=True, slots=True)
class ListedDelivery:
    """A delivery as operators and admins see it."""

    id: UUID
    endpoint_id: UUID
    event_id: UUID
    type: str
    object_id: str
    created_at: datetime
    state: str
    """`waiting`, `delivered` or `failed`"""
    attempts: int
    next_attempt_at: datetime | None
    """not before the pause of its endpoint has ended"""
    delivered_at: datetime | None
    last_status: int | None
    last_error: str | None


_STATE = """CASE WHEN d.next_attempt_at IS NOT NULL THEN 'waiting' WHEN d.delivered_at IS NULL THEN 'failed'
    ELSE 'delivered' END"""
_DELIVERY = f"""d.id, d.endpoint_id, d.event_id, d.type, d.object_id, d.created_at, {_STATE} AS state,
               d.attempts, d.next_attempt_at, d.delivered_at, d.last_status, d.last_error"""
_SHOWN_DELIVERY = """d.id, d.endpoint_id, d.event_id, d.type, d.object_id, d.created_at, d.state, d.attempts,
    CASE WHEN d.next_attempt_at IS NOT NULL THEN greatest(d.next_attempt_at, (
        SELECT e.paused_until FROM webhook_endpoints e WHERE e.id = d.endpoint_id)) END AS next_attempt_at,
    d.delivered_at, d.last_status, d.last_error"""
_DELIVERIES = f"SELECT {_SHOWN_DELIVERY} FROM (SELECT {_DELIVERY} FROM webhook_deliveries d) d"
_DELIVERIES_LOOKED_AT = f"""SELECT {_SHOWN_DELIVERY} FROM (
        SELECT {_DELIVERY} FROM webhook_deliveries d
        WHERE d.endpoint_id = :endpoint
          AND (CAST(:after AS uuid) IS NULL
               OR (d.created_at, d.id) < (SELECT a.created_at, a.id FROM webhook_deliveries a
                                          WHERE a.event_id = :after AND a.endpoint_id = :endpoint LIMIT 1))
        ORDER BY d.created_at DESC, d.id DESC LIMIT CAST(:look_at AS bigint)) d"""
LIST_DELIVERIES = Query(
    f"""
    {_DELIVERIES} JOIN webhook_endpoints e ON e.id = d.endpoint_id AND e.deleted_at IS NULL
    WHERE (CAST(:endpoint AS uuid) IS NULL OR d.endpoint_id = :endpoint) AND (NOT :failed OR d.state <> 'delivered')
    ORDER BY d.created_at DESC LIMIT :limit
    """,
    ListedDelivery,
)
"""Selects the newest deliveries, of one endpoint or of all."""
DELIVERIES_PAGE = Query(
    f"""
    {_DELIVERIES_LOOKED_AT} WHERE (CAST(:state AS text) IS NULL OR d.state = :state)
    ORDER BY d.created_at DESC, d.id DESC LIMIT :max_rows
    """,
    ListedDelivery,
)
"""Selects deliveries of one endpoint, the newest first, behind that of the event `after`; null: from
the start. It looks at `look_at` of them at most; null: at all."""


@dataclass(frozen=True, slots=True)
class DeliveryCounts:
    """How the newest deliveries of an endpoint have ended."""

    endpoint_id: UUID
    delivered: int
    failed: int
    """tried to the end, or given up"""
    last_delivered_at: datetime | None


DELIVERY_COUNTS = Query(
    f"""
    SELECT e.id AS endpoint_id, count(*) FILTER (WHERE d.state = 'delivered') AS delivered,
           count(*) FILTER (WHERE d.state = 'failed') AS failed,
           max(d.delivered_at) AS last_delivered_at
    FROM unnest(CAST(:ids AS uuid[])) AS e (id)
    CROSS JOIN LATERAL (SELECT {_STATE} AS state, d.delivered_at FROM webhook_deliveries d WHERE d.endpoint_id = e.id
                        ORDER BY d.created_at DESC LIMIT :look_at) d
    GROUP BY e.id
    """,
    DeliveryCounts,
)
"""Counts among the newest `look_at` deliveries of each of these endpoints. No row: it has none."""
DELIVERY_OF_EVENT = Query(
    f"{_DELIVERIES} WHERE d.event_id = :event_id AND d.endpoint_id = :endpoint LIMIT 1",
    ListedDelivery,
)
RESEND = column(
    f"""
    WITH endpoint AS (UPDATE webhook_endpoints e SET paused_until = NULL
                      WHERE e.deleted_at IS NULL AND e.id IN (SELECT d.endpoint_id FROM webhook_deliveries d
                                                              WHERE d.event_id = :event_id)
                        AND (CAST(:endpoint AS uuid) IS NULL OR e.id = :endpoint) RETURNING e.id)
    UPDATE webhook_deliveries d SET next_attempt_at = {_FIRST}, delivered_at = NULL, resent_at = clock_timestamp()
    FROM endpoint WHERE d.event_id = :event_id AND d.endpoint_id = endpoint.id RETURNING d.id
    """,
    UUID,
)
"""Tries the deliveries of an event again, next, to one endpoint or to all that it was for, with the
same id, and ends their pauses. No row: there is no such event."""
DELETE_OLD_DELIVERIES = column(
    """
    DELETE FROM webhook_deliveries WHERE id IN (
        SELECT id FROM webhook_deliveries
        WHERE created_at < statement_timestamp() - CAST(:retention AS interval)
          AND coalesce(resent_at, created_at) < statement_timestamp() - CAST(:retention AS interval)
          AND (next_attempt_at IS NULL
               OR coalesce(resent_at, created_at) < statement_timestamp() - CAST(:waiting AS interval)
               AND (attempts > 0 OR EXISTS (SELECT 1 FROM webhook_endpoints e
                                            WHERE e.id = webhook_deliveries.endpoint_id AND e.disabled_at IS NOT NULL)))
        ORDER BY created_at LIMIT :rows) RETURNING id
    """,
    UUID,
)
"""Deletes up to `rows` old deliveries: after `retention`, and what is still to be tried after
`waiting`. What an enabled endpoint was never sent stays: no worker may have run meanwhile."""
DELETE_DELIVERIES_OF_DELETED = column(
    """
    DELETE FROM webhook_deliveries WHERE id IN (
        SELECT d.id FROM webhook_endpoints e JOIN webhook_deliveries d ON d.endpoint_id = e.id
        WHERE e.deleted_at IS NOT NULL LIMIT :rows) RETURNING id
    """,
    UUID,
)
"""Deletes up to `rows` deliveries of deleted endpoints."""
DELETE_DELETED_ENDPOINTS = column(
    """
    DELETE FROM webhook_endpoints e WHERE e.deleted_at < statement_timestamp() - interval '1 h'
      AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.endpoint_id = e.id) RETURNING id
    """,
    UUID,
)
"""Deletes endpoints that were deleted an hour ago: no transaction that ends a response can see them
as enabled any more, so none refers to a row that is gone."""


@dataclass(frozen=True, slots=True)
class WebhookState:
    """All endpoints together."""

    enabled: int
    """endpoints whose last try did not fail"""
    failing: int
    disabled: int
    waiting: int
    """deliveries that are to be tried, without those of disabled endpoints"""
    oldest: float
    """seconds since the oldest of them was made, or sent again by hand"""


WEBHOOK_STATE = Query(
    """
    SELECT count(*) FILTER (WHERE e.disabled_at IS NULL AND e.failures = 0) AS enabled,
           count(*) FILTER (WHERE e.disabled_at IS NULL AND e.failures > 0) AS failing,
           count(*) FILTER (WHERE e.disabled_at IS NOT NULL) AS disabled,
           coalesce(sum(w.waiting), 0)::bigint AS waiting,
           coalesce(extract(epoch FROM clock_timestamp() - min(w.oldest)), 0)::float AS oldest
    FROM webhook_endpoints e LEFT JOIN LATERAL (
        SELECT count(*) AS waiting, min(coalesce(d.resent_at, d.created_at)) AS oldest FROM webhook_deliveries d
        WHERE d.endpoint_id = e.id AND d.next_attempt_at IS NOT NULL) w ON e.disabled_at IS NULL
    WHERE e.deleted_at IS NULL
    """,
    WebhookState,
)
"""Counts endpoints and what waits, with the partial index of what waits: ended deliveries cost
nothing."""

REPAIR_DELIVERIES = column(
    f"""
    UPDATE webhook_deliveries SET next_attempt_at = clock_timestamp() WHERE next_attempt_at > {LATEST} AND attempts = 0
    RETURNING 1 AS repaired
    """,
    int,
)
"""Deliveries that were never tried."""
REPAIR_ENDPOINTS = column(
    """
    UPDATE webhook_endpoints SET paused_until = NULL
    WHERE paused_until > statement_timestamp() + CAST(:longest_pause AS int) * interval '1 s' RETURNING 1 AS repaired
    """,
    int,
)
"""Endpoints that would get nothing for longer than `longest_pause` seconds."""
