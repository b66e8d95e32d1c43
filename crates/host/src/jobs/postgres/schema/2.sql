-- Any server may claim a job that waits in a lane of its own tools.

-- The oldest version whose toolgate can use the tables.
ALTER TABLE toolgate_fleet.schema_version ADD COLUMN min_version int NOT NULL DEFAULT 1;

ALTER TABLE toolgate_fleet.servers
    ADD COLUMN name text NOT NULL DEFAULT '',       -- the name of its machine
    ADD COLUMN kind text NOT NULL DEFAULT 'server', -- server, front or worker
    ADD COLUMN settings text NOT NULL DEFAULT '{}', -- JSON: digests of its settings by their part
    ADD COLUMN lanes text[] NOT NULL DEFAULT '{}',  -- of the jobs that it can run
    ADD COLUMN renewed timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN draining boolean NOT NULL DEFAULT false;

ALTER TABLE toolgate_fleet.jobs
    ADD COLUMN lane text,                           -- NULL if only its owner may run it
    ADD COLUMN turn bigint NOT NULL DEFAULT 0;      -- its turn among the callers of the workspace

CREATE INDEX jobs_to_claim ON toolgate_fleet.jobs (workspace, priority DESC, turn, n)
    WHERE state = 'queued' AND lane IS NOT NULL;
-- For servers whose lanes are empty while many jobs wait in others.
CREATE INDEX jobs_by_lane ON toolgate_fleet.jobs (workspace, lane, priority DESC, turn, n)
    WHERE state = 'queued' AND lane IS NOT NULL;
CREATE INDEX jobs_by_turn ON toolgate_fleet.jobs (workspace, turn) WHERE state = 'queued';
CREATE INDEX jobs_of_caller_by_turn ON toolgate_fleet.jobs (workspace, caller, turn)
    WHERE state = 'queued';

-- Buckets of rates. After a crash of the database the table is empty, so each bucket is full.
CREATE UNLOGGED TABLE toolgate_fleet.rates (
    workspace text NOT NULL,
    key bytea NOT NULL,                 -- 16 bytes, a digest of the tool and the caller
    full_at bigint NOT NULL,            -- nanoseconds since 1970, by the clock of the database
    taken bigint NOT NULL,              -- calls that were taken last
    PRIMARY KEY (workspace, key)
);

-- Sign-ins to upstreams, encrypted with the servers' session key.
CREATE TABLE toolgate_fleet.credentials (
    workspace text NOT NULL,
    name text NOT NULL,
    content bytea,                      -- NULL if it was deleted
    PRIMARY KEY (workspace, name)
);
-- A server that renews a sign-in locks its row, beside the content, which others may read meanwhile.
CREATE TABLE toolgate_fleet.credential_locks (
    workspace text NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (workspace, name)
);
