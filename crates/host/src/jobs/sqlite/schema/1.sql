-- Times are nanoseconds since 1970, durations nanoseconds.

CREATE TABLE jobs (
    n INTEGER PRIMARY KEY,          -- the order in which they were accepted
    id BLOB NOT NULL UNIQUE,        -- 16 bytes, big-endian
    tool TEXT NOT NULL,
    caller TEXT NOT NULL,
    dialect TEXT NOT NULL,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    owner INTEGER NOT NULL,         -- the server that runs it: the name of its file in servers/
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    started INTEGER,
    ended INTEGER,                  -- NULL as long as it has not ended
    keep INTEGER NOT NULL,
    until INTEGER,                  -- ended + keep
    attempts INTEGER NOT NULL DEFAULT 0,
    progress REAL NOT NULL DEFAULT 0,
    message TEXT,
    last_event INTEGER NOT NULL,
    artefacts TEXT NOT NULL DEFAULT '[]',   -- JSON
    outcome TEXT                            -- JSON
) STRICT;

CREATE INDEX jobs_of_caller ON jobs (caller, n);
CREATE INDEX jobs_of_owner ON jobs (owner) WHERE ended IS NULL;
CREATE INDEX jobs_by_end ON jobs (ended) WHERE ended IS NOT NULL;
CREATE INDEX jobs_by_until ON jobs (until) WHERE until IS NOT NULL;

-- Beside the jobs, because a job is written often and its input, which may be large, once.
CREATE TABLE inputs (
    job INTEGER PRIMARY KEY,
    input TEXT NOT NULL             -- JSON
) STRICT;

-- One number as key: in a table WITHOUT ROWID, to find the place of a row SQLite reads all of
-- the rows beside it, however long they are.
CREATE TABLE events (
    place INTEGER PRIMARY KEY,      -- the job's n << 32, + the event's number
    at INTEGER NOT NULL,
    what TEXT NOT NULL              -- JSON
) STRICT;

-- Jobs that are gone, whose events and inputs are not yet.
CREATE TABLE forgotten (job INTEGER PRIMARY KEY) STRICT;
