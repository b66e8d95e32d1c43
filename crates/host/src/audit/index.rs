//! SQLite index of the audit log, for statistics and searches. The index can be rebuilt from the
//! log at any time.

mod record_search;
mod statistics;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::call_record::ParsedAuditRecord;
use super::file::{first_line, with_suffix};
use super::log_reader::AuditLogFollower;
pub use record_search::FoundAuditRecords;
use statistics::duration_bucket;
pub use statistics::{CallGrouping, CallStatistics};

/// Version of the audit index's tables. An index of another version is rebuilt.
const VERSION: i64 = 3;
/// Longest wait for another process that updates the audit index.
const BUSY_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of groups of calls that are counted in memory before they are stored.
const UNSTORED_GROUPS_MAX: usize = 4096;
/// Length of an hour in seconds.
const HOUR_S: i64 = 3600;

/// SQL that creates the tables of the audit index. Calls are counted by the hour in three tables,
/// so that no statistics page reads more rows than its answer needs. The table `outcomes` holds the
/// hour of the latest call with each outcome.
const TABLES: &str = "
CREATE TABLE place (id INTEGER PRIMARY KEY CHECK (id = 0), inode INTEGER, bytes INTEGER, mac TEXT);
CREATE TABLE records (seq INTEGER PRIMARY KEY, ended INTEGER NOT NULL, caller TEXT NOT NULL,
  tool TEXT NOT NULL, outcome TEXT NOT NULL, line TEXT NOT NULL);
CREATE INDEX records_by_caller ON records (caller, seq);
CREATE INDEX records_by_tool ON records (tool, seq);
CREATE INDEX records_failed ON records (seq) WHERE outcome <> 'ok';
CREATE INDEX records_failed_by_tool ON records (tool, seq) WHERE outcome <> 'ok';
CREATE TABLE hours (hour INTEGER NOT NULL, caller TEXT NOT NULL, tool TEXT NOT NULL,
  outcome TEXT NOT NULL, bucket INTEGER NOT NULL, calls INTEGER NOT NULL,
  duration_us INTEGER NOT NULL, longest_us INTEGER NOT NULL,
  PRIMARY KEY (hour, caller, tool, outcome, bucket)) WITHOUT ROWID;
CREATE TABLE tool_hours (hour INTEGER NOT NULL, tool TEXT NOT NULL, outcome TEXT NOT NULL,
  bucket INTEGER NOT NULL, calls INTEGER NOT NULL, duration_us INTEGER NOT NULL,
  longest_us INTEGER NOT NULL, PRIMARY KEY (hour, tool, outcome, bucket)) WITHOUT ROWID;
CREATE TABLE caller_hours (hour INTEGER NOT NULL, caller TEXT NOT NULL, failed INTEGER NOT NULL,
  calls INTEGER NOT NULL, duration_us INTEGER NOT NULL, longest_us INTEGER NOT NULL,
  PRIMARY KEY (hour, caller)) WITHOUT ROWID;
CREATE TABLE outcomes (outcome TEXT PRIMARY KEY, hour INTEGER NOT NULL) WITHOUT ROWID;
";

/// Names of the tables in the audit index.
const TABLE_NAMES: [&str; 6] =
    ["place", "records", "hours", "tool_hours", "caller_hours", "outcomes"];

/// SQL statements that add calls to the tables of calls by hour. Their parameters are the hour (1),
/// caller (2), tool (3), outcome (4), histogram range of the durations (5), sum of the durations
/// (6), number of calls (7) and longest duration (8).
const COUNT_CALLS: [&str; 3] = [
    "INSERT INTO hours (hour, caller, tool, outcome, bucket, calls, duration_us, longest_us)
     VALUES (?1, ?2, ?3, ?4, ?5, ?7, ?6, ?8) ON CONFLICT DO UPDATE SET calls = calls + ?7,
     duration_us = duration_us + ?6, longest_us = max(longest_us, ?8)",
    "INSERT INTO tool_hours (hour, tool, outcome, bucket, calls, duration_us, longest_us)
     VALUES (?1, ?3, ?4, ?5, ?7, ?6, ?8) ON CONFLICT DO UPDATE SET calls = calls + ?7,
     duration_us = duration_us + ?6, longest_us = max(longest_us, ?8)",
    "INSERT INTO caller_hours (hour, caller, failed, calls, duration_us, longest_us)
     VALUES (?1, ?2, (?4 <> 'ok') * ?7, ?7, ?6, ?8) ON CONFLICT DO UPDATE SET calls = calls + ?7,
     failed = failed + (?4 <> 'ok') * ?7, duration_us = duration_us + ?6,
     longest_us = max(longest_us, ?8)",
];

/// SQL statement that records the hour (2) of a call with an outcome (1).
const NOTE_OUTCOME: &str = "INSERT INTO outcomes (outcome, hour) VALUES (?1, ?2)
     ON CONFLICT DO UPDATE SET hour = max(hour, ?2)";

/// SQLite index of one audit log, for searches and statistics.
pub struct AuditIndex {
    log: PathBuf,
    db: Connection,
}

impl fmt::Debug for AuditIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditIndex").field("log", &self.log).finish_non_exhaustive()
    }
}

impl AuditIndex {
    /// Opens the index of the audit log at `log`, and creates the index file beside the log if
    /// needed.
    ///
    /// # Errors
    /// The file beside the log cannot be written.
    pub fn open(log: &Path) -> rusqlite::Result<Self> {
        let db = Connection::open(Self::path(log))?;
        db.busy_timeout(BUSY_WAIT)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        // A lost index is rebuilt, so no write waits for the disk.
        db.pragma_update(None, "synchronous", "OFF")?;
        // A confined server may have no folder for the temporary file of a large change, such as
        // the removal of all records.
        db.pragma_update(None, "temp_store", "MEMORY")?;
        let mut index = Self { log: log.to_owned(), db };
        index.create_tables()?;
        Ok(index)
    }

    /// Returns the path of the audit index for the log at `log`.
    pub fn path(log: &Path) -> PathBuf {
        with_suffix(log, ".index")
    }

    fn create_tables(&mut self) -> rusqlite::Result<()> {
        let transaction =
            self.db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let version: i64 =
            transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version != VERSION {
            for table in TABLE_NAMES {
                transaction.execute_batch(&format!("DROP TABLE IF EXISTS {table}"))?;
            }
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        transaction.commit()
    }

    /// Adds the audit records that were written since the last update. If the log was replaced, the
    /// index is rebuilt.
    ///
    /// # Errors
    /// The index cannot be written. A log that cannot be read adds nothing.
    pub fn update(&mut self) -> rusqlite::Result<()> {
        self.update_until(|| false).map(drop)
    }

    /// Adds new audit records like [`update`](Self::update), but stops after `time`. Returns true
    /// if the index contains all records.
    ///
    /// # Errors
    /// The index cannot be written. A log that cannot be read adds nothing.
    pub fn update_for(&mut self, time: Duration) -> rusqlite::Result<bool> {
        let begun = Instant::now();
        self.update_until(|| begun.elapsed() >= time)
    }

    fn update_until(&mut self, is_over: impl Fn() -> bool) -> rusqlite::Result<bool> {
        let log = self.log.clone();
        let transaction =
            self.db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut follower =
            known_place(&transaction, &log)?.unwrap_or_else(|| AuditLogFollower::from_start(&log));
        if follower.position() == (0, 0) && !continues_after_gap(&transaction, &follower)? {
            for table in &TABLE_NAMES[1..] {
                transaction.execute_batch(&format!("DELETE FROM {table}"))?;
            }
        }
        let before = follower.position();
        let mut last_mac = None;
        let mut result = Ok(());
        let mut counts = UnstoredCallCounts::default();
        let add = |line: &[u8]| {
            let Some(record) = ParsedAuditRecord::parse(line) else { return };
            let Some(seq) = record.seq else { return };
            if result.is_ok() {
                result = add_record(&transaction, &mut counts, &record, seq, line);
            }
            last_mac = record.mac;
        };
        let read = follower.read_new_until(add, is_over);
        result?;
        counts.store(&transaction)?;
        let is_complete = read.unwrap_or_else(|err| {
            if err.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!("the audit log {} cannot be indexed: {err}", log.display());
            }
            true
        });
        let (inode, bytes) = follower.position();
        if (inode, bytes) != before {
            transaction.execute(
                "INSERT INTO place VALUES (0, ?1, ?2, ?3) ON CONFLICT (id) DO UPDATE \
                 SET inode = ?1, bytes = ?2, mac = coalesce(?3, mac)",
                params![inode.cast_signed(), bytes.cast_signed(), last_mac],
            )?;
        }
        if inode != before.0
            && let Some(first) = first_number(&follower)
        {
            remove_before(&transaction, first)?;
        }
        transaction.commit()?;
        Ok(is_complete)
    }

    /// Returns the audit record at the position `seq` of the log.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn record(&self, seq: u64) -> rusqlite::Result<Option<ParsedAuditRecord>> {
        let sql = "SELECT line FROM records WHERE seq = ?";
        let mut statement = self.db.prepare_cached(sql)?;
        let line = statement.query_row([seq.cast_signed()], |row| row.get::<_, String>(0));
        Ok(line.optional()?.and_then(|line| ParsedAuditRecord::parse(line.as_bytes())))
    }
}

/// Returns a reader at the position up to which the log at `log` is indexed. Returns `None` if
/// nothing is indexed yet or the log was replaced.
fn known_place(
    transaction: &Transaction<'_>,
    log: &Path,
) -> rusqlite::Result<Option<AuditLogFollower>> {
    let place = transaction.query_row("SELECT inode, bytes, mac FROM place", [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, Option<String>>(2)?))
    });
    let Some((inode, bytes, mac)) = place.optional()? else { return Ok(None) };
    let follower = AuditLogFollower::resume(log, (inode.cast_unsigned(), bytes.cast_unsigned()));
    let is_known = follower.is_position_kept()
        && mac.is_none_or(|mac| follower.ends_with(mac.as_bytes()).unwrap_or(false));
    Ok(is_known.then_some(follower))
}

/// Returns the number of the first record in the oldest file of the log that `follower` reads.
fn first_number(follower: &AuditLogFollower) -> Option<u64> {
    let first = follower.oldest_file().and_then(|path| first_line(&path).ok()?)?;
    ParsedAuditRecord::parse(&first)?.seq
}

/// Returns true if the log of `follower` continues the indexed log, but no longer contains the
/// record after the last indexed one.
fn continues_after_gap(
    transaction: &Transaction<'_>,
    follower: &AuditLogFollower,
) -> rusqlite::Result<bool> {
    let last: Option<i64> =
        transaction.query_row("SELECT max(seq) FROM records", [], |row| row.get(0))?;
    let last = last.map(i64::cast_unsigned);
    Ok(last.is_some_and(|last| first_number(follower).is_some_and(|first| first > last)))
}

/// Numbers and durations of calls that are not yet in the tables of calls by hour. Each group of
/// calls is added to the tables once.
#[derive(Default)]
struct UnstoredCallCounts(HashMap<CountedCallGroup, CountedCalls>);

/// Group of calls that have a row in the table `hours`.
#[derive(PartialEq, Eq, Hash)]
struct CountedCallGroup {
    /// Number of hours since 1970.
    hour: i64,
    caller: String,
    tool: String,
    outcome: String,
    /// Histogram range of the durations.
    bucket: u32,
}

/// Number of calls in a group, with the sum and the maximum of their durations in microseconds.
#[derive(Default)]
struct CountedCalls {
    calls: i64,
    duration_us: i64,
    longest_us: i64,
}

impl UnstoredCallCounts {
    /// Adds the counts to the tables, and clears them.
    fn store(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        for (group, counted) in self.0.drain() {
            let CountedCallGroup { hour, caller, tool, outcome, bucket } = group;
            let CountedCalls { calls, duration_us, longest_us } = counted;
            for sql in COUNT_CALLS {
                transaction.prepare_cached(sql)?.execute(params![
                    hour,
                    caller,
                    tool,
                    outcome,
                    bucket,
                    duration_us,
                    calls,
                    longest_us,
                ])?;
            }
            transaction.prepare_cached(NOTE_OUTCOME)?.execute(params![outcome, hour])?;
        }
        Ok(())
    }
}

/// Adds `record`, whose text is `line`, to the index, and counts its call in `counts`.
fn add_record(
    transaction: &Transaction<'_>,
    counts: &mut UnstoredCallCounts,
    record: &ParsedAuditRecord,
    seq: u64,
    line: &[u8],
) -> rusqlite::Result<()> {
    let tool = record.folded_tool();
    let duration_us = i64::try_from(record.duration_us).unwrap_or(i64::MAX);
    let ended = record.ts.as_microsecond().saturating_add(duration_us);
    let line = String::from_utf8_lossy(line);
    let ParsedAuditRecord { caller, outcome, .. } = record;
    let sql = "INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?, ?, ?)";
    let added = transaction.prepare_cached(sql)?.execute(params![
        seq.cast_signed(),
        ended,
        caller,
        tool,
        outcome,
        line,
    ])?;
    if added == 0 {
        return Ok(());
    }
    let group = CountedCallGroup {
        hour: record.ts.as_second().div_euclid(HOUR_S),
        caller: caller.clone(),
        tool,
        outcome: outcome.clone(),
        bucket: duration_bucket(record.duration_us),
    };
    let counted = counts.0.entry(group).or_default();
    counted.calls += 1;
    counted.duration_us = counted.duration_us.saturating_add(duration_us);
    counted.longest_us = counted.longest_us.max(duration_us);
    if counts.0.len() >= UNSTORED_GROUPS_MAX { counts.store(transaction) } else { Ok(()) }
}

/// Removes the audit records before the position `first`, which the log no longer contains.
fn remove_before(transaction: &Transaction<'_>, first: u64) -> rusqlite::Result<()> {
    let removed =
        transaction.execute("DELETE FROM records WHERE seq < ?", [first.cast_signed()])?;
    if removed > 0 {
        // The hour of the oldest record that is kept stays whole.
        let oldest = "SELECT ended / 3600000000 FROM records ORDER BY seq LIMIT 1";
        for table in &TABLE_NAMES[2..] {
            let sql = format!("DELETE FROM {table} WHERE hour < ({oldest})");
            transaction.execute(&sql, [])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use jiff::Timestamp;

    use super::super::call_record::AuditRecordFilter;
    use super::super::file::rotated_path;
    use super::*;

    fn append(path: &Path, first: u64, count: u64, outcome: &str) {
        let mut file = std::fs::File::options().create(true).append(true).open(path).expect("it");
        for seq in first..first + count {
            let ts = Timestamp::from_second(i64::try_from(seq).expect("few") * 60).expect("a time");
            let caller = if seq % 2 == 0 { "ada" } else { "bob" };
            let line = format!(
                "{{\"ts\":\"{ts}\",\"caller\":\"{caller}\",\"tool\":\"files.read\",\
                 \"outcome\":\"{outcome}\",\"duration_us\":{seq},\"seq\":{seq},\"mac\":\"{seq:064}\"}}\n"
            );
            file.write_all(line.as_bytes()).expect("written");
        }
    }

    fn totals(index: &AuditIndex, filter: &AuditRecordFilter) -> (u64, u64) {
        let total = index.statistics(&[], filter).expect("read");
        (total[0].calls, total[0].failed)
    }

    #[test]
    fn an_index_follows_the_log_across_a_rotation_and_counts_each_record_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("a.jsonl");
        append(&log, 1, 10, "ok");
        let mut index = AuditIndex::open(&log).expect("an index");
        index.update().expect("updated");
        append(&log, 11, 5, "failed");
        std::fs::rename(&log, rotated_path(&log, 1)).expect("renamed");
        append(&log, 16, 5, "ok");
        for _ in 0..2 {
            index.update().expect("updated");
        }
        assert_eq!(totals(&index, &AuditRecordFilter::default()), (20, 5));
        let ada =
            AuditRecordFilter { caller: Some("ada".to_owned()), ..AuditRecordFilter::default() };
        assert_eq!(totals(&index, &ada), (10, 2));
        let failed = AuditRecordFilter { failed: true, ..AuditRecordFilter::default() };
        let newest = index.records(&failed, Some(15), 2).expect("read");
        assert_eq!(newest.next, Some(13));
        assert_eq!(
            newest.records.iter().map(|record| record.seq).collect::<Vec<_>>(),
            [Some(14), Some(13)]
        );
        for (tool, expected) in [("files.read", &[Some(14), Some(12)][..]), ("files.list", &[][..])]
        {
            let tool = Some(tool.to_owned());
            let all = AuditRecordFilter { tool, failed: true, ..ada.clone() };
            let found = index.records(&all, None, 10).expect("read").records;
            let found: Vec<_> = found.iter().map(|record| record.seq).collect();
            assert_eq!(found, expected);
        }
        let by = index.statistics(
            &[CallGrouping::Tool, CallGrouping::Outcome],
            &AuditRecordFilter::default(),
        );
        let by = by.expect("read");
        assert_eq!(by[0].group, ["files_read", "ok"]);
        assert_eq!(index.outcomes(Timestamp::UNIX_EPOCH).expect("read"), ["failed", "ok"]);
        let later = Timestamp::from_second(2 * HOUR_S).expect("a time");
        assert!(index.outcomes(later).expect("read").is_empty());
        assert_eq!((by[0].calls, by[1].calls, by[1].longest_us), (15, 5, 15));
        let callers = index.caller_totals(&[CallGrouping::Caller], Timestamp::UNIX_EPOCH);
        let callers = callers.expect("read");
        assert_eq!(
            (callers[0].group[0].as_str(), callers[0].calls, callers[0].failed),
            ("ada", 10, 2)
        );
        assert_eq!(index.record(7).expect("read").and_then(|record| record.seq), Some(7));
    }

    #[test]
    fn an_index_that_is_updated_in_short_steps_counts_each_record_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("a.jsonl");
        append(&log, 1, 20, "ok");
        let mut index = AuditIndex::open(&log).expect("an index");
        let mut steps = 1;
        while !index.update_for(Duration::ZERO).expect("updated") {
            steps += 1;
        }
        assert_eq!(steps, 21, "one record a step, and one step without a record");
        assert_eq!(totals(&index, &AuditRecordFilter::default()), (20, 0));
    }

    #[test]
    fn an_index_of_a_replaced_log_is_rebuilt() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("a.jsonl");
        append(&log, 1, 10, "ok");
        let mut index = AuditIndex::open(&log).expect("an index");
        index.update().expect("updated");
        std::fs::remove_file(&log).expect("removed");
        append(&log, 100, 30, "failed");
        index.update().expect("updated");
        assert_eq!(totals(&index, &AuditRecordFilter::default()), (30, 30));
    }
}
