//! Parses durations such as `90d`.

use std::time::Duration;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};

/// Parses a duration such as `90d`, `12h` or `30m`, of at most 100 years. The error lists the
/// units.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("w", 7 * 86_400)];
    let seconds = units.iter().find_map(|(unit, seconds)| {
        let number = text.strip_suffix(unit)?.parse::<u64>().ok()?;
        number.checked_mul(*seconds).filter(|seconds| *seconds <= 100 * 366 * 86_400)
    });
    seconds.map(Duration::from_secs).ok_or_else(|| {
        "write a number and a unit, such as 90d; units are s, m, h, d and w".to_owned()
    })
}

/// Returns the time that is `duration` from now, in whole seconds. Fails if that time is too far in
/// the future.
pub(super) fn time_from_now(duration: Duration) -> anyhow::Result<Timestamp> {
    let duration = SignedDuration::try_from(duration)?;
    let until =
        Timestamp::now().checked_add(duration).context("the time is too far in the future")?;
    Ok(to_the_second(until))
}

/// Rounds the time `at` down to seconds.
pub(super) fn to_the_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_and_a_unit() {
        assert_eq!(parse_duration("90d"), Ok(Duration::from_secs(90 * 86_400)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        for text in ["", "d", "90", "-1d", "1.5h", "90 d", "99999999999w", "1y"] {
            parse_duration(text).expect_err(text);
        }
    }
}
