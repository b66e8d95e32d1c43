-- Times are nanoseconds since 1970, durations nanoseconds. Leases are compared with the clock of
-- the database alone.

-- The servers that share the jobs. A server that restarts is another server.
CREATE TABLE toolgate_fleet.servers (
    id bigint PRIMARY KEY,              -- random
    workspace text NOT NULL,
    machine text NOT NULL,              -- the boot of the machine, on which its programs run
    mark text NOT NULL,                 -- identifies its programs
    version text NOT NULL,
    lease_until timestamptz NOT NULL,
    has_left boolean NOT NULL DEFAULT false
);

CREATE TABLE toolgate_fleet.jobs (
    n bigint GENERATED ALWAYS AS IDENTITY UNIQUE,   -- the order in which they were accepted
    id bytea PRIMARY KEY,               -- 16 bytes, big-endian
    workspace text NOT NULL,
    tool text NOT NULL,
    caller text NOT NULL,
    standing text,                      -- JSON; NULL if the caller's name says all
    dialect text NOT NULL,
    priority int NOT NULL,
    state text NOT NULL,
    owner bigint NOT NULL,              -- the server that runs it
    created bigint NOT NULL,
    updated bigint NOT NULL,
    started bigint,
    ended bigint,                       -- NULL as long as it has not ended
    keep bigint NOT NULL,
    until bigint,                       -- ended + keep
    attempts int NOT NULL DEFAULT 0,
    progress float8 NOT NULL DEFAULT 0,
    message text,                       -- JSON
    last_event bigint NOT NULL,
    questions text,                     -- JSON: open questions of a running job
    artefacts text NOT NULL DEFAULT '[]',   -- JSON
    outcome text                        -- JSON
) WITH (fillfactor = 70);

CREATE INDEX jobs_of_caller ON toolgate_fleet.jobs (workspace, caller, n);
CREATE INDEX jobs_of_workspace ON toolgate_fleet.jobs (workspace, n);
CREATE INDEX jobs_of_owner ON toolgate_fleet.jobs (owner) WHERE ended IS NULL;
CREATE INDEX jobs_by_end ON toolgate_fleet.jobs (workspace, ended) WHERE ended IS NOT NULL;
CREATE INDEX jobs_by_until ON toolgate_fleet.jobs (workspace, until) WHERE until IS NOT NULL;

-- Beside the jobs, because a job is written often and its input, which may be large, once.
CREATE TABLE toolgate_fleet.inputs (
    job bytea PRIMARY KEY,
    input text NOT NULL,                -- JSON
    asking text                         -- JSON: answers so far; NULL if there are none
);

CREATE TABLE toolgate_fleet.events (
    job bytea NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    what text NOT NULL,                 -- JSON
    PRIMARY KEY (job, seq)
);
ALTER TABLE toolgate_fleet.events ALTER COLUMN what SET STORAGE EXTERNAL;

-- Requests about a job from servers that do not run it, for the server that does.
CREATE TABLE toolgate_fleet.requests (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bytea NOT NULL,
    answers text                        -- JSON: new answers to its questions; NULL cancels the job
);
CREATE INDEX requests_of_job ON toolgate_fleet.requests (job);
CREATE UNIQUE INDEX one_cancellation ON toolgate_fleet.requests (job) WHERE answers IS NULL;

-- Used confirmations, until their request states expire.
CREATE TABLE toolgate_fleet.used_confirmations (
    workspace text NOT NULL,
    code bytea NOT NULL,                -- 32 bytes, which identify the request state
    until bigint NOT NULL,
    PRIMARY KEY (workspace, code)
);
