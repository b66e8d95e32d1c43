//! Numbers that tie a process to one run, and a run to one server.
//!
//! A process can leave its group (`setsid`) and its parent (a double fork), and it can empty its
//! environment. But processes rarely change `RLIMIT_LOCKS`. Linux ignores this limit since version
//! 2.4, children inherit it, and `/proc` shows it, even for zombies. Each run therefore stores its
//! tag in this limit: a number whose high bits identify the server, and whose low bits identify the
//! run.

use std::io;
use std::str;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of low bits of a process's tag that identify the run of a program. Run numbers are
/// reused, so few bits suffice.
const RUN_BITS: u32 = 20;

/// The number of distinct run numbers in the tags of one server.
const RUNS: u64 = (1 << RUN_BITS) - 1;

/// The number of bits of a process's tag that identify the server. With this number, tags stay far
/// below the value for "unlimited".
const MARK_BITS: u32 = 42;

/// The least number of marks that a server can choose from. With fewer marks, two servers could
/// choose the same mark.
const MARKS_MIN: u64 = 1 << 20;

/// The number that marks all processes of one server, so that they can be found after the server
/// has ended.
///
/// A mark is stored as a number. It is never 0, because 0 means no mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServerProcessMark(u64);

/// The tag that all processes of one program run carry, as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProgramRunTag(u64);

/// The two `RLIMIT_LOCKS` values of a process, soft and hard. Either may be the tag, because a
/// process may lower one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RlimitLocksValues([Option<u64>; 2]);

impl ServerProcessMark {
    /// Returns the server mark with the stored number `number`. Returns `None` if `number` is 0 or
    /// too large.
    pub fn from_number(number: u64) -> Option<Self> {
        (number != 0 && number >> MARK_BITS == 0).then_some(Self(number))
    }

    /// Returns the server mark as a number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Creates a random mark for this server. Running servers with the same mark are very unlikely.
    pub(crate) fn random() -> io::Result<Self> {
        let number = getrandom::u64().map_err(io::Error::other)?;
        Ok(Self::derive(getrlimit(Resource::Locks).maximum, number))
    }

    /// Derives a server mark from the random `number`. `ceiling` is the hard `RLIMIT_LOCKS` of the
    /// server.
    ///
    /// If another toolgate server started the server, `ceiling` is a tag of that parent server. A
    /// process may only lower its limit, so all possible marks are lower than the mark of the
    /// parent server.
    fn derive(ceiling: Option<u64>, number: u64) -> Self {
        let marks = 1 << MARK_BITS;
        let end = match ceiling.map(|ceiling| ceiling >> RUN_BITS) {
            Some(own) if own > MARKS_MIN => own.min(marks),
            // Too few marks are left (`ulimit -x`, or a dozen nested servers), and a shared mark
            // would kill another server's processes. A mark above the ceiling belongs to nobody.
            // With the right to raise limits programs start with it. Without that right the kernel
            // refuses, and none start.
            Some(_) | None => marks,
        };
        Self(1 + number % (end - 1))
    }

    /// Returns the tag of the run `run` on the server with this mark. Run numbers are reused, so a
    /// later run may get the same tag.
    pub(crate) fn tag(self, run: u64) -> ProgramRunTag {
        ProgramRunTag((self.0 << RUN_BITS) + run % RUNS)
    }

    /// Returns the tag of processes that belong to no run yet, for example idle sandbox helpers.
    /// Tags are stored in `RLIMIT_LOCKS`, which a process may only lower. The idle tag is the
    /// server's highest, so the tag of any run can replace it.
    pub(crate) fn idle_tag(self) -> ProgramRunTag {
        ProgramRunTag((self.0 << RUN_BITS) + RUNS)
    }

    /// Returns `true` if `worn`, the resource limits of a process, contain a tag of this server.
    pub(crate) fn matches(self, worn: RlimitLocksValues) -> bool {
        worn.0.iter().flatten().any(|number| number >> RUN_BITS == self.0)
    }
}

impl ProgramRunTag {
    /// Creates the tag of a program run from the tag's stored `number`.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the tag of the run as a number.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Sets the tag of the run in `RLIMIT_LOCKS` of the calling process. All later children inherit
    /// the tag. Makes a single system call.
    pub(crate) fn apply(self) -> io::Result<()> {
        let limit = Rlimit { current: Some(self.0), maximum: Some(self.0) };
        Ok(setrlimit(Resource::Locks, limit)?)
    }

    pub(crate) fn matches(self, worn: RlimitLocksValues) -> bool {
        worn.0.contains(&Some(self.0))
    }
}

impl RlimitLocksValues {
    /// Returns the `RLIMIT_LOCKS` values of the calling process.
    pub(crate) fn read_own() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Locks);
        Self([current, maximum])
    }

    /// Parses the content of `/proc/<pid>/limits`. Does not allocate.
    pub(crate) fn parse(limits: &[u8]) -> Self {
        let mut lines = limits.split(|byte| *byte == b'\n');
        let line = lines.find_map(|line| line.strip_prefix(b"Max file locks"));
        let words = line.unwrap_or_default().split(|byte| *byte == b' ');
        let mut words = words.filter(|word| !word.is_empty());
        Self([(); 2].map(|()| str::from_utf8(words.next()?).ok()?.parse().ok()))
    }

    /// Removes the tag of any run from `RLIMIT_LOCKS` of the calling process. Makes a single system
    /// call.
    pub(crate) fn clear() -> rustix::io::Result<()> {
        setrlimit(Resource::Locks, Rlimit { current: Some(0), maximum: Some(0) })
    }

    /// Returns those of the two `RLIMIT_LOCKS` values that can be a tag, the soft one first.
    pub(crate) fn candidate_tags(self) -> impl Iterator<Item = ProgramRunTag> {
        self.0.into_iter().flatten().map(ProgramRunTag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     
Max locked memory         8388608              8388608              bytes     
Max file locks            7340039              unlimited            locks     
Max pending signals       15000                15000                signals   
";

    #[test]
    fn the_tag_of_a_process_is_read_from_its_limits() {
        let limits = RlimitLocksValues::parse(LIMITS.as_bytes());
        assert_eq!(limits, RlimitLocksValues([Some((7 << RUN_BITS) + 7), None]));
        assert!(
            ServerProcessMark(7).matches(limits)
                && !ServerProcessMark(6).matches(limits)
                && !ServerProcessMark(8).matches(limits)
        );
        assert!(
            ServerProcessMark(7).tag(7).matches(limits)
                && !ServerProcessMark(7).tag(8).matches(limits)
        );
        assert_eq!(RlimitLocksValues::parse(b""), RlimitLocksValues([None; 2]));
        assert_eq!(RlimitLocksValues::parse(b"Max file locks \xff"), RlimitLocksValues([None; 2]));
    }

    #[test]
    fn every_run_of_a_server_has_its_mark() {
        for run in [0, 1, (1 << RUN_BITS) - 1, 1 << RUN_BITS, u64::MAX] {
            let ProgramRunTag(number) = ServerProcessMark(5).tag(run);
            assert!(ServerProcessMark(5).matches(RlimitLocksValues([Some(number); 2])), "{run}");
            let none = ServerProcessMark(5).idle_tag();
            assert!(
                none > ProgramRunTag(number)
                    && ServerProcessMark(5).matches(RlimitLocksValues([Some(none.number()); 2])),
                "{run}"
            );
        }
    }

    #[test]
    fn a_nested_server_has_a_lower_mark() {
        let ProgramRunTag(ceiling) = ServerProcessMark(MARKS_MIN + 2).tag(0);
        for number in [0, 1, MARKS_MIN, MARKS_MIN + 1, MARKS_MIN + 2, u64::MAX] {
            let ServerProcessMark(below) = ServerProcessMark::derive(Some(ceiling), number);
            assert!((1..MARKS_MIN + 2).contains(&below), "{below}");
        }
    }

    #[test]
    fn a_server_without_free_lower_marks_gets_one_above_the_ceiling() {
        for ceiling in [0, 100, MARKS_MIN << RUN_BITS] {
            let ServerProcessMark(mark) = ServerProcessMark::derive(Some(ceiling), u64::MAX >> 1);
            assert!(mark > ceiling >> RUN_BITS, "{ceiling}: {mark}");
        }
    }

    #[test]
    fn a_valid_mark_round_trips_and_an_invalid_number_is_rejected() {
        for _ in 0..100 {
            let mark = ServerProcessMark::random().unwrap();
            assert_eq!(ServerProcessMark::from_number(mark.number()), Some(mark));
        }
        for number in [0, 1 << MARK_BITS, u64::MAX] {
            assert_eq!(ServerProcessMark::from_number(number), None, "{number}");
        }
    }
}
