//! Numbers of calls and their durations, from the tables that count calls by the hour.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rusqlite::params_from_iter;
use rusqlite::types::Value as SqlValue;
use toolgate_contract::fold_name;

use super::{AuditIndex, HOUR_S};
use crate::audit::call_record::AuditRecordFilter;

/// Property of calls by which statistics are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallGrouping {
    /// Groups calls by the name of their caller.
    Caller,
    /// Groups calls by the name of the called tool.
    Tool,
    /// Groups calls by their outcome.
    Outcome,
    /// Groups calls by day in UTC.
    Day,
    /// Groups calls by hour in UTC.
    Hour,
}

impl CallGrouping {
    /// Returns the SQL column of the property, or `NULL` for a day or an hour.
    fn column(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Tool => "tool",
            Self::Outcome => "outcome",
            Self::Day | Self::Hour => "NULL",
        }
    }

    /// Returns the name of the group to which an hour belongs, if calls are grouped by day or hour.
    /// `hour` counts the hours since 1970.
    fn time_name(self, hour: i64) -> Option<String> {
        let format = match self {
            Self::Caller | Self::Tool | Self::Outcome => return None,
            Self::Day => "%Y-%m-%d",
            Self::Hour => "%Y-%m-%dT%H:00Z",
        };
        let start = Timestamp::from_second(hour.saturating_mul(HOUR_S)).unwrap_or(Timestamp::MIN);
        Some(start.strftime(format).to_string())
    }
}

/// Counts and durations of the calls in one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallStatistics {
    /// Values of the properties by which the calls are grouped.
    pub group: Vec<String>,
    /// Number of calls in the group.
    pub calls: u64,
    /// Number of calls in the group that did not end with `ok`.
    pub failed: u64,
    /// Sum of the durations of all calls in microseconds.
    pub total_us: u64,
    /// Duration of the longest call in microseconds.
    pub longest_us: u64,
    /// Number of calls in each histogram range of durations, by the number of the range.
    buckets: BTreeMap<u32, u64>,
}

impl CallStatistics {
    /// Returns the mean duration of a call in microseconds, or 0 if there was no call.
    pub fn mean_us(&self) -> u64 {
        self.total_us.checked_div(self.calls).unwrap_or_default()
    }

    /// Returns the duration in microseconds that `percent` of the calls did not exceed, with an
    /// error of at most 13 %. Returns the longest duration if the ranges of durations are not
    /// known.
    pub fn percentile_us(&self, percent: u64) -> u64 {
        let rank = self.calls.saturating_mul(percent).div_ceil(100).max(1);
        let mut counted = 0;
        for (bucket, calls) in &self.buckets {
            counted += calls;
            if counted >= rank {
                return bucket_middle(*bucket).min(self.longest_us);
            }
        }
        self.longest_us
    }

    /// Adds the counts and durations of the group `other` to this group.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.total_us = self.total_us.saturating_add(other.total_us);
        self.longest_us = self.longest_us.max(other.longest_us);
        for (bucket, calls) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += calls;
        }
    }
}

/// Returns the number of the histogram range that contains a duration. Each power of two has four
/// ranges.
pub(super) fn duration_bucket(duration_us: u64) -> u32 {
    let duration_us = duration_us.max(1);
    let exponent = duration_us.ilog2();
    let quarter = match exponent.checked_sub(2) {
        Some(shift) => duration_us >> shift,
        None => duration_us << (2 - exponent),
    };
    exponent * 4 + u32::try_from(quarter & 3).unwrap_or_default()
}

/// Returns the middle of the histogram range `bucket`, in microseconds.
fn bucket_middle(bucket: u32) -> u64 {
    let (exponent, quarter) = ((bucket / 4).min(63), u128::from(bucket % 4));
    // In eighths, so that the middle is a whole number.
    let eighths = ((4 + quarter) * 2 + 1) << exponent;
    u64::try_from(eighths >> 3).unwrap_or(u64::MAX)
}

impl AuditIndex {
    /// Returns statistics of the calls that `filter` selects, grouped by the properties `by`, most
    /// calls first. If the first property is a time, the oldest is first. Times are rounded down to
    /// the hour. Subjects are not counted, so a filter by subject selects all calls.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn statistics(
        &self,
        by: &[CallGrouping],
        filter: &AuditRecordFilter,
    ) -> rusqlite::Result<Vec<CallStatistics>> {
        let has_caller = filter.caller.is_some() || by.contains(&CallGrouping::Caller);
        let table = if has_caller { "hours" } else { "tool_hours" };
        let (condition, values) = conditions(filter);
        let sql = format!(
            "SELECT hour, bucket, CASE WHEN outcome = 'ok' THEN 0 ELSE calls END, calls, \
             duration_us, longest_us{} FROM {table} WHERE {condition}",
            columns(by)
        );
        self.sum_groups(by, &sql, values)
    }

    /// Returns statistics of all calls since the hour of `since`, grouped by caller and time,
    /// without the durations that percentiles need. The query reads few rows, even if there are
    /// many tools.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn caller_totals(
        &self,
        by: &[CallGrouping],
        since: Timestamp,
    ) -> rusqlite::Result<Vec<CallStatistics>> {
        let sql = format!(
            "SELECT hour, NULL, failed, calls, duration_us, longest_us{} \
             FROM caller_hours WHERE hour >= ?",
            columns(by)
        );
        self.sum_groups(by, &sql, vec![since.as_second().div_euclid(HOUR_S).into()])
    }

    /// Returns the distinct outcomes of the calls since the hour of `since`, in alphabetical order.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn outcomes(&self, since: Timestamp) -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT outcome FROM outcomes WHERE hour >= ? ORDER BY outcome";
        let mut statement = self.db.prepare_cached(sql)?;
        let hour = since.as_second().div_euclid(HOUR_S);
        statement.query_map([hour], |row| row.get(0))?.collect()
    }

    /// Adds up the rows of the query `sql`: hour, range of durations, failed calls, calls, sum and
    /// maximum of durations, and a column for each property.
    fn sum_groups(
        &self,
        by: &[CallGrouping],
        sql: &str,
        values: Vec<SqlValue>,
    ) -> rusqlite::Result<Vec<CallStatistics>> {
        let mut groups: BTreeMap<Vec<String>, CallStatistics> = BTreeMap::new();
        if by.is_empty() {
            groups.insert(Vec::new(), CallStatistics::default());
        }
        let mut statement = self.db.prepare_cached(sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            let hour: i64 = row.get(0)?;
            let name = |(at, group): (usize, &CallGrouping)| match group.time_name(hour) {
                Some(name) => Ok(name),
                None => row.get::<_, String>(6 + at),
            };
            let group = by.iter().enumerate().map(name).collect::<rusqlite::Result<Vec<_>>>()?;
            let number = |at: usize| row.get::<_, i64>(at).map(i64::cast_unsigned);
            let calls = number(3)?;
            let bucket: Option<u32> = row.get(1)?;
            let one = CallStatistics {
                group: Vec::new(),
                calls,
                failed: number(2)?,
                total_us: number(4)?,
                longest_us: number(5)?,
                buckets: bucket.map(|bucket| (bucket, calls)).into_iter().collect(),
            };
            groups.entry(group).or_default().add(&one);
        }
        let groups = groups.into_iter().map(|(group, one)| CallStatistics { group, ..one });
        let mut groups: Vec<_> = groups.collect();
        if !matches!(by, [CallGrouping::Day | CallGrouping::Hour, ..]) {
            groups.sort_by_key(|one| std::cmp::Reverse(one.calls));
        }
        Ok(groups)
    }
}

/// Returns the SQL columns of the properties in `by`, each preceded by a comma.
fn columns(by: &[CallGrouping]) -> String {
    by.iter().map(|group| format!(", {}", group.column())).collect()
}

/// Returns the SQL condition of `filter` for a table of calls by hour, and its values.
fn conditions(filter: &AuditRecordFilter) -> (String, Vec<SqlValue>) {
    let mut all = vec!["1"];
    let mut values: Vec<SqlValue> = Vec::new();
    if let Some(since) = filter.since {
        all.push("hour >= ?");
        values.push(since.as_second().div_euclid(HOUR_S).into());
    }
    if let Some(caller) = &filter.caller {
        all.push("caller = ?");
        values.push(caller.clone().into());
    }
    if let Some(outcome) = &filter.outcome {
        all.push("outcome = ?");
        values.push(outcome.clone().into());
    }
    if filter.failed {
        all.push("outcome <> 'ok'");
    }
    if let Some(tool) = &filter.tool {
        let folded = fold_name(tool);
        match folded.strip_suffix('*') {
            Some(start) => {
                all.push("substr(tool, 1, ?) = ?");
                let length = start.chars().count();
                values.push(i64::try_from(length).unwrap_or(i64::MAX).into());
                values.push(start.to_owned().into());
            }
            None => {
                all.push("tool = ?");
                values.push(folded.into_owned().into());
            }
        }
    }
    (all.join(" AND "), values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_range_differs_little_from_each_duration_in_it() {
        for duration in (1..2000).chain([123_456, 10_000_000, u64::MAX / 3, u64::MAX]) {
            let middle = bucket_middle(duration_bucket(duration));
            assert!(middle.abs_diff(duration) <= duration / 8 + 1, "{duration}: {middle}");
        }
    }

    #[test]
    fn percentiles_are_about_those_of_all_durations() {
        let mut all = CallStatistics::default();
        for duration in 1..=1000 {
            let buckets = BTreeMap::from([(duration_bucket(duration), 1)]);
            let none = CallStatistics::default();
            all.add(&CallStatistics { calls: 1, longest_us: duration, buckets, ..none });
        }
        let (median, p99) = (all.percentile_us(50), all.percentile_us(99));
        assert!((440..=560).contains(&median), "{median}");
        assert!((870..=1000).contains(&p99), "{p99}");
        assert_eq!(CallStatistics::default().percentile_us(50), 0);
    }
}
