-- Contents that the servers share: files of jobs, and long results.

CREATE TABLE toolgate_fleet.files (
    id bytea PRIMARY KEY,               -- 16 bytes, a digest of what the file belongs to
    workspace text NOT NULL,
    job bytea,                          -- the job that made it; NULL for a long result
    bytes bigint NOT NULL,
    is_large boolean NOT NULL,         -- whether the content is in `fleet.files`
    is_complete boolean NOT NULL,       -- false as long as the content is being written
    until timestamptz,                  -- NULL as long as its job is kept
    removal_until timestamptz           -- until then, one server removes the content
);
CREATE INDEX files_of_job ON toolgate_fleet.files (job) WHERE job IS NOT NULL;
CREATE INDEX files_by_until ON toolgate_fleet.files (workspace, until) WHERE until IS NOT NULL;

-- Contents of files that are not large, in pieces of 1 MiB.
CREATE TABLE toolgate_fleet.file_chunks (
    file bytea NOT NULL REFERENCES toolgate_fleet.files ON DELETE CASCADE,
    number int NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (file, number)
);
ALTER TABLE toolgate_fleet.file_chunks ALTER COLUMN content SET STORAGE EXTERNAL;

CREATE TABLE toolgate_fleet.results (
    file bytea PRIMARY KEY REFERENCES toolgate_fleet.files ON DELETE CASCADE,
    workspace text NOT NULL,
    caller text NOT NULL,
    entry text NOT NULL,                -- JSON: its entry in the list of resources
    is_text boolean NOT NULL
);
CREATE INDEX results_of_caller ON toolgate_fleet.results (workspace, caller);

ALTER TABLE toolgate_fleet.jobs
    ADD COLUMN claimed timestamptz;     -- the last claim by a server that may not have begun it yet
