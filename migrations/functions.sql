-- The functions and triggers of the schema. `backburner migrate` runs this file each time, after the migrations, in one
-- transaction. Processes of the previous release run on meanwhile and afterwards: a function that they use, or that is
-- run by what they write, must work for them too. A function that takes or returns something else gets another name.

-- Each change of a project or key raises a number, which all processes read (models/ownership/lease.py).
CREATE OR REPLACE FUNCTION count_access_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('UPDATE %I.access_revision SET number = number + 1', TG_TABLE_SCHEMA);
    RETURN NULL;
END $$;

-- The fence of a process (models/db/queries/common.py). Everything that it writes takes its lock, shared, until the
-- transaction ends. Null: the process was declared dead. The row is read after the lock is there, in a snapshot of its
-- own, so a reap that this has waited for is seen.
CREATE OR REPLACE FUNCTION fence(process uuid) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    alive uuid;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(process::text, 1));
    SELECT id INTO alive FROM workers WHERE id = process AND NOT dead;
    RETURN alive;
END $$;

CREATE OR REPLACE FUNCTION lock_fence(process uuid) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_xact_lock(hashtextextended(process::text, 1))
$$;

-- Whoever declares a process dead has the lock of its fence: also a release that locks only the row.
CREATE OR REPLACE FUNCTION close_fence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_fence(NEW.id);
    RETURN NEW;
END $$;

-- The audit log only grows. An entry is never changed; it is deleted only by a transaction that has set an age, and
-- never within a day. This protects against mistakes and injected SQL; the owner of the table can drop the triggers.
CREATE OR REPLACE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    expires_before timestamptz := nullif(current_setting('backburner.audit_expires_before', true), '')::timestamptz;
BEGIN
    IF TG_OP = 'DELETE' AND expires_before IS NOT NULL THEN
        IF OLD.at < least(expires_before, clock_timestamp() - interval '1 day') THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'insufficient_privilege';
END $$;

-- The id of the event "this object has reached this status". After a failover that has lost the end of a response, its
-- second end has an event of the same id.
CREATE OR REPLACE FUNCTION end_event(kind text, id uuid, status text) RETURNS uuid LANGUAGE sql STABLE AS $$
    SELECT encode(substr(sha256(convert_to(kind || ' ' || id::text || ' ' || status, 'UTF8')), 1, 16), 'hex')::uuid
$$;

-- Stores a delivery for each endpoint that receives the event. No event: a response of a batch (lane 3), whose batch
-- has an event; a create that was refused, whose id nobody knows.
CREATE OR REPLACE FUNCTION deliver_end_of_response() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    event uuid := end_event('response', NEW.id, NEW.status);
BEGIN
    IF NEW.lane = 3 OR NEW.reason = 'create_refused' THEN
        RETURN NULL;
    END IF;
    INSERT INTO webhook_deliveries (id, endpoint_id, event_id, type, object_id)
    SELECT gen_random_uuid(), e.id, event, 'response.' || NEW.status, 'resp_' || replace(NEW.id::text, '-', '')
    FROM webhook_endpoints e
    WHERE e.project_id = NEW.project_id AND e.disabled_at IS NULL
      AND (e.types = '{}' OR 'response.' || NEW.status = ANY (e.types));
    RETURN NULL;
END $$;

-- The end of a response starts those that wait for it, or lets them end (ADR 0073). It is part of the statement that ends
-- the response, so no death loses it. A create that is to wait has locked the row and set `awaited`: it was committed
-- before, or it finds the end. Those that are to end are marked for the sweep, which reads why (claim.LOCK_ORPHANS).
CREATE OR REPLACE FUNCTION release_waiting_responses() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    waiting uuid[] := ARRAY(SELECT id FROM (SELECT id, waits, status FROM responses
                                            WHERE previous_response_id = NEW.id OFFSET 0) c
                            WHERE c.waits AND c.status = 'queued' ORDER BY id);
BEGIN
    IF NEW.status IN ('completed', 'incomplete') AND NEW.unanswered_calls = '{}' AND NEW.delete_requested_at IS NULL THEN
        UPDATE responses SET waits = NULL, resume_at = NULL, enqueued_at = clock_timestamp(),
                             deadline = clock_timestamp() + coalesce(deadline - resume_at, interval '1 day')
        WHERE id = ANY (waiting) AND status = 'queued';
    ELSE
        UPDATE responses SET fail_requested_at = coalesce(fail_requested_at, clock_timestamp())
        WHERE id = ANY (waiting) AND status = 'queued';
    END IF;
    RETURN NULL;
END $$;

-- Steers that are still queued when their response has ended go back to the client. The owner that ends a steered response
-- has committed them before, or keeps them for the client's tool outputs; a worker of 0.1.0 knows nothing of them.
CREATE OR REPLACE FUNCTION return_steers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE steers SET state = 'failed', settled_at = clock_timestamp(),
           error_code = CASE WHEN NEW.status IN ('completed', 'incomplete') THEN 'successor_creation_failed'
                             ELSE 'response_not_active' END
    WHERE response_id = NEW.id AND state = 'queued';
    RETURN NULL;
END $$;

-- An image that is stored as a file is deleted with the last item that has it: that of its call, and copies of it in the
-- input of other responses (models/wire/image_marks.py). Two deletes at a time wait for each other at the row of the file:
-- each statement here has a snapshot of its own.
CREATE OR REPLACE FUNCTION delete_image_of_item() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    image uuid;
BEGIN
    SELECT id INTO image FROM files
    WHERE id = CAST(substr(OLD.item_id, 4) AS uuid) AND purpose = 'image' AND delete_requested_at IS NULL FOR UPDATE;
    IF image IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM items i WHERE i.item_id = OLD.item_id
          AND (i.direction = 'output' OR jsonb_typeof(i.payload -> 'result') = 'object')) THEN
        UPDATE files SET delete_requested_at = clock_timestamp() WHERE id = image;
    END IF;
    RETURN NULL;
END $$;

-- The log of a response goes with it, unless the purge leaves it to the end of its partition (ADR 0078).
CREATE OR REPLACE FUNCTION delete_log_of_response() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM event_log WHERE response_id = OLD.id;
    RETURN NULL;
END $$;

-- Partitions of the event log (worker/process/log_partitions.py). While a statement waits for an exclusive lock, all others
-- wait for it: so it is not tried behind a long transaction, such as a dump, and a lock is waited for 0.1 s at most.
CREATE OR REPLACE FUNCTION are_logs_locked() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    RETURN EXISTS (SELECT 1 FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
                   WHERE a.datname = current_database() AND a.xact_start < clock_timestamp() - interval '1 second'
                     AND l.relation IN (SELECT 'event_log'::regclass UNION ALL
                                        SELECT inhrelid FROM pg_inherits WHERE inhparent = 'event_log'::regclass));
END $$;

-- Rows of the new partition that are in the default one already, because a clock is wrong, move. False: to be tried later.
CREATE OR REPLACE FUNCTION add_log_partition(name text, begins uuid, ends uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF are_logs_locked() THEN
        RETURN false;
    END IF;
    LOCK TABLE event_log_rest IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('CREATE TABLE %I (LIKE event_log INCLUDING DEFAULTS)', name);
    EXECUTE format('WITH early AS (DELETE FROM event_log_rest WHERE response_id >= $1 AND response_id < $2 RETURNING *)
                    INSERT INTO %I SELECT * FROM early', name) USING begins, ends;
    EXECUTE format('ALTER TABLE event_log ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name, begins, ends);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Logs of responses that are kept move to the default partition. False: to be tried later.
CREATE OR REPLACE FUNCTION drop_log_partition(name text, begins uuid, ends uuid) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    kept uuid[];
BEGIN
    IF are_logs_locked() THEN
        RETURN false;
    END IF;
    LOCK TABLE ONLY event_log IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('ALTER TABLE event_log DETACH PARTITION %I', name);
    kept := ARRAY(SELECT id FROM responses WHERE id >= begins AND id < ends ORDER BY id);
    EXECUTE format('INSERT INTO event_log SELECT * FROM %I WHERE response_id = ANY ($1)', name) USING kept;
    EXECUTE format('DROP TABLE %I', name);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- A conversation that has left this cell with its project is not changed here any more (docs/cells.md): the client tries
-- again, and the other cell answers.
CREATE OR REPLACE FUNCTION refuse_change_of_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM moved_things WHERE id = OLD.id AND NOT is_copy) THEN
        RAISE EXCEPTION 'it is in another cell' USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN NEW;
END $$;

-- A trigger is made once: to make it again would lock its table. One that changes gets another name here, and a
-- migration drops the old one.
DO $$
DECLARE
    made name[] := ARRAY(SELECT tgname FROM pg_trigger
                         WHERE tgrelid = ANY ('{projects, api_keys, audit, responses, workers, items, conversations}'
                                              ::regclass[]));
BEGIN
    IF NOT 'projects_changed' = ANY (made) THEN
        CREATE TRIGGER projects_changed AFTER UPDATE OF name, policy, weight, archived_at OR DELETE ON projects
        FOR EACH STATEMENT EXECUTE FUNCTION count_access_change();
    END IF;
    IF NOT 'api_keys_changed' = ANY (made) THEN
        CREATE TRIGGER api_keys_changed
        AFTER UPDATE OF project_id, scopes, allowed_models, expires_at, revoked_at, hash OR DELETE ON api_keys
        FOR EACH STATEMENT EXECUTE FUNCTION count_access_change();
    END IF;
    IF NOT 'audit_is_append_only' = ANY (made) THEN
        CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON audit
        FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();
    END IF;
    IF NOT 'audit_is_not_emptied' = ANY (made) THEN
        CREATE TRIGGER audit_is_not_emptied BEFORE TRUNCATE ON audit
        FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();
    END IF;
    IF NOT 'end_of_response_is_delivered' = ANY (made) THEN
        CREATE TRIGGER end_of_response_is_delivered AFTER UPDATE OF status ON responses FOR EACH ROW
        WHEN (NEW.background AND NEW.status IN ('completed', 'incomplete', 'failed', 'cancelled')
              AND OLD.status NOT IN ('completed', 'incomplete', 'failed', 'cancelled'))
        EXECUTE FUNCTION deliver_end_of_response();
    END IF;
    IF NOT 'end_of_response_is_awaited' = ANY (made) THEN
        CREATE TRIGGER end_of_response_is_awaited AFTER UPDATE OF status ON responses FOR EACH ROW
        WHEN (NEW.awaited AND NEW.status IN ('completed', 'incomplete', 'failed', 'cancelled')
              AND OLD.status NOT IN ('completed', 'incomplete', 'failed', 'cancelled'))
        EXECUTE FUNCTION release_waiting_responses();
    END IF;
    IF NOT 'death_closes_the_fence' = ANY (made) THEN
        CREATE TRIGGER death_closes_the_fence BEFORE UPDATE OF dead ON workers FOR EACH ROW
        WHEN (NEW.dead AND NOT OLD.dead) EXECUTE FUNCTION close_fence();
    END IF;
    IF NOT 'queued_steers_are_returned' = ANY (made) THEN
        CREATE TRIGGER queued_steers_are_returned AFTER UPDATE OF status ON responses FOR EACH ROW
        WHEN (NEW.steers > 0 AND NEW.status IN ('completed', 'incomplete', 'failed', 'cancelled')
              AND OLD.status NOT IN ('completed', 'incomplete', 'failed', 'cancelled'))
        EXECUTE FUNCTION return_steers();
    END IF;
    IF NOT 'log_of_response_is_deleted' = ANY (made) THEN
        CREATE TRIGGER log_of_response_is_deleted AFTER DELETE ON responses FOR EACH ROW
        WHEN (current_setting('backburner.logs_are_left', true) IS DISTINCT FROM 'on')
        EXECUTE FUNCTION delete_log_of_response();
    END IF;
    IF NOT 'image_of_item_is_deleted' = ANY (made) THEN
        CREATE TRIGGER image_of_item_is_deleted AFTER DELETE ON items FOR EACH ROW
        WHEN (OLD.type = 'image_generation_call' AND OLD.item_id ~ '^ig_[0-9a-f]{32}$'
              AND (OLD.direction = 'output' OR jsonb_typeof(OLD.payload -> 'result') = 'object'))
        EXECUTE FUNCTION delete_image_of_item();
    END IF;
    IF NOT 'moved_conversation_stays_as_it_is' = ANY (made) THEN
        CREATE TRIGGER moved_conversation_stays_as_it_is BEFORE UPDATE ON conversations
        FOR EACH ROW EXECUTE FUNCTION refuse_change_of_moved();
    END IF;
END $$;

-- What needs pgvector 0.8, where it is installed or may be. An extension that comes later is used from the next
-- `backburner migrate` on. Only these functions name what the extension has: it may be in another schema, which is not
-- in the search path.
DO $do$
DECLARE
    home text;
    installed int[];
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'vector') THEN
        IF NOT EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'vector') THEN
            RETURN;
        END IF;
        BEGIN
            CREATE EXTENSION vector;
        EXCEPTION WHEN insufficient_privilege THEN
            RETURN;
        END;
    END IF;
    SELECT n.nspname, (regexp_split_to_array(e.extversion, '[^0-9]+'))[1:2]::int[] INTO home, installed
    FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector';
    IF installed < ARRAY[0, 8] THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = 'vector_store_chunks'::regclass
                   AND attname = 'embedding' AND NOT attisdropped) THEN
        EXECUTE format('ALTER TABLE vector_store_chunks ADD COLUMN embedding %I.halfvec', home);
        ALTER TABLE vector_store_chunks ALTER COLUMN embedding SET STORAGE PLAIN;
    END IF;
    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION embedding_of(value text) RETURNS %1$I.halfvec
        LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN value::%1$I.halfvec
    $sql$, home);
    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION embedding_distance(a %1$I.halfvec, b %1$I.halfvec) RETURNS float8
        LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN a OPERATOR(%1$I.<=>) b
    $sql$, home);
    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION nearest_chunks(store uuid, dimensions int, wanted text, most int)
        RETURNS TABLE (entry_id uuid, number int, distance float8) LANGUAGE plpgsql AS $nearest$
        BEGIN
            PERFORM set_config('hnsw.ef_search', least(most, 1000)::text, true),
                    set_config('hnsw.iterative_scan', 'strict_order', true);
            RETURN QUERY EXECUTE format(
                'SELECT c.entry_id, c.number,
                        (c.embedding::%1$I.halfvec(%%s)) OPERATOR(%1$I.<=>) (SELECT embedding_of($1)) AS distance
                 FROM vector_store_chunks c WHERE c.store_id = %%L ORDER BY distance LIMIT $2', dimensions, store)
            USING wanted, most;
        END $nearest$
    $sql$, home);
END $do$;
