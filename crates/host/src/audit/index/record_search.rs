//! Searches records from the newest to the oldest, in bounded time.

use std::time::{Duration, Instant};

use rusqlite::params_from_iter;
use rusqlite::types::Value as SqlValue;
use toolgate_contract::fold_name;

use super::AuditIndex;
use crate::audit::call_record::{AuditRecordFilter, ParsedAuditRecord, REFUSED};

/// Time after which a search of the audit log stops, so that a page of results is fast even if few
/// records match.
const SEARCH_TIME: Duration = Duration::from_millis(100);
/// Maximum time in microseconds by which the end of a call may precede the end of a call with an
/// earlier audit record.
const ORDER_SLACK_US: i64 = 60_000_000;

/// Audit records that a search found.
#[derive(Debug, Default)]
pub struct FoundAuditRecords {
    /// Matching records, newest first.
    pub records: Vec<ParsedAuditRecord>,
    /// Log position before which the search can continue. `None` if all records were searched.
    pub next: Option<u64>,
}

impl AuditIndex {
    /// Returns the newest `count` audit records that `filter` selects and that precede the position
    /// `before`, newest first. Returns fewer if the search takes long, see
    /// [`FoundAuditRecords::next`].
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn records(
        &self,
        filter: &AuditRecordFilter,
        before: Option<u64>,
        count: usize,
    ) -> rusqlite::Result<FoundAuditRecords> {
        // Only one condition with an index is left to SQLite, or two with an index of their own. It
        // would not return while it skips rows.
        let mut condition = "seq < ?".to_owned();
        let mut values: Vec<SqlValue> = vec![before.map_or(i64::MAX, u64::cast_signed).into()];
        let tool = filter.tool.as_deref().map(fold_name);
        let is_failed = filter.failed || filter.outcome.as_deref().is_some_and(|it| it != "ok");
        if let Some(caller) = &filter.caller {
            condition += " AND caller = ?";
            values.push(caller.clone().into());
        } else {
            if let Some(tool) = tool.as_deref().filter(|tool| !tool.ends_with('*')) {
                condition += " AND tool = ?";
                values.push(tool.to_owned().into());
            }
            if is_failed {
                condition += " AND outcome <> 'ok'";
            }
        }
        let earliest = filter.since.map(|since| since.as_microsecond() - ORDER_SLACK_US);
        let is_tool = |name: &str| {
            tool.as_deref().is_none_or(|tool| match tool.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == tool,
            })
        };
        // The decision is only in the line, so that every failed call may match `refused`.
        let is_wanted = |outcome: &str| {
            let wanted = filter.outcome.as_deref();
            wanted.is_none_or(|wanted| wanted == outcome || wanted == REFUSED)
        };
        let sql = format!(
            "SELECT seq, ended, tool, outcome, line FROM records WHERE {condition} \
             ORDER BY seq DESC"
        );
        let mut statement = self.db.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        let begun = Instant::now();
        let mut found = FoundAuditRecords::default();
        while let Some(row) = rows.next()? {
            let ended: i64 = row.get(1)?;
            if earliest.is_some_and(|earliest| ended < earliest) {
                break;
            }
            let outcome = row.get_ref(3)?.as_str()?;
            let is_outcome = is_wanted(outcome) && !(is_failed && outcome == "ok");
            // A line is parsed only if it may match.
            if is_outcome
                && is_tool(row.get_ref(2)?.as_str()?)
                && let Some(record) = ParsedAuditRecord::parse(row.get_ref(4)?.as_bytes()?)
                && filter.matches(&record)
            {
                found.records.push(record);
            }
            if found.records.len() >= count || begun.elapsed() > SEARCH_TIME {
                found.next = Some(row.get::<_, i64>(0)?.cast_unsigned());
                break;
            }
        }
        Ok(found)
    }
}
