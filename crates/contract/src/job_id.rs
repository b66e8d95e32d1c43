//! Ids of jobs, and how they are written.

use std::fmt;
use std::str::FromStr;

/// The id of a job: 128 random bits, written as 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u128);

impl JobId {
    /// Creates a job id from `bits`, which must be unguessable.
    pub fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Returns the bits of the job id.
    pub fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for JobId {
    type Err = JobIdError;

    /// Parses a job id. Accepts only the canonical form, 32 lower-case hex digits, so that each job
    /// has one name.
    fn from_str(text: &str) -> Result<Self, JobIdError> {
        let sound = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 32 || !text.bytes().all(sound) {
            return Err(JobIdError);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| JobIdError)
    }
}

/// The error for a job id that is not 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job id has 32 hex digits")]
pub struct JobIdError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_parses_only_in_its_written_form() {
        let id = JobId::from_bits(7);
        assert_eq!(id.to_string().parse(), Ok(id));
        for other in ["7", "0000000000000000000000000000000G", "+0000000000000000000000000000007"] {
            assert_eq!(other.parse::<JobId>(), Err(JobIdError), "{other}");
        }
    }
}
