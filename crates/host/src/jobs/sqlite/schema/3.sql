-- How the caller is known, and what it might when it called.
ALTER TABLE jobs ADD COLUMN standing TEXT;   -- JSON; NULL where its name says all
