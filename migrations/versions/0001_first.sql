-- The tables of 0.1.0. What a later release needs is a migration of its own: this file never changes.

CREATE TABLE access_revision (
    single boolean DEFAULT true NOT NULL,
    number bigint NOT NULL,
    CONSTRAINT pk_access_revision PRIMARY KEY (single),
    CONSTRAINT ck_access_revision_single CHECK (single)
);

CREATE TABLE activity (
    width smallint NOT NULL,
    begins_at timestamptz NOT NULL,
    sampled boolean DEFAULT false NOT NULL,
    waiting integer,
    oldest_seconds double precision,
    running integer,
    completed bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    input_tokens bigint DEFAULT 0 NOT NULL,
    output_tokens bigint DEFAULT 0 NOT NULL,
    first_token_counts integer[] DEFAULT '{}' NOT NULL,
    total_counts integer[] DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_activity PRIMARY KEY (width, begins_at)
);

CREATE TABLE audit (
    id uuid NOT NULL,
    at timestamptz DEFAULT clock_timestamp() NOT NULL,
    actor text NOT NULL,
    key_id uuid,
    key_prefix text,
    os_user text,
    project text,
    address text,
    action text NOT NULL,
    object text,
    outcome text NOT NULL,
    request_id text,
    details jsonb DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (id)
);
CREATE INDEX ix_audit_at ON audit (at, id);

CREATE TABLE console_links (
    hash bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT pk_console_links PRIMARY KEY (hash)
);

CREATE TABLE console_sessions (
    hash bytea NOT NULL,
    role text NOT NULL,
    name text NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT pk_console_sessions PRIMARY KEY (hash)
);

CREATE UNLOGGED TABLE journal (
    worker uuid NOT NULL,
    batch bigint NOT NULL,
    response_ids uuid[] NOT NULL,
    attempts integer[] NOT NULL,
    first_numbers integer[] NOT NULL,
    last_numbers integer[] NOT NULL,
    frames bytea[] NOT NULL,
    CONSTRAINT pk_journal PRIMARY KEY (worker, batch)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE projects (
    id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    policy jsonb DEFAULT '{}' NOT NULL,
    weight integer DEFAULT 1 NOT NULL,
    archived_at timestamptz,
    cancelled boolean DEFAULT false NOT NULL,
    CONSTRAINT pk_projects PRIMARY KEY (id),
    CONSTRAINT ck_projects_weight CHECK (weight > 0),
    CONSTRAINT uq_projects_name UNIQUE (name)
);

CREATE TABLE schema_compatibility (
    single boolean DEFAULT true NOT NULL,
    oldest_revision text NOT NULL,
    CONSTRAINT pk_schema_compatibility PRIMARY KEY (single),
    CONSTRAINT ck_schema_compatibility_single CHECK (single)
);

CREATE TABLE usage_days (
    project_id uuid NOT NULL,
    day date NOT NULL,
    api_key_id uuid,
    model text NOT NULL,
    upstream text,
    service_tier text,
    kind text,
    batch boolean,
    requests bigint NOT NULL,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    units bigint
);
CREATE INDEX ix_usage_days_day ON usage_days (day);
CREATE INDEX ix_usage_days_project_id ON usage_days (project_id, day);

CREATE TABLE usage_entries (
    project_id uuid NOT NULL,
    ended_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    api_key_id uuid,
    model text NOT NULL,
    upstream text,
    service_tier text,
    kind text,
    batch boolean,
    requests bigint NOT NULL,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    units bigint,
    entry_id uuid
);
CREATE INDEX ix_usage_entries_ended_at ON usage_entries USING brin (ended_at);
CREATE INDEX ix_usage_entries_project_id ON usage_entries (project_id, ended_at);
CREATE UNIQUE INDEX uq_usage_entries_entry_id ON usage_entries (entry_id) WHERE entry_id IS NOT NULL;

CREATE TABLE usage_rollup (
    single boolean DEFAULT true NOT NULL,
    rolled_until date NOT NULL,
    CONSTRAINT pk_usage_rollup PRIMARY KEY (single),
    CONSTRAINT ck_usage_rollup_single CHECK (single)
);

CREATE TABLE workers (
    id uuid NOT NULL,
    kind text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    started_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz NOT NULL,
    dead boolean DEFAULT false NOT NULL,
    ended text,
    flushed_batch bigint DEFAULT 0 NOT NULL,
    drain_requested_at timestamptz,
    settled_at timestamptz,
    tied boolean DEFAULT false NOT NULL,
    slots integer,
    version text,
    CONSTRAINT pk_workers PRIMARY KEY (id),
    CONSTRAINT ck_workers_kind CHECK (kind IN ('worker', 'quarantine', 'web'))
);

CREATE TABLE api_keys (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    prefix text NOT NULL,
    hash bytea NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    last_used_at timestamptz,
    revoked_at timestamptz,
    name text,
    scopes text[] DEFAULT '{responses}' NOT NULL,
    allowed_models text[],
    expires_at timestamptz,
    created_by uuid,
    service_account_id uuid,
    CONSTRAINT pk_api_keys PRIMARY KEY (id),
    CONSTRAINT fk_api_keys_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE,
    CONSTRAINT uq_api_keys_hash UNIQUE (hash)
);
CREATE INDEX ix_api_keys_project_id ON api_keys (project_id);

CREATE TABLE batches (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    api_key_id uuid NOT NULL,
    endpoint text NOT NULL,
    input_file_id uuid NOT NULL,
    completion_window text NOT NULL,
    metadata json,
    output_lifetime interval,
    status text DEFAULT 'validating' NOT NULL,
    ending text,
    model text,
    errors json,
    created_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz NOT NULL,
    in_progress_at timestamptz,
    finalizing_at timestamptz,
    cancelling_at timestamptz,
    ended_at timestamptz,
    validated_lines bigint DEFAULT 0 NOT NULL,
    validated_bytes bigint DEFAULT 0 NOT NULL,
    expanded_lines bigint DEFAULT 0 NOT NULL,
    expanded_bytes bigint DEFAULT 0 NOT NULL,
    expanded bigint DEFAULT 0 NOT NULL,
    total bigint DEFAULT 0 NOT NULL,
    completed bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    input_tokens bigint DEFAULT 0 NOT NULL,
    cached_tokens bigint DEFAULT 0 NOT NULL,
    output_tokens bigint DEFAULT 0 NOT NULL,
    reasoning_tokens bigint DEFAULT 0 NOT NULL,
    output_file_id uuid,
    output_parts bigint DEFAULT 0 NOT NULL,
    error_file_id uuid,
    error_parts bigint DEFAULT 0 NOT NULL,
    expander_until timestamptz DEFAULT now() NOT NULL,
    expander_crashes bigint DEFAULT 0 NOT NULL,
    collector_until timestamptz DEFAULT now() NOT NULL,
    collector_crashes bigint DEFAULT 0 NOT NULL,
    CONSTRAINT pk_batches PRIMARY KEY (id),
    CONSTRAINT fk_batches_project_id FOREIGN KEY (project_id) REFERENCES projects (id)
);
CREATE INDEX ix_batches_ended_at ON batches (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX ix_batches_project_id ON batches (project_id, id);
CREATE INDEX ix_batches_turns ON batches (project_id, collector_until)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');

CREATE TABLE conversations (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    metadata jsonb DEFAULT '{}' NOT NULL,
    revision bigint DEFAULT 0 NOT NULL,
    unanswered_calls text[] DEFAULT '{}' NOT NULL,
    size bigint DEFAULT 0 NOT NULL,
    CONSTRAINT pk_conversations PRIMARY KEY (id),
    CONSTRAINT fk_conversations_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE
);

CREATE TABLE files (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    filename text NOT NULL,
    purpose text NOT NULL,
    bytes bigint NOT NULL,
    media_type text,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    completed_at timestamptz,
    lifetime interval,
    expires_at timestamptz,
    delete_requested_at timestamptz,
    CONSTRAINT pk_files PRIMARY KEY (id),
    CONSTRAINT fk_files_project_id FOREIGN KEY (project_id) REFERENCES projects (id)
);
CREATE INDEX ix_files_deleted ON files (delete_requested_at) WHERE delete_requested_at IS NOT NULL;
CREATE INDEX ix_files_expires_at ON files (expires_at) WHERE expires_at IS NOT NULL AND delete_requested_at IS NULL;
CREATE INDEX ix_files_project_id ON files (project_id, id);

CREATE TABLE responses (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    status text NOT NULL,
    background boolean NOT NULL,
    store boolean NOT NULL,
    model text NOT NULL,
    parameters json NOT NULL,
    previous_response_id uuid,
    conversation_id uuid,
    usage jsonb,
    upstream text,
    service_tier text,
    upstream_fields json,
    error jsonb,
    reason text,
    failure jsonb,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    completed_at timestamptz,
    expires_at timestamptz NOT NULL,
    deadline timestamptz NOT NULL,
    worker uuid,
    web uuid,
    waiter uuid,
    attempt integer DEFAULT 0 NOT NULL,
    crashes smallint DEFAULT 0 NOT NULL,
    enqueued_at timestamptz NOT NULL,
    enqueue_count smallint DEFAULT 0 NOT NULL,
    resume_at timestamptz,
    lane smallint DEFAULT 1 NOT NULL,
    confirmed boolean DEFAULT false NOT NULL,
    cancel_requested_at timestamptz,
    delete_requested_at timestamptz,
    requeue_requested_at timestamptz,
    fail_requested_at timestamptz,
    turns integer DEFAULT 0 NOT NULL,
    checkpoint_number integer DEFAULT -1 NOT NULL,
    next_output_index integer DEFAULT 0 NOT NULL,
    unanswered_calls text[] DEFAULT '{}' NOT NULL,
    history_size bigint,
    traceparent text,
    request_id text,
    cache_key bytea,
    cache_ttl integer,
    api_key_id uuid,
    kept_for interval,
    CONSTRAINT pk_responses PRIMARY KEY (id),
    CONSTRAINT ck_responses_status
        CHECK (status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')),
    CONSTRAINT fk_responses_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE,
    CONSTRAINT fk_responses_worker FOREIGN KEY (worker) REFERENCES workers (id)
) WITH (fillfactor = 70);
CREATE INDEX ix_responses_deadline ON responses (deadline) WHERE status IN ('queued', 'in_progress');
CREATE INDEX ix_responses_deleted ON responses (delete_requested_at) WHERE delete_requested_at IS NOT NULL;
CREATE INDEX ix_responses_expires_at ON responses (expires_at);
CREATE INDEX ix_responses_line ON responses
    (background, lane, project_id, (coalesce(resume_at, started_at, enqueued_at)))
    WHERE (worker IS NULL AND status IN ('queued', 'in_progress') AND crashes = 0 AND cancel_requested_at IS NULL
      AND fail_requested_at IS NULL);
CREATE INDEX ix_responses_no_backlog ON responses (enqueued_at)
    WHERE worker IS NULL AND status IN ('queued', 'in_progress') AND NOT (status = 'queued' AND background
      AND cancel_requested_at IS NULL AND fail_requested_at IS NULL AND requeue_requested_at IS NULL);
CREATE INDEX ix_responses_previous_response_id ON responses (previous_response_id)
    WHERE previous_response_id IS NOT NULL;
CREATE INDEX ix_responses_request_id ON responses (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX ix_responses_worker ON responses (worker) WHERE worker IS NOT NULL;
CREATE UNIQUE INDEX uq_responses_conversation_running ON responses (conversation_id)
    WHERE conversation_id IS NOT NULL AND status IN ('queued', 'in_progress');

CREATE TABLE service_accounts (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT pk_service_accounts PRIMARY KEY (id),
    CONSTRAINT fk_service_accounts_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE
);
CREATE INDEX ix_service_accounts_project_id ON service_accounts (project_id);

CREATE TABLE vector_stores (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    name text NOT NULL,
    description text,
    metadata json NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    last_active_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    expires_after_days integer,
    expires_at timestamptz,
    embedding_model text,
    requested_dimensions integer,
    dimensions integer,
    language text NOT NULL,
    has_index boolean DEFAULT false NOT NULL,
    delete_requested_at timestamptz,
    CONSTRAINT pk_vector_stores PRIMARY KEY (id),
    CONSTRAINT fk_vector_stores_project_id FOREIGN KEY (project_id) REFERENCES projects (id)
);
CREATE INDEX ix_vector_stores_deleted ON vector_stores (delete_requested_at) WHERE delete_requested_at IS NOT NULL;
CREATE INDEX ix_vector_stores_expires_at ON vector_stores (expires_at)
    WHERE expires_at IS NOT NULL AND delete_requested_at IS NULL;
CREATE INDEX ix_vector_stores_project_id ON vector_stores (project_id, id);

CREATE TABLE webhook_endpoints (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    name text DEFAULT '' NOT NULL,
    url text NOT NULL,
    types text[] NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz,
    deleted_at timestamptz,
    secret_key_id text NOT NULL,
    secrets bytea NOT NULL,
    old_secret_until timestamptz,
    disabled_at timestamptz,
    disabled_reason text,
    failures integer DEFAULT 0 NOT NULL,
    failing_since timestamptz,
    paused_until timestamptz,
    CONSTRAINT pk_webhook_endpoints PRIMARY KEY (id),
    CONSTRAINT fk_webhook_endpoints_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE
);
CREATE INDEX ix_webhook_endpoints_project_id ON webhook_endpoints (project_id);

CREATE TABLE attempts (
    response_id uuid NOT NULL,
    attempt integer NOT NULL,
    worker uuid NOT NULL,
    kind text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    claimed_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    turns_ended_at timestamptz[] DEFAULT '{}' NOT NULL,
    outcome text,
    ended_at timestamptz,
    failures jsonb,
    CONSTRAINT pk_attempts PRIMARY KEY (response_id, attempt),
    CONSTRAINT ck_attempts_outcome
        CHECK (outcome IN ('handed_over', 'requeued', 'returned', 'deferred', 'died', 'error', 'repeated')),
    CONSTRAINT fk_attempts_response_id FOREIGN KEY (response_id) REFERENCES responses (id) ON DELETE CASCADE
);

CREATE TABLE batch_lines (
    batch_id uuid NOT NULL,
    line integer NOT NULL,
    custom_id text NOT NULL,
    expanded boolean DEFAULT false NOT NULL,
    response_id uuid,
    error json,
    CONSTRAINT pk_batch_lines PRIMARY KEY (batch_id, line),
    CONSTRAINT fk_batch_lines_batch_id FOREIGN KEY (batch_id) REFERENCES batches (id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX ix_batch_lines_custom_id ON batch_lines (batch_id, custom_id);
CREATE INDEX ix_batch_lines_expanded ON batch_lines (batch_id, line) WHERE expanded;
CREATE INDEX ix_batch_lines_response_id ON batch_lines (response_id) WHERE response_id IS NOT NULL;

CREATE TABLE event_log (
    response_id uuid NOT NULL,
    first_number integer NOT NULL,
    last_number integer NOT NULL,
    attempt integer NOT NULL,
    frames bytea NOT NULL,
    stored_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT pk_event_log PRIMARY KEY (response_id, first_number),
    CONSTRAINT fk_event_log_response_id FOREIGN KEY (response_id) REFERENCES responses (id) ON DELETE CASCADE
);

CREATE TABLE file_parts (
    id uuid NOT NULL,
    file_id uuid NOT NULL,
    number integer,
    bytes bigint,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    abandoned boolean DEFAULT false NOT NULL,
    CONSTRAINT pk_file_parts PRIMARY KEY (id),
    CONSTRAINT fk_file_parts_file_id FOREIGN KEY (file_id) REFERENCES files (id)
);
CREATE UNIQUE INDEX ix_file_parts_number ON file_parts (file_id, number);
CREATE INDEX ix_file_parts_unused ON file_parts (created_at) WHERE number IS NULL;

CREATE TABLE idempotency_keys (
    project_id uuid NOT NULL,
    key text NOT NULL,
    body_hash bytea NOT NULL,
    response_id uuid,
    expires_at timestamptz NOT NULL,
    claim uuid,
    web uuid,
    made text,
    sealed bytea,
    lost boolean DEFAULT false NOT NULL,
    CONSTRAINT pk_idempotency_keys PRIMARY KEY (project_id, key),
    CONSTRAINT fk_idempotency_keys_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE,
    CONSTRAINT fk_idempotency_keys_response_id FOREIGN KEY (response_id) REFERENCES responses (id) ON DELETE CASCADE
);
CREATE INDEX ix_idempotency_keys_body_hash ON idempotency_keys (project_id, body_hash) WHERE key LIKE 'sdk:%';
CREATE INDEX ix_idempotency_keys_expires_at ON idempotency_keys (expires_at);
CREATE INDEX ix_idempotency_keys_response_id ON idempotency_keys (response_id);

CREATE TABLE items (
    id bigserial NOT NULL,
    response_id uuid,
    conversation_id uuid,
    direction text NOT NULL,
    position integer NOT NULL,
    item_id text NOT NULL,
    type text NOT NULL,
    payload jsonb NOT NULL,
    turn integer,
    answer jsonb,
    size bigint NOT NULL,
    origin text,
    call_key text,
    CONSTRAINT pk_items PRIMARY KEY (id),
    CONSTRAINT ck_items_direction CHECK (direction IN ('input', 'output')),
    CONSTRAINT ck_items_owned CHECK (response_id IS NOT NULL OR conversation_id IS NOT NULL),
    CONSTRAINT uq_items_response_id UNIQUE (response_id, direction, position),
    CONSTRAINT fk_items_response_id FOREIGN KEY (response_id) REFERENCES responses (id) ON DELETE CASCADE,
    CONSTRAINT fk_items_conversation_id FOREIGN KEY (conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
);
CREATE INDEX ix_items_call_key ON items (call_key, id) WHERE call_key IS NOT NULL;
CREATE INDEX ix_items_container ON items
    (coalesce(payload ->> 'container_id', payload #>> '{environment,container_id}'))
    WHERE direction = 'output' AND type IN ('code_interpreter_call', 'shell_call');
CREATE INDEX ix_items_conversation_id ON items (conversation_id, id) WHERE conversation_id IS NOT NULL;
CREATE INDEX ix_items_conversation_item ON items (conversation_id, item_id) WHERE conversation_id IS NOT NULL;
CREATE INDEX ix_items_item_id ON items (item_id, id);

CREATE TABLE job_secrets (
    response_id uuid NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL,
    CONSTRAINT pk_job_secrets PRIMARY KEY (response_id),
    CONSTRAINT fk_job_secrets_response_id FOREIGN KEY (response_id) REFERENCES responses (id) ON DELETE CASCADE
);

CREATE TABLE tool_calls (
    response_id uuid NOT NULL,
    position integer NOT NULL,
    output_index integer NOT NULL,
    turn integer NOT NULL,
    started_attempt integer,
    finished boolean NOT NULL,
    answer jsonb,
    CONSTRAINT pk_tool_calls PRIMARY KEY (response_id, position),
    CONSTRAINT fk_tool_calls_response_id FOREIGN KEY (response_id) REFERENCES responses (id) ON DELETE CASCADE
);

CREATE TABLE vector_store_file_batches (
    id uuid NOT NULL,
    store_id uuid NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    cancelled_at timestamptz,
    CONSTRAINT pk_vector_store_file_batches PRIMARY KEY (id),
    CONSTRAINT fk_vector_store_file_batches_store_id FOREIGN KEY (store_id)
        REFERENCES vector_stores (id) ON DELETE CASCADE
);
CREATE INDEX ix_vector_store_file_batches_store_id ON vector_store_file_batches (store_id);

CREATE TABLE vector_store_files (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    store_id uuid NOT NULL,
    file_id uuid NOT NULL,
    batch_id uuid,
    attributes jsonb NOT NULL,
    max_chunk_tokens integer NOT NULL,
    chunk_overlap_tokens integer NOT NULL,
    status text DEFAULT 'in_progress' NOT NULL,
    error_code text,
    error_message text,
    chunks bigint DEFAULT 0 NOT NULL,
    usage_bytes bigint DEFAULT 0 NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    next_attempt_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    failures integer DEFAULT 0 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    delete_requested_at timestamptz,
    CONSTRAINT pk_vector_store_files PRIMARY KEY (id),
    CONSTRAINT fk_vector_store_files_store_id FOREIGN KEY (store_id) REFERENCES vector_stores (id)
);
CREATE INDEX ix_vector_store_files_batch_id ON vector_store_files (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX ix_vector_store_files_deleted ON vector_store_files (delete_requested_at)
    WHERE delete_requested_at IS NOT NULL;
CREATE UNIQUE INDEX ix_vector_store_files_file_id ON vector_store_files (file_id, store_id)
    WHERE delete_requested_at IS NULL;
CREATE INDEX ix_vector_store_files_project_id ON vector_store_files (project_id);
CREATE INDEX ix_vector_store_files_store_id ON vector_store_files (store_id, id);
CREATE INDEX ix_vector_store_files_useless_chunks ON vector_store_files (id)
    WHERE status IN ('failed', 'cancelled') AND chunks > 0 AND delete_requested_at IS NULL;
CREATE INDEX ix_vector_store_files_waiting ON vector_store_files (project_id, next_attempt_at)
    WHERE status = 'in_progress' AND delete_requested_at IS NULL;

CREATE TABLE webhook_deliveries (
    id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    event_id uuid NOT NULL,
    type text NOT NULL,
    object_id text NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    resent_at timestamptz,
    attempts integer DEFAULT 0 NOT NULL,
    next_attempt_at timestamptz DEFAULT clock_timestamp(),
    delivered_at timestamptz,
    last_status integer,
    last_error text,
    CONSTRAINT pk_webhook_deliveries PRIMARY KEY (id),
    CONSTRAINT fk_webhook_deliveries_endpoint_id FOREIGN KEY (endpoint_id)
        REFERENCES webhook_endpoints (id) ON DELETE CASCADE
);
CREATE INDEX ix_webhook_deliveries_created_at ON webhook_deliveries (created_at);
CREATE INDEX ix_webhook_deliveries_endpoint_id ON webhook_deliveries (endpoint_id, created_at);
CREATE INDEX ix_webhook_deliveries_event_id ON webhook_deliveries (event_id);
CREATE INDEX ix_webhook_deliveries_waiting ON webhook_deliveries (endpoint_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;

CREATE TABLE vector_store_chunks (
    store_id uuid NOT NULL,
    entry_id uuid NOT NULL,
    number integer NOT NULL,
    project_id uuid NOT NULL,
    tokens integer NOT NULL,
    text text NOT NULL,
    words tsvector NOT NULL,
    CONSTRAINT pk_vector_store_chunks PRIMARY KEY (store_id, entry_id, number),
    CONSTRAINT fk_vector_store_chunks_entry_id FOREIGN KEY (entry_id) REFERENCES vector_store_files (id)
);
CREATE INDEX ix_vector_store_chunks_entry_id ON vector_store_chunks (entry_id);
CREATE INDEX ix_vector_store_chunks_words ON vector_store_chunks USING gin (words);

INSERT INTO access_revision (number) VALUES (1);
INSERT INTO usage_rollup (rolled_until) VALUES ((now() AT TIME ZONE 'UTC')::date);
INSERT INTO schema_compatibility (oldest_revision) VALUES ('0001_first');
