//! Prints a line on standard error for each call that ends.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use toolgate_contract::printable::escape_line;
use toolgate_host::{Host, ParsedAuditRecord};

use super::print_line;
use crate::config::CallLogLineFormat;

/// Maximum number of lines about calls that are printed in one second. Further calls in that second
/// are only counted.
const LINES_PER_SECOND: usize = 100;
/// Width of the column with the caller's name, in characters.
const CALLER_WIDTH: usize = 10;
/// Width of the column with the tool's name, in characters.
const TOOL_WIDTH: usize = 18;

/// Prints a line for each call of `host` that ends, in the format `lines`, until the returned
/// future is dropped.
pub fn print_calls(
    host: &Host,
    lines: CallLogLineFormat,
) -> impl Future<Output = ()> + Send + use<> {
    let records = (lines != CallLogLineFormat::Quiet).then(|| host.audit().subscribe());
    async move {
        match records {
            Some(records) => print_records(records, lines).await,
            None => std::future::pending().await,
        }
    }
}

async fn print_records(mut records: Receiver<Arc<str>>, form: CallLogLineFormat) {
    let mut budget = CallLineRateLimiter::new();
    loop {
        let next = match budget.omitted {
            0 => Some(records.recv().await),
            // Reports omitted calls even if no other call follows.
            _ => tokio::time::timeout(budget.left(), records.recv()).await.ok(),
        };
        if budget.left().is_zero() {
            let omitted = budget.renew();
            if omitted > 0 {
                print_line(&format!("{omitted} more calls, which `toolgate audit tail` shows"));
            }
        }
        match next {
            Some(Ok(_)) if !budget.take() => {}
            Some(Ok(record)) if form == CallLogLineFormat::Json => print_line(&record),
            Some(Ok(record)) => {
                if let Some(record) = ParsedAuditRecord::parse(record.as_bytes()) {
                    print_line(&call_line(&record, LogTimeStyle::Clock));
                }
            }
            Some(Err(RecvError::Lagged(missed))) => {
                budget.omitted += usize::try_from(missed).unwrap_or(usize::MAX);
            }
            Some(Err(RecvError::Closed)) => return std::future::pending().await,
            None => {}
        }
    }
}

/// Limits the lines about calls in one second: counts the lines that were printed and omitted.
struct CallLineRateLimiter {
    since: Instant,
    printed: usize,
    omitted: usize,
}

impl CallLineRateLimiter {
    fn new() -> Self {
        Self { since: Instant::now(), printed: 0, omitted: 0 }
    }

    /// Returns the time until the current second ends and further lines about calls may be printed.
    fn left(&self) -> Duration {
        Duration::from_secs(1).saturating_sub(self.since.elapsed())
    }

    /// Resets the counters for a new second. Returns the number of calls that were omitted in the
    /// previous second.
    fn renew(&mut self) -> usize {
        std::mem::replace(self, Self::new()).omitted
    }

    /// Counts a line about a call. Returns true if the line may be printed, and false if it exceeds
    /// the limit and is omitted.
    fn take(&mut self) -> bool {
        let may_print = self.printed < LINES_PER_SECOND;
        let counter = if may_print { &mut self.printed } else { &mut self.omitted };
        *counter += 1;
        may_print
    }
}

/// Format of the time at the start of a line about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogTimeStyle {
    /// Time of day in UTC, without the date.
    Clock,
    /// Date and time in UTC.
    Date,
}

/// Returns a human-readable line about the call `record`: time, caller, tool, subject, outcome and
/// duration.
pub fn call_line(record: &ParsedAuditRecord, style: LogTimeStyle) -> String {
    let time = match style {
        LogTimeStyle::Clock => record.ts.strftime("%H:%M:%S"),
        LogTimeStyle::Date => record.ts.strftime("%Y-%m-%d %H:%M:%S"),
    };
    let caller = escape_line(&record.caller);
    let tool = escape_line(&record.tool);
    let mut line = format!("{time}  {caller:CALLER_WIDTH$}  {tool:TOOL_WIDTH$}");
    if let Some(subject) = &record.subject {
        let _ = write!(line, "  {}", escape_line(subject));
    }
    let _ = write!(line, "  {}", record.outcome);
    if let (false, Some(rule)) = (record.is_ok(), &record.rule)
        && record.decision.as_deref() == Some("deny")
    {
        let _ = write!(line, " (rule {})", escape_line(rule));
    }
    if let Some(cause) = &record.cause {
        let _ = write!(line, " ({})", escape_line(cause));
    }
    let _ = write!(line, "  {}", duration_text(record.duration_us));
    line
}

/// Formats a duration in microseconds as text: in milliseconds or, from 10 s on, in seconds.
pub fn duration_text(duration_us: u64) -> String {
    match duration_us {
        0..1000 => "<1 ms".to_owned(),
        1000..10_000_000 => format!("{} ms", duration_us / 1000),
        _ => format!("{} s", duration_us / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_the_subject_and_the_reason_without_control_characters() {
        let record = ParsedAuditRecord::parse(
            br#"{"ts":"2026-01-02T03:04:05Z","caller":"ada","tool":"exec_run","subject":"rm\u001b[2J x",
            "decision":"deny","rule":"no-rm","outcome":"not_allowed","duration_us":1500}"#,
        );
        let line = call_line(&record.expect("a record"), LogTimeStyle::Clock);
        assert!(line.starts_with("03:04:05  ada         exec_run            rm"), "{line}");
        assert!(line.ends_with("  not_allowed (rule no-rm)  1 ms"), "{line}");
        assert!(!line.contains('\u{1b}'), "{line}");
    }
}
