-- Schedules of projects, and what became of their slots.

CREATE TABLE schedules (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    api_key_id uuid NOT NULL,
    name text DEFAULT '' NOT NULL,
    metadata jsonb DEFAULT '{}' NOT NULL,
    cron text,
    time_zone text DEFAULT 'UTC' NOT NULL,
    run_at timestamptz,
    missed text NOT NULL,
    template json NOT NULL,
    secret_key_id text,
    secrets bytea,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    updated_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    revision integer DEFAULT 0 NOT NULL,
    paused_at timestamptz,
    completed_at timestamptz,
    deleted_at timestamptz,
    decided_until timestamptz NOT NULL,
    upcoming timestamptz[] NOT NULL,
    due_at timestamptz,
    tries integer DEFAULT 0 NOT NULL,
    requested_run uuid,
    CONSTRAINT pk_schedules PRIMARY KEY (id),
    CONSTRAINT fk_schedules_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE
);
CREATE INDEX ix_schedules_project_id ON schedules (project_id, id);
CREATE INDEX ix_schedules_due_at ON schedules (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX ix_schedules_deleted ON schedules (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX ix_schedules_completed_at ON schedules (completed_at) WHERE completed_at IS NOT NULL;

CREATE TABLE schedule_runs (
    id uuid NOT NULL,
    schedule_id uuid NOT NULL,
    slot timestamptz NOT NULL,
    skipped_after timestamptz,
    requested boolean DEFAULT false NOT NULL,
    status text NOT NULL,
    response_id uuid,
    error json,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT pk_schedule_runs PRIMARY KEY (id),
    CONSTRAINT fk_schedule_runs_schedule_id FOREIGN KEY (schedule_id) REFERENCES schedules (id) ON DELETE CASCADE
);
CREATE INDEX ix_schedule_runs_schedule_id ON schedule_runs (schedule_id, id);
CREATE INDEX ix_schedule_runs_created_at ON schedule_runs (created_at);
CREATE UNIQUE INDEX uq_schedule_runs_slot ON schedule_runs (schedule_id, slot) WHERE NOT requested;
