//! The numbers by which a process is known to be of one run, and a run to be of one server.
//!
//! A process can leave its group (`setsid`) and its parent (a double fork), and it
//! can empty its environment. What it does not think of is a resource limit Linux
//! has ignored since 2.4, is inherited by every child and shown in `/proc`, of
//! zombies too: `RLIMIT_LOCKS`. Each run starts with a number of its own there: the
//! high bits are the server's, the low ones the run's.

use std::io;
use std::str;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many of a tag's bits tell a server's runs apart. They may come again when they have
/// all been used, so they need not be many.
const RUN_BITS: u32 = 20;

/// So many runs have a number of their own.
const RUNS: u64 = (1 << RUN_BITS) - 1;

/// How many of a tag's bits are the server's. The number stays far from "unlimited".
const MARK_BITS: u32 = 42;

/// With fewer to choose from, two servers could choose the same.
const MARKS_MIN: u64 = 1 << 20;

/// What all programs of one server bear, to be known by when the server is gone.
///
/// Kept and read back as a number. It is never 0: that is what bears no mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(u64);

/// The number all processes of one run bear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::world) struct Tag(u64);

/// What stands where a tag would: the two limits of a process, of which it may have lowered one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Worn([Option<u64>; 2]);

impl Mark {
    /// The mark that is `number`, if that is one: 0 is what bears none.
    pub fn of(number: u64) -> Option<Self> {
        (number != 0 && number >> MARK_BITS == 0).then_some(Self(number))
    }

    /// The mark as a number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// A mark nobody else bears.
    pub(super) fn new() -> io::Result<Self> {
        let number = getrandom::u64().map_err(io::Error::other)?;
        Ok(Self::below(getrlimit(Resource::Locks).maximum, number))
    }

    /// The mark `number` gives a server whose own limit is `ceiling`.
    ///
    /// A server that runs below another has a tag of the other's for its ceiling, and
    /// may only go lower: all marks that are left are not the other's.
    fn below(ceiling: Option<u64>, number: u64) -> Self {
        let marks = 1 << MARK_BITS;
        let end = match ceiling.map(|ceiling| ceiling >> RUN_BITS) {
            Some(own) if own > MARKS_MIN => own.min(marks),
            // Too few are left (`ulimit -x`, or a dozen servers one below the other), and a
            // mark that may be another's too must never be killed by. One from above the
            // ceiling is nobody's: who may raise limits can start programs with it, who may
            // not is told by the kernel and starts none.
            Some(_) | None => marks,
        };
        Self(1 + number % (end - 1))
    }

    /// The tag of this server's run `run`, which is the same for some later run.
    pub(super) fn tag(self, run: u64) -> Tag {
        Tag((self.0 << RUN_BITS) + run % RUNS)
    }

    /// The tag of what is of no run, from which that of each can be put on: it is the highest.
    pub(super) fn tag_of_none(self) -> Tag {
        Tag((self.0 << RUN_BITS) + RUNS)
    }

    /// Whether a process that wears this is a program of the server.
    pub(super) fn is_on(self, worn: Worn) -> bool {
        worn.0.iter().flatten().any(|number| number >> RUN_BITS == self.0)
    }
}

impl Tag {
    /// The tag that is `number`.
    pub(in crate::world) fn of(number: u64) -> Self {
        Self(number)
    }

    /// The tag as a number.
    pub(in crate::world) fn number(self) -> u64 {
        self.0
    }

    /// Puts it on the calling process and all it will start. Only a system call.
    pub(in crate::world) fn put_on(self) -> io::Result<()> {
        let limit = Rlimit { current: Some(self.0), maximum: Some(self.0) };
        Ok(setrlimit(Resource::Locks, limit)?)
    }

    pub(super) fn is_on(self, worn: Worn) -> bool {
        worn.0.contains(&Some(self.0))
    }
}

impl Worn {
    /// What the calling process wears.
    pub(super) fn ours() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Locks);
        Self([current, maximum])
    }

    /// What `/proc/<pid>/limits` says. It allocates nothing.
    pub(super) fn read(limits: &[u8]) -> Self {
        let mut lines = limits.split(|byte| *byte == b'\n');
        let line = lines.find_map(|line| line.strip_prefix(b"Max file locks"));
        let words = line.unwrap_or_default().split(|byte| *byte == b' ');
        let mut words = words.filter(|word| !word.is_empty());
        Self([(); 2].map(|()| str::from_utf8(words.next()?).ok()?.parse().ok()))
    }

    /// Takes whatever the calling process wears off. Only a system call.
    pub(super) fn take_off() -> rustix::io::Result<()> {
        setrlimit(Resource::Locks, Rlimit { current: Some(0), maximum: Some(0) })
    }

    /// The tags it may be.
    pub(super) fn tags(self) -> impl Iterator<Item = Tag> {
        self.0.into_iter().flatten().map(Tag)
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
    fn what_a_process_wears_is_read_from_its_limits() {
        let worn = Worn::read(LIMITS.as_bytes());
        assert_eq!(worn, Worn([Some((7 << RUN_BITS) + 7), None]));
        assert!(Mark(7).is_on(worn) && !Mark(6).is_on(worn) && !Mark(8).is_on(worn));
        assert!(Mark(7).tag(7).is_on(worn) && !Mark(7).tag(8).is_on(worn));
        assert_eq!(Worn::read(b""), Worn([None; 2]));
        assert_eq!(Worn::read(b"Max file locks \xff"), Worn([None; 2]));
    }

    #[test]
    fn every_run_of_a_server_bears_its_mark() {
        for run in [0, 1, (1 << RUN_BITS) - 1, 1 << RUN_BITS, u64::MAX] {
            let Tag(number) = Mark(5).tag(run);
            assert!(Mark(5).is_on(Worn([Some(number); 2])), "{run}");
            let none = Mark(5).tag_of_none();
            assert!(none > Tag(number) && Mark(5).is_on(Worn([Some(none.number()); 2])), "{run}");
        }
    }

    #[test]
    fn a_server_below_another_has_a_lower_mark() {
        let Tag(ceiling) = Mark(MARKS_MIN + 2).tag(0);
        for number in [0, 1, MARKS_MIN, MARKS_MIN + 1, MARKS_MIN + 2, u64::MAX] {
            let Mark(below) = Mark::below(Some(ceiling), number);
            assert!((1..MARKS_MIN + 2).contains(&below), "{below}");
        }
    }

    #[test]
    fn a_server_without_room_below_has_a_mark_nobody_has_by_chance() {
        for ceiling in [0, 100, MARKS_MIN << RUN_BITS] {
            let Mark(mark) = Mark::below(Some(ceiling), u64::MAX >> 1);
            assert!(mark > ceiling >> RUN_BITS, "{ceiling}: {mark}");
        }
    }

    #[test]
    fn a_mark_is_read_back_as_it_was_kept_and_what_marks_nothing_is_none() {
        for _ in 0..100 {
            let mark = Mark::new().unwrap();
            assert_eq!(Mark::of(mark.number()), Some(mark));
        }
        for number in [0, 1 << MARK_BITS, u64::MAX] {
            assert_eq!(Mark::of(number), None, "{number}");
        }
    }
}
