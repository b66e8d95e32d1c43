-- Requests about a job from servers that do not run it, for the server that does.
CREATE TABLE requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL,           -- the job's n
    answers TEXT                    -- JSON: new answers to its questions; NULL cancels the job
) STRICT;

CREATE INDEX requests_of_job ON requests (job);

-- Open questions of running jobs, so that every server can show them.
CREATE TABLE questions (
    job INTEGER PRIMARY KEY,        -- the job's n
    open TEXT NOT NULL              -- JSON
) STRICT;

-- Used confirmations, until their request states expire.
CREATE TABLE used_confirmations (
    code BLOB PRIMARY KEY,          -- 32 bytes, which identify the request state
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
