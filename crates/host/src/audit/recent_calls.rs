//! Keeps the arguments and the results of recent calls in memory, for the console.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde_json::Value;
use toolgate_contract::{Effects, lock_mutex};

use super::arguments::redacted_arguments;
use crate::secrets::{CallSecrets, SecretSet};

/// Maximum number of calls whose arguments and results are kept.
const CALLS_MAX: usize = 500;
/// Maximum total size of the kept arguments and results, in bytes.
const BYTES_MAX: usize = 2 << 20;
/// Longest kept text of one call's arguments, and of its result, in bytes.
const TEXT_BYTES_MAX: usize = 4 << 10;
/// Number of bytes that are kept from the start of a text that is too long. The other kept bytes
/// come from its end, because the end of a program's output shows why the program failed.
const START_BYTES: usize = 2 << 10;
/// Length of a result's start and of its end that are searched for secrets, in bytes.
const SEARCHED_BYTES_MAX: usize = 64 << 10;
/// Longest text in the kept arguments of a call, in characters.
const LONG_TEXT_CHARS: usize = 2000;
/// Longest text in the kept arguments of a call with many long texts, in characters.
const SHORT_TEXT_CHARS: usize = 200;

/// Arguments and result of a recent call, without secrets.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecentCallDetails {
    /// Arguments of the call as JSON. The text is not valid JSON if it was cut.
    pub arguments: Option<String>,
    /// Text of the call's result, or its error message. Long texts are cut in the middle.
    pub result: Option<String>,
    /// True if a unified diff in the result shows what the call changed.
    pub may_edit: bool,
    /// Numbers of added and removed lines, if the result is a unified diff of the call's changes.
    pub changed_lines: Option<ChangedLineCounts>,
}

/// Numbers of lines that a unified diff adds and removes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangedLineCounts {
    /// Number of added lines.
    pub added: usize,
    /// Number of removed lines.
    pub removed: usize,
}

impl RecentCallDetails {
    /// Creates the details of a call with `input` of a tool with these `effects`, without its
    /// result.
    pub(super) fn with_arguments(input: &Value, effects: Effects, secrets: &SecretSet) -> Self {
        let may_edit =
            matches!(effects, Effects::Adds | Effects::Changes) && input["dry_run"] != true;
        Self { arguments: Some(arguments_text(input, secrets)), may_edit, ..Self::default() }
    }

    /// Adds the text of the call's result without `secrets` and without the secrets `of_call`,
    /// which the call's input contains.
    pub(super) fn set_result(&mut self, text: &str, secrets: &SecretSet, of_call: &CallSecrets) {
        self.changed_lines = count_changed_lines(text).filter(|_| self.may_edit);
        let is_short = text.len() <= 2 * SEARCHED_BYTES_MAX;
        let clean = |part: &str| secrets.redact_input(of_call, part);
        self.result = Some(match is_short {
            true => cut(&clean(text)).into_owned(),
            // The middle of a long text is never shown, so it is not searched.
            false => {
                let start = &text[..text.floor_char_boundary(SEARCHED_BYTES_MAX)];
                let end = &text[text.floor_char_boundary(text.len() - SEARCHED_BYTES_MAX)..];
                cut(&format!("{}\n{}", clean(start), clean(end))).into_owned()
            }
        });
    }

    fn bytes(&self) -> usize {
        [&self.arguments, &self.result].into_iter().flatten().map(String::len).sum()
    }
}

/// Returns the arguments in `input` as JSON without secrets.
fn arguments_text(input: &Value, secrets: &SecretSet) -> String {
    let text = redacted_arguments(input, secrets, LONG_TEXT_CHARS).to_string();
    if text.len() <= TEXT_BYTES_MAX {
        return text;
    }
    cut(&redacted_arguments(input, secrets, SHORT_TEXT_CHARS).to_string()).into_owned()
}

/// Returns `text` without its middle if it is longer than 4 KiB.
fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let start = &text[..text.floor_char_boundary(START_BYTES)];
    let end = &text[text.floor_char_boundary(text.len() - (TEXT_BYTES_MAX - START_BYTES))..];
    let left_out = text.len() - start.len() - end.len();
    Cow::Owned(format!("{start}\n[{left_out} bytes are not shown]\n{end}"))
}

/// Counts the lines that the unified diff `text` adds and removes. Returns `None` if the text
/// contains no hunk of a diff.
fn count_changed_lines(text: &str) -> Option<ChangedLineCounts> {
    let mut counts: Option<ChangedLineCounts> = None;
    // Lines of the current hunk that are still to come, in the old and in the new file.
    let mut old = 0_usize;
    let mut new = 0_usize;
    for line in text.lines() {
        if old == 0 && new == 0 {
            if let Some(hunk) = hunk_lengths(line) {
                (old, new) = hunk;
                counts = Some(counts.unwrap_or_default());
            }
            continue;
        }
        let counted = counts.get_or_insert_default();
        match line.as_bytes().first() {
            Some(b'+') => (counted.added, new) = (counted.added + 1, new.saturating_sub(1)),
            Some(b'-') => (counted.removed, old) = (counted.removed + 1, old.saturating_sub(1)),
            // The note that a file does not end with a line break.
            Some(b'\\') => {}
            Some(_) | None => (old, new) = (old.saturating_sub(1), new.saturating_sub(1)),
        }
    }
    counts
}

/// Returns the number of old and new lines in a hunk of a diff with the header `line`, such as
/// `@@ -1,3 +1,4 @@`.
fn hunk_lengths(line: &str) -> Option<(usize, usize)> {
    let (ranges, _) = line.strip_prefix("@@ -")?.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let length = |range: &str| match range.split_once(',') {
        Some((_, length)) => length.parse().ok(),
        None => Some(1),
    };
    Some((length(old)?, length(new)?))
}

/// Key that identifies a recent call of one server process: the start, and the duration in
/// microseconds, from its audit record.
pub(super) type RecentCallKey = (Timestamp, u64);

/// Details of the newest calls that changed something or failed, oldest first.
#[derive(Default)]
pub(super) struct RecentCalls(Mutex<RecentCallQueue>);

#[derive(Default)]
struct RecentCallQueue {
    calls: VecDeque<(RecentCallKey, Arc<RecentCallDetails>)>,
    /// Total size of the kept texts in bytes.
    bytes: usize,
}

impl RecentCalls {
    /// Adds the details of the call `key`, and drops the oldest calls beyond the limits.
    pub(super) fn add(&self, key: RecentCallKey, details: RecentCallDetails) {
        let mut queue = lock_mutex(&self.0);
        queue.bytes += details.bytes();
        queue.calls.push_back((key, Arc::new(details)));
        while queue.calls.len() > CALLS_MAX || queue.bytes > BYTES_MAX {
            let Some((_, oldest)) = queue.calls.pop_front() else { break };
            queue.bytes -= oldest.bytes();
        }
    }

    /// Returns the details of the call `key`, if they are still in memory.
    pub(super) fn find(&self, key: RecentCallKey) -> Option<Arc<RecentCallDetails>> {
        let queue = lock_mutex(&self.0);
        let found = queue.calls.iter().rev().find(|(known, _)| *known == key);
        found.map(|(_, details)| details.clone())
    }

    /// Removes the details of all calls from memory.
    pub(super) fn clear(&self) {
        *lock_mutex(&self.0) = RecentCallQueue::default();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(n: u64) -> RecentCallKey {
        (Timestamp::UNIX_EPOCH, n)
    }

    fn with_result(text: &str) -> RecentCallDetails {
        let mut details = RecentCallDetails::default();
        details.set_result(text, &SecretSet::default(), &CallSecrets::default());
        details
    }

    #[test]
    fn the_lines_of_a_diff_are_counted_without_its_headers() {
        let diff = "edited\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n--- b\n+++ c\n d\n@@ -9 +9,2 @@\n-e\n\
                    +f\n+g\n\\ No newline at end of file\n--- a/y\n+++ b/y\n@@ -0,0 +1 @@\n+h\n";
        let counts = count_changed_lines(diff).expect("a diff");
        assert_eq!(counts, ChangedLineCounts { added: 4, removed: 2 });
        assert_eq!(count_changed_lines("--- a\n+++ b\n+ c"), None);
    }

    #[test]
    fn only_a_diff_of_changes_that_were_made_is_counted() {
        let secrets = SecretSet::default();
        let count = |input: &Value, effects| {
            let mut details = RecentCallDetails::with_arguments(input, effects, &secrets);
            details.set_result("@@ -1 +1 @@\n-a\n+b\n", &secrets, &CallSecrets::default());
            details.changed_lines
        };
        let edit = json!({ "path": "a" });
        assert_eq!(
            count(&edit, Effects::Changes),
            Some(ChangedLineCounts { added: 1, removed: 1 })
        );
        assert_eq!(count(&edit, Effects::Runs), None);
        assert_eq!(count(&json!({ "path": "a", "dry_run": true }), Effects::Changes), None);
    }

    #[test]
    fn a_long_result_is_cut_in_the_middle() {
        let text = format!("start {} end", "ä".repeat(100_000));
        let result = with_result(&text).result.expect("a result");
        assert!(result.starts_with("start ä") && result.ends_with("ä end"), "{result}");
        assert!(result.contains("bytes are not shown]"), "{result}");
        assert!(result.len() < TEXT_BYTES_MAX + 100);
    }

    #[test]
    fn arguments_and_results_are_kept_without_secrets() {
        let key = format!("ghp_{}", "a1B2".repeat(9));
        let input = json!({ "password": "hunter22222", "text": format!("x {key}") });
        let secrets = SecretSet::default();
        let mut details = RecentCallDetails::with_arguments(&input, Effects::Runs, &secrets);
        let of_call = secrets.call_secrets(&input);
        details.set_result(&format!("{key} and hunter22222"), &secrets, &of_call);
        let shown = format!("{details:?}");
        assert!(!shown.contains(&key) && !shown.contains("hunter22222"), "{shown}");
        let many: Vec<_> = (0..90).map(|n| format!("{n} {}", "x".repeat(3000))).collect();
        let many = json!({ "many": many });
        let long = RecentCallDetails::with_arguments(&many, Effects::Changes, &secrets);
        assert!(long.bytes() < TEXT_BYTES_MAX + 100);
    }

    #[test]
    fn the_oldest_calls_are_dropped_beyond_the_limits() {
        let recent = RecentCalls::default();
        for n in 0..=CALLS_MAX as u64 {
            recent.add(key(n), with_result("short"));
        }
        assert_eq!(recent.find(key(0)), None);
        assert!(recent.find(key(1)).is_some());
        let long = "x".repeat(TEXT_BYTES_MAX);
        for n in 1000..1000 + CALLS_MAX as u64 {
            let mut details = with_result(&long);
            details.arguments = Some(long.clone());
            recent.add(key(n), details);
        }
        assert!(lock_mutex(&recent.0).bytes <= BYTES_MAX);
        assert!(recent.find(key(1499)).is_some());
        recent.clear();
        assert_eq!(recent.find(key(1499)), None);
    }
}
