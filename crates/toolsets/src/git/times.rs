//! Validates times in calls before git uses them. Git treats a time that it cannot parse as the
//! current time.

use toolgate_world::root::quoted_path;

const UNITS: [&str; 8] = ["second", "minute", "hour", "day", "week", "fortnight", "month", "year"];
const DAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const NUMBERS: [&str; 10] =
    ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
/// Words that git accepts as a complete time without other words.
const MOMENTS: [&str; 6] = ["now", "today", "yesterday", "noon", "midnight", "tea"];

/// Returns the error message for the invalid time `text`.
pub(super) fn invalid_time_message(text: &str) -> String {
    format!(
        "{} is not a time; write a date (`2026-01-31`), a date and time (`2026-01-31T12:00:00Z`) \
         or a time ago (`2 weeks ago`, `yesterday`)",
        quoted_path(text)
    )
}

/// Returns true if git can parse all of `text` as a time.
pub(super) fn is_time(text: &str) -> bool {
    let text = text.trim().to_ascii_lowercase();
    if let Some(seconds) = text.strip_prefix('@') {
        return is_number(seconds);
    }
    // Git reads a shorter number as an hour, a day or a year.
    if is_number(&text) {
        return text.len() >= 9;
    }
    let mut has_time = false;
    let is_separator = |c: char| c.is_whitespace() || c == ',';
    for word in text.split(is_separator).filter(|word| !word.is_empty()) {
        match classify_word(word) {
            Some(GitTimeWordRole::Time) => has_time = true,
            Some(GitTimeWordRole::Qualifier) => {}
            None => return false,
        }
    }
    has_time
}

/// The role of a word in a time that git can parse, such as `2 weeks ago`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GitTimeWordRole {
    /// The word names a time: it is a unit, a day, a date or a time of day.
    Time,
    /// The word qualifies a word that names a time. It is a number, a time zone, or a word such as
    /// `ago`.
    Qualifier,
}

fn classify_word(word: &str) -> Option<GitTimeWordRole> {
    if is_time_name(word) || is_date(word) || is_clock(word) {
        return Some(GitTimeWordRole::Time);
    }
    if let Some((date, time)) = word.split_once('t')
        && is_date(date)
        && is_time_with_zone(time)
    {
        return Some(GitTimeWordRole::Time);
    }
    if is_number(word) || is_zone(word) || is_ordinal(word) || NUMBERS.contains(&word) {
        return Some(GitTimeWordRole::Qualifier);
    }
    if matches!(word, "ago" | "last" | "at" | "am" | "pm") {
        return Some(GitTimeWordRole::Qualifier);
    }
    // Handles `2.weeks.ago`.
    let parts: Vec<&str> = word.split('.').collect();
    if parts.len() < 2 || parts.iter().any(|part| part.is_empty()) {
        return None;
    }
    let read: Option<Vec<GitTimeWordRole>> = parts.into_iter().map(classify_word).collect();
    Some(if read?.contains(&GitTimeWordRole::Time) {
        GitTimeWordRole::Time
    } else {
        GitTimeWordRole::Qualifier
    })
}

/// Returns true if `word` is the name of a unit, weekday, month or moment: `weeks`, `tue`, `jan`,
/// `yesterday`.
fn is_time_name(word: &str) -> bool {
    let begins = |names: &[&str]| word.len() >= 3 && names.iter().any(|it| it.starts_with(word));
    let unit = word.strip_suffix('s').unwrap_or(word);
    UNITS.contains(&unit) || MOMENTS.contains(&word) || begins(&DAYS) || begins(&MONTHS)
}

fn is_number(word: &str) -> bool {
    (1..=12).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true if `word` is an ordinal number in a date: `31st`.
fn is_ordinal(word: &str) -> bool {
    ["st", "nd", "rd", "th"].iter().any(|end| word.strip_suffix(end).is_some_and(is_number))
}

/// Returns true if `word` is a date: `2026-01-31`, `2026/1/31`, `2026-01`.
fn is_date(word: &str) -> bool {
    let Some(line) = word.chars().find(|c| matches!(c, '-' | '/')) else { return false };
    let parts: Option<Vec<u32>> = word.split(line).map(|part| part.parse().ok()).collect();
    match parts.as_deref() {
        Some([year, month]) => *year >= 1970 && (1..=12).contains(month),
        Some([year, month, day]) if *year >= 1970 => {
            *year < 10_000 && (1..=12).contains(month) && (1..=31).contains(day)
        }
        // Accepts `31/1/2026` and `1/31/2026`.
        Some([a, b, year]) => {
            (1..=31).contains(a)
                && (1..=31).contains(b)
                && (*a <= 12 || *b <= 12)
                && (1970..10_000).contains(year)
        }
        Some(_) | None => false,
    }
}

/// Returns true if `word` is a time of day, with or without a time zone: `12:30`, `12:30:15.25`,
/// `3pm`.
fn is_clock(word: &str) -> bool {
    let half = word.strip_suffix("am").or_else(|| word.strip_suffix("pm"));
    match half {
        Some(hour) => {
            hour.parse().is_ok_and(|hour: u32| (1..=12).contains(&hour)) || is_time_of_day(hour)
        }
        None => word.contains(':') && is_time_with_zone(word),
    }
}

fn is_time_with_zone(word: &str) -> bool {
    if let Some(time) = word.strip_suffix('z') {
        return is_time_of_day(time);
    }
    match word.find(['+', '-']) {
        Some(at) => is_time_of_day(&word[..at]) && is_zone(&word[at..]),
        None => is_time_of_day(word),
    }
}

fn is_time_of_day(word: &str) -> bool {
    let (word, part) = word.split_once('.').unwrap_or((word, "0"));
    let parts: Option<Vec<u32>> = word.split(':').map(|part| part.parse().ok()).collect();
    let is_time = match parts.as_deref() {
        Some([hour, minute]) => *hour <= 24 && *minute < 60,
        Some([hour, minute, second]) => *hour <= 24 && *minute < 60 && *second <= 60,
        Some(_) | None => false,
    };
    is_time && is_number(part)
}

/// Returns true if `word` is a time zone: `z`, `utc`, `+0200`, `-05:00`.
fn is_zone(word: &str) -> bool {
    let digits = word.strip_prefix(['+', '-']).map(|rest| rest.replace(':', ""));
    let is_offset =
        digits.is_some_and(|digits| matches!(digits.len(), 2 | 4) && is_number(&digits));
    is_offset || matches!(word, "z" | "utc" | "gmt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_git_understands_is_a_time() {
        for text in [
            "2026-01-31",
            "2026-01-31T12:00:00Z",
            "2026-01-31 12:00:00 +0200",
            "2026-01-31T12:00+02:00",
            "2026/01/31",
            "2 weeks ago",
            "2.weeks.ago",
            "1 year 3 months ago",
            "3 days",
            "yesterday",
            "yesterday 3pm",
            "last monday",
            "last week",
            "Jan 31 2026",
            "Sat, 31 Jan 2026 10:00:00 +0000",
            "@1767225600",
            "1767225600",
            "now",
        ] {
            assert!(is_time(text), "{text}");
        }
    }

    #[test]
    fn text_that_git_would_take_for_the_current_time_is_not_a_time() {
        for text in [
            "",
            "garbage in",
            "2026-13-01",
            "2026-01-32",
            "whenever",
            "2",
            "2 ago",
            "tomorow",
            "-1",
        ] {
            assert!(!is_time(text), "{text}");
        }
    }
}
