-- Prepares a migrated, empty database for STORED responses of the last 30 days (bench/store.py).

SET session_replication_role = replica;
SET synchronous_commit = off;
SET statement_timeout = 0;

INSERT INTO workers (id, kind, host, pid, expires_at, tied)
SELECT gen_random_uuid(), 'worker', 'host', n, now() + interval '1 day', true FROM generate_series(1, 20) n;
CREATE UNLOGGED TABLE bench_workers AS SELECT row_number() OVER () - 1 AS nr, id FROM workers;
CREATE FUNCTION bench_id(moment timestamptz, n int) RETURNS uuid LANGUAGE sql STABLE AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '7000' || '8' || substr(md5(n::text), 1, 15))::uuid
$$;
CREATE UNLOGGED TABLE bench_ids AS
SELECT n, bench_id(now() - interval '30 days' * (STORED - n) / STORED, n) AS id FROM generate_series(1, STORED) n;
CREATE INDEX ON bench_ids (n);
ANALYZE bench_ids;

ALTER TABLE event_log DETACH PARTITION event_log_first;
DROP TABLE event_log_first;
DO $do$
DECLARE
    first timestamptz := date_trunc('hour', now() - interval '30 days');
BEGIN
    FOR n IN 0 .. 11 LOOP
        EXECUTE format('CREATE TABLE event_log_%s PARTITION OF event_log FOR VALUES FROM (%L) TO (%L)', n,
                       bench_id(first + interval '3 days' * n, 0), bench_id(first + interval '3 days' * (n + 1), 0));
    END LOOP;
END $do$;
