//! Metadata of a directory entry: everything except the entry's content.

use jiff::Timestamp;
use rustix::fs::{FileType, Stat};
use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::Serialize;

/// Kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket or a device. Tools list these entries, but never open them.
    Other,
}

impl From<FileType> for EntryKind {
    fn from(kind: FileType) -> Self {
        if kind.is_file() {
            Self::File
        } else if kind.is_dir() {
            Self::Dir
        } else if kind.is_symlink() {
            Self::Symlink
        } else {
            Self::Other
        }
    }
}

/// A point in time on the clock from which file systems take their timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileTime {
    seconds: i64,
    nanos: i64,
}

impl FileTime {
    /// Returns the current time. An entry that changes later never has an earlier timestamp.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Self { seconds: now.tv_sec, nanos: now.tv_nsec }
    }
}

/// A fingerprint of an entry. The fingerprint changes when the entry changes or is replaced, within
/// the precision of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFingerprint {
    entry: (u64, u64),
    size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl EntryFingerprint {
    /// Returns the fingerprint as bytes, to store and compare on this machine. The device number is
    /// left out, because it changes with each mount.
    pub fn to_bytes(self) -> [u8; 48] {
        let Self { entry: (_, inode), size, modified, changed } = self;
        let numbers = [inode.cast_signed(), size, modified.0, modified.1, changed.0, changed.1];
        let mut bytes = [0; 48];
        for (into, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *into = number.to_le_bytes();
        }
        bytes
    }
}

/// Metadata of a file or another entry, read without opening it.
#[derive(Debug, Clone, Copy)]
pub struct EntryMeta {
    pub(super) stat: Stat,
}

impl EntryMeta {
    /// Returns the kind of the entry.
    pub fn kind(&self) -> EntryKind {
        FileType::from_raw_mode(self.stat.st_mode).into()
    }

    /// Returns the size of the entry in bytes.
    pub fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    /// Returns the POSIX permission bits of the entry.
    pub fn mode(&self) -> u32 {
        self.stat.st_mode & 0o7777
    }

    /// Returns the time at which the entry's content last changed.
    pub fn mtime(&self) -> Timestamp {
        let nanos = i32::try_from(self.stat.st_mtime_nsec).unwrap_or(0);
        Timestamp::new(self.stat.st_mtime, nanos).unwrap_or_default()
    }

    /// Returns `true` if the entry's content or metadata changed at `moment` or later. Programs
    /// cannot forge the time of that change.
    pub fn has_changed_since(&self, moment: FileTime) -> bool {
        let nanos = i64::try_from(self.stat.st_ctime_nsec).unwrap_or(0);
        FileTime { seconds: self.stat.st_ctime, nanos } >= moment
    }

    /// Returns a fingerprint of the entry, to decide if a file must be read again.
    pub fn stamp(&self) -> EntryFingerprint {
        let nanos = |nanos| i64::try_from(nanos).unwrap_or(0);
        let stat = &self.stat;
        EntryFingerprint {
            entry: (stat.st_dev, stat.st_ino),
            size: stat.st_size,
            modified: (stat.st_mtime, nanos(stat.st_mtime_nsec)),
            changed: (stat.st_ctime, nanos(stat.st_ctime_nsec)),
        }
    }

    /// Returns `true` if this value and `other` describe the same entry of the same file system.
    pub fn is_same_entry(&self, other: &Self) -> bool {
        (self.stat.st_dev, self.stat.st_ino) == (other.stat.st_dev, other.stat.st_ino)
    }
}

impl From<Stat> for EntryMeta {
    fn from(stat: Stat) -> Self {
        Self { stat }
    }
}
