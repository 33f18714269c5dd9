-- Fills a migrated, empty database with :rows responses, as narrow as the schema allows: 50 workers, two dead ones, and 20 web
-- processes have made them in 30 days.

INSERT INTO projects (id, name) VALUES (gen_random_uuid(), 'many');
INSERT INTO api_keys (id, project_id, prefix, hash) SELECT gen_random_uuid(), id, 'bb', 'hash' FROM projects;

INSERT INTO workers (id, kind, host, pid, expires_at, dead, tied)
SELECT gen_random_uuid(), CASE WHEN n <= 52 THEN 'worker' ELSE 'web' END, 'host', n,
       now() + interval '1 day', n <= 2, true
FROM generate_series(1, 72) n;
CREATE TEMPORARY TABLE owner AS SELECT row_number() OVER () - 1 AS nr, id FROM workers WHERE kind = 'worker' AND NOT dead;
CREATE TEMPORARY TABLE dead AS SELECT id FROM workers WHERE dead LIMIT 1;
CREATE TEMPORARY TABLE web AS SELECT row_number() OVER () - 1 AS nr, id FROM workers WHERE kind = 'web';

INSERT INTO conversations (id, project_id) SELECT gen_random_uuid(), id FROM projects, generate_series(1, :rows / 50);
CREATE TEMPORARY TABLE conversation AS SELECT row_number() OVER () AS nr, id FROM conversations;
ANALYZE conversation;

-- Ids are UUIDv7, as the product makes them. Each of the ten partitions of the event log has a tenth of the logs.
CREATE FUNCTION id_at(moment timestamptz, n int) RETURNS uuid LANGUAGE sql AS $$
    SELECT (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '7000' || '8' || substr(md5(n::text), 1, 15))::uuid
$$;
CREATE TEMPORARY TABLE many AS SELECT n, id_at(now() - interval '30 days' * (:rows - n) / :rows, n) AS id, n % 1000 = 0 AND n > :rows - 2000 AS waits FROM generate_series(1, :rows) n;
ANALYZE many;

-- One of a hundred is open: most are owned, two wait, and some twenty have lost their owner. One of four of these waits for an
-- upstream, and one of a hundred has failed with it. One of ten continues the one before
-- it. One of fifty belongs to a conversation. One of a hundred has expired. The purge has hidden the first ones.
INSERT INTO responses (id, project_id, status, background, store, model, parameters, previous_response_id, conversation_id, created_at,
                       started_at, completed_at, expires_at, deadline, worker, web, attempt, enqueued_at, delete_requested_at,
                       request_id, failed_upstream, retrying_since)
SELECT many.id, project.id, CASE WHEN waits THEN 'queued' WHEN n % 100 = 0 THEN 'in_progress'
                                     WHEN n % 100 = 30 THEN 'failed' ELSE 'completed' END,
       n % 2 = 0, true, 'm', '{}', CASE WHEN n % 10 = 1 THEN previous.id END, conversation.id,
       now() - interval '30 days' * (:rows - n) / :rows, now(), CASE WHEN n % 100 <> 0 THEN now() END,
       now() + interval '30 days' * (n - :rows / 100) / :rows, now() + interval '1 day',
       CASE WHEN n % 100 = 0 AND NOT waits THEN CASE WHEN n <= 2200 THEN dead.id ELSE owner.id END END, web.id,
       CASE WHEN waits THEN 0 ELSE 1 END, now(), CASE WHEN n < 20 THEN now() END,
       'req_' || n, CASE WHEN n % 400 = 0 OR n % 100 = 30 THEN 'u' END, CASE WHEN n % 400 = 0 THEN now() END
FROM many CROSS JOIN projects project CROSS JOIN dead
LEFT JOIN (SELECT n + 1 AS next, id FROM many WHERE n % 10 = 0) previous ON previous.next = n
LEFT JOIN conversation ON conversation.nr = n / 50 AND n % 50 = 0 AND n % 100 <> 0
JOIN owner ON owner.nr = n / 100 % 50 JOIN web ON web.nr = n % 20;

INSERT INTO items (response_id, conversation_id, direction, position, item_id, type, payload, size)
SELECT many.id, conversation.id, direction.direction, 0, 'msg_' || many.n, 'message', '{}', 2
FROM many CROSS JOIN (VALUES ('input'), ('output')) AS direction (direction)
LEFT JOIN conversation ON conversation.nr = n / 50 AND n % 50 = 0;
DO $do$
BEGIN
    ALTER TABLE event_log DETACH PARTITION event_log_first;
    DROP TABLE event_log_first;
    FOR n IN 0 .. 10 LOOP
        EXECUTE format('CREATE TABLE event_log_%s PARTITION OF event_log FOR VALUES FROM (%L) TO (%L)', n,
                       id_at(now() - interval '3 days' * (10 - n), 0), id_at(now() - interval '3 days' * (9 - n), 0));
    END LOOP;
END $do$;
INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)
SELECT many.id, part.first, part.last, part.attempt, 'frame' FROM many CROSS JOIN (VALUES (0, 1, 0), (2, 9, 1)) AS part (first, last, attempt);
INSERT INTO attempts (response_id, attempt, worker, kind, host, pid)
SELECT many.id, 1, owner.id, 'worker', 'host', 1 FROM many JOIN owner ON owner.nr = n / 100 % 50 WHERE NOT waits;
INSERT INTO tool_calls (response_id, position, output_index, turn, finished)
SELECT id, 0, 0, 1, true FROM many WHERE n % 10 = 0;
-- All that have ended have search documents, a word of their own, and one that all have. Each tenth is of the same user.
INSERT INTO search_documents (response_id, has_text, document)
SELECT many.id, true, to_tsvector('simple', 'frequent w' || n) || array_to_tsvector(array_remove(ARRAY[
       '§p' || replace(project.id::text, '-', ''), '§m' || at.minute, '§h' || at.minute / 60, '§d' || at.minute / 1440,
       CASE WHEN n % 10 = 0 THEN '§u' || encode(substr(sha256(convert_to('user', 'UTF8')), 1, 16), 'hex') END], NULL))
FROM many CROSS JOIN projects project
CROSS JOIN LATERAL (SELECT floor(extract(epoch FROM now() - interval '30 days' * (:rows - n) / :rows) / 60)::bigint AS minute) at
WHERE n % 100 <> 0;
INSERT INTO job_secrets (response_id, key_id, sealed) SELECT id, 'key', 'sealed' FROM many WHERE n % 100 = 0;
INSERT INTO idempotency_keys (project_id, key, body_hash, response_id, expires_at)
SELECT project.id, CASE WHEN n % 4 = 0 THEN 'sdk:' ELSE 'client:' END || n, decode(md5(n::text), 'hex'), many.id, now() + interval '1 day' * (n - :rows / 100) / :rows
FROM many CROSS JOIN projects project WHERE n % 2 = 0;

INSERT INTO journal (worker, batch, response_ids, attempts, first_numbers, last_numbers, frames)
SELECT owner.id, 0, '{}', '{}', '{}', '{}', '{}' FROM owner;
INSERT INTO journal (worker, batch, response_ids, attempts, first_numbers, last_numbers, frames)
SELECT owner.id, n, ARRAY[gen_random_uuid()], '{1}', '{10}', '{10}', ARRAY['frame'::bytea]
FROM owner CROSS JOIN generate_series(1, 20) n;

-- One of four has a file. The purge has hidden the first ones; half of them expire.
INSERT INTO files (id, project_id, filename, purpose, bytes, completed_at, expires_at, delete_requested_at)
SELECT md5(n::text)::uuid, project.id, 'file-' || n, 'user_data', 100, now(),
       CASE WHEN n % 8 = 0 THEN now() + interval '30 days' * (n - :rows / 100) / :rows END, CASE WHEN n < 20 THEN now() END
FROM many CROSS JOIN projects project WHERE n % 4 = 0;
INSERT INTO file_parts (id, file_id, number, bytes) SELECT gen_random_uuid(), md5(n::text)::uuid, CASE WHEN n % 400 <> 0 THEN 0 END, 100 FROM many WHERE n % 4 = 0;

-- One of fifty is a batch; one of two hundred of these goes on. All responses are lines of batches.
INSERT INTO batches (id, project_id, api_key_id, endpoint, input_file_id, completion_window, status, expires_at, ended_at)
SELECT gen_random_uuid(), project.id, key.id, '/v1/responses', gen_random_uuid(), '24h', CASE WHEN n % 200 = 0 THEN 'in_progress' ELSE 'completed' END,
       now() + interval '1 day', CASE WHEN n % 200 <> 0 THEN now() - interval '30 days' * (:rows / 50 - n) / :rows END
FROM generate_series(1, :rows / 50) n CROSS JOIN projects project CROSS JOIN api_keys key;
CREATE TEMPORARY TABLE batch AS SELECT row_number() OVER () - 1 AS nr, id FROM batches;
INSERT INTO batch_lines (batch_id, line, custom_id, expanded, response_id)
SELECT batch.id, n, 'line-' || n, n % 2 = 0, CASE WHEN n % 2 = 0 THEN many.id END FROM many JOIN batch ON batch.nr = n / 100;

-- All files are in vector stores, most of them with four chunks. Some of the stores expire, and the purge has hidden the first ones.
INSERT INTO vector_stores (id, project_id, name, metadata, expires_at, expires_after_days, embedding_model, dimensions, language, delete_requested_at)
SELECT gen_random_uuid(), project.id, 'store', '{}', CASE WHEN n % 2 = 0 THEN now() + interval '30 days' * n / :rows END, 30, 'm', 4, 'english', CASE WHEN n < 20 THEN now() END
FROM generate_series(1, :rows / 100) n CROSS JOIN projects project;
CREATE TEMPORARY TABLE store AS SELECT row_number() OVER (ORDER BY delete_requested_at NULLS LAST) - 1 AS nr, id, project_id FROM vector_stores;
INSERT INTO vector_store_file_batches (id, store_id) SELECT gen_random_uuid(), id FROM store;
CREATE TEMPORARY TABLE entry AS
SELECT gen_random_uuid() AS id, store.id AS store_id, store.project_id, md5(n::text)::uuid AS file_id, batch.id AS batch_id, n
FROM many JOIN store ON store.nr = n / 100 JOIN vector_store_file_batches batch ON batch.store_id = store.id WHERE n % 4 = 0;
INSERT INTO vector_store_files (id, project_id, store_id, file_id, batch_id, attributes, max_chunk_tokens, chunk_overlap_tokens, status, chunks, delete_requested_at)
SELECT id, project_id, store_id, file_id, batch_id, jsonb_build_object('nr', n), 800, 400, CASE WHEN n % 400 = 0 THEN 'in_progress' ELSE 'completed' END, 4, CASE WHEN n < 20 THEN now() END FROM entry;
INSERT INTO vector_store_chunks (store_id, entry_id, number, project_id, tokens, text, words, embedding)
SELECT store_id, id, nr, project_id, 10, 'word ' || n, to_tsvector('english', 'word w' || n) || array_to_tsvector(ARRAY['§' || replace(store_id::text, '-', '')]), embedding_of('[1,0,0,' || n % 7 || ']')
FROM entry CROSS JOIN generate_series(0, 3) nr;

-- One of ten is a schedule with ten runs, and a project has a hundred. One of four of these is paused or completed; the purge deletes the first ones.
INSERT INTO schedules (id, project_id, api_key_id, cron, missed, template, decided_until, upcoming, due_at, completed_at, deleted_at)
SELECT gen_random_uuid(), CASE WHEN n < 100 THEN project.id ELSE md5('project ' || n / 100)::uuid END, key.id, '0 * * * *', 'skip', '{}', now(), '{}', CASE WHEN n % 4 <> 0 THEN now() + interval '30 days' * n / :rows END,
       CASE WHEN n % 8 = 0 THEN now() - interval '30 days' * n / :rows END, CASE WHEN n < 20 THEN now() END
FROM generate_series(1, :rows / 10) n CROSS JOIN projects project CROSS JOIN api_keys key;
INSERT INTO schedule_runs (id, schedule_id, slot, status, created_at)
SELECT gen_random_uuid(), id, now() - interval '1 hour' * nr, 'created', now() - interval '3 days' * nr FROM schedules CROSS JOIN generate_series(1, 10) nr;
