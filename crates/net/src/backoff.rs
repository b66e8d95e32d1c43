//! Computes the pauses between repeated attempts of a failed request.

use std::time::Duration;

/// Pause between attempts at an operation, which doubles after each attempt.
#[derive(Debug, Clone)]
pub struct RetryBackoff {
    first: Duration,
    next: Duration,
    max: Duration,
}

impl RetryBackoff {
    /// Creates a backoff that starts with the pause `first` and never exceeds `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, next: first, max }
    }

    /// Returns the pause before the next attempt. The pause after that is twice as long, up to the
    /// maximum.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next.min(self.max);
        self.next = pause.saturating_mul(2);
        pause
    }

    /// Starts with the first pause again. Call this after a successful attempt.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Parses the seconds in a `Retry-After` header. Returns `None` for a date, or for a million
/// seconds or more.
pub fn parse_retry_after(value: &str) -> Option<Duration> {
    let seconds: f64 = value.trim().parse().ok()?;
    (0.0..1e6).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_until_a_success() {
        let mut backoff = RetryBackoff::new(Duration::from_secs(2), Duration::from_secs(5));
        let pauses = [(); 4].map(|()| backoff.next_pause().as_secs());
        assert_eq!(pauses, [2, 4, 5, 5]);
        backoff.reset();
        assert_eq!(backoff.next_pause(), Duration::from_secs(2));
    }

    #[test]
    fn retry_after_is_parsed_if_it_is_a_number_of_seconds() {
        assert_eq!(parse_retry_after(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(parse_retry_after("0.5"), Some(Duration::from_millis(500)));
        for invalid in ["", "-1", "1e9", "NaN", "inf", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(parse_retry_after(invalid), None, "{invalid}");
        }
    }
}
