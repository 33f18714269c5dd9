"""Idempotency keys: which create has which key, and what it has made.

Those of responses are stored by the statements that insert responses (create.py), with
`response_id`. Every other create claims its key first, and notes what it makes in the transaction
that makes it. Then a repeat can see at any time whether the first try has made something.
"""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import ABANDONED, OPEN
from models.db.statement import Query, column

KEY_IS_STALE = f"""(k.expires_at < clock_timestamp() OR EXISTS (
                SELECT 1 FROM responses r WHERE r.id = k.response_id
                  AND (r.delete_requested_at IS NOT NULL OR r.reason = 'create_refused'
                OR (NOT r.background AND (r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL))
                  OR (r.status IN {OPEN} AND {ABANDONED}))))"""
"""A key whose response is no answer to a retry: the key has expired, or the response was deleted,
was answered with 503, or is cancelled because its client had disconnected or its web process has
died."""


def process_ended(web: str) -> str:
    """The web process whose id is in the column `web` has ended: it has no session in Postgres.
    After a restart of Postgres living processes have none either, so for ten seconds nothing
    follows from that."""
    return f"""pg_postmaster_start_time() < clock_timestamp() - interval '10 seconds'
                  AND NOT EXISTS (SELECT 1 FROM pg_stat_activity a
                                  WHERE starts_with(a.application_name, CAST({web} AS text)))"""


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key, and the create that has it."""

    claim: UUID | None
    """of that create; null: it is the create of a response"""
    is_equal: bool
    """it had the same body and path"""
    made: str | None
    """what it has made; null: nothing yet"""
    sealed: bytes | None
    """the part of its answer that is not shown again"""


_HELD = "k.claim, k.body_hash = CAST(:body_hash AS bytea) AS is_equal, k.made, k.sealed"
CLAIM_KEY = Query(
    f"""
    WITH claimed AS (
        INSERT INTO idempotency_keys AS k (project_id, key, body_hash, expires_at, claim, web)
        VALUES (:project, :key, :body_hash, clock_timestamp() + make_interval(secs => :key_seconds), :claim, :web)
        ON CONFLICT (project_id, key) DO UPDATE
        SET body_hash = excluded.body_hash, response_id = NULL, expires_at = excluded.expires_at,
            claim = excluded.claim, web = excluded.web,
            made = NULL, sealed = NULL, lost = false
        WHERE {KEY_IS_STALE}
          OR (k.response_id IS NULL AND k.made IS NULL AND (k.claim = excluded.claim OR {process_ended("k.web")}))
        RETURNING {_HELD})
    SELECT * FROM claimed
    UNION ALL SELECT {_HELD} FROM idempotency_keys k
    WHERE k.project_id = :project AND k.key = :key AND NOT EXISTS (SELECT 1 FROM claimed)
    """,
    HeldKey,
)
"""Gives the key to the create `claim` if nobody has it, or if the process of the create that has it
has ended before it made anything. Returns the key as it is then. No row: it has changed at the same
time, so the statement is to be repeated. May be repeated."""

TAKE_LOST = column(
    f"""
    WITH taken AS MATERIALIZED (
        SELECT k.project_id, k.key, k.made IS NULL AND {process_ended("k.web")} AS has_ended FROM idempotency_keys k
        WHERE k.project_id = :project AND k.body_hash = CAST(:body_hash AS bytea) AND k.key LIKE 'sdk:%'
          AND k.response_id IS NULL
          AND k.expires_at > clock_timestamp() AND (k.lost OR k.claim = :claim OR {process_ended("k.web")})
        ORDER BY k.claim <> :claim, k.key LIMIT 1 FOR UPDATE OF k)
    UPDATE idempotency_keys k
    SET lost = false, claim = CASE WHEN k.made IS NOT NULL OR t.has_ended THEN :claim ELSE k.claim END,
        web = CASE WHEN k.made IS NOT NULL OR t.has_ended THEN :web ELSE k.web END
    FROM taken t WHERE k.project_id = t.project_id AND k.key = t.key RETURNING k.key
    """,
    str,
)
"""For a retry of an official SDK, which has no key: takes the key of an equal create whose client
has got no answer, because its connection or its web process has ended. No row: there is none. Each
retry takes another one, as with create.JOIN_UNANSWERED; the same one, if it is repeated after a lost
answer."""

NOTE_MADE = column(
    """
    UPDATE idempotency_keys SET made = :made, sealed = :sealed
    WHERE project_id = :project AND key = :key AND claim = :claim AND made IS NULL RETURNING claim
    """,
    UUID,
)
"""In the transaction that makes `made`. No row: another create has the key now, so the transaction
must not be committed."""

_OF_CREATE = """project_id = :project AND claim = :claim
                        AND (key = :key OR key LIKE 'sdk:%' AND body_hash = CAST(:body_hash AS bytea))"""
RELEASE_KEY = column(
    f"""
    WITH released AS (DELETE FROM idempotency_keys
                      WHERE {_OF_CREATE} AND made IS NULL RETURNING claim),
         lost AS (UPDATE idempotency_keys SET lost = true
                  WHERE {_OF_CREATE} AND made IS NOT NULL RETURNING claim)
    SELECT claim FROM released UNION ALL SELECT claim FROM lost
    """,
    UUID,
)
"""After a create that was answered with an error: its key may be used again, unless it has made
something all the same. A retry of an SDK may not know which key it has taken: the answer was lost."""

FORGET_KEY = column(
    "DELETE FROM idempotency_keys WHERE project_id = :project AND key = :key AND claim = :claim RETURNING claim",
    UUID,
)
"""What a create has made was deleted since: its key may be used again."""

FORGET_ANSWERED = column(
    """
    DELETE FROM idempotency_keys k USING unnest(CAST(:projects AS uuid[]), CAST(:keys AS text[])) AS g (project, key)
    WHERE k.project_id = g.project AND k.key = g.key AND NOT k.lost RETURNING 1 AS forgotten
    """,
    int,
)
"""After the clients of these creates of SDKs have got their answers: no retry takes them over."""

RECORD_LOST = column(
    """
    WITH lost AS (UPDATE idempotency_keys k SET lost = true, expires_at = clock_timestamp() + interval '10 seconds'
                  FROM unnest(CAST(:projects AS uuid[]), CAST(:keys AS text[]), CAST(:waiters AS uuid[]))
                      AS g (project, key, waiter)
                  WHERE k.project_id = g.project AND k.key = g.key RETURNING k.response_id, g.waiter)
    UPDATE responses r SET waiter = NULL FROM lost WHERE r.id = lost.response_id AND r.waiter = lost.waiter
    RETURNING r.id
    """,
    UUID,
)
"""The clients of these creates of SDKs have disconnected, and got no answer: their retries may take
them over for ten seconds, in which an SDK makes most of its tries."""
