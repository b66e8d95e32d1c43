-- What can be asked of whoever called, and what they answered before the job was made.
ALTER TABLE inputs ADD COLUMN asking TEXT;   -- JSON; NULL where there is nothing of it
