//! Records of the changes that `toolgate connect` has made, so that they can be undone.
#![allow(clippy::disallowed_methods, reason = "the user's own state, outside the workspace")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use toolgate_service::config::state_folder;

/// Record of a change of a client's settings file by `toolgate connect`: the changed lines before
/// and after.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SettingsChangeRecord {
    /// Path of the changed settings file.
    file: PathBuf,
    /// Name of the server in the settings file.
    name: String,
    /// True if the change created the settings file.
    pub(super) is_new_file: bool,
    /// Folders that were created for the settings file, outermost first.
    pub(super) folders: Vec<PathBuf>,
    /// The changed lines as they were before the change.
    before: String,
    /// The changed lines as they are after the change. In the settings file, these lines occur only
    /// once.
    after: String,
}

/// State of a settings file before a change, which undoing the change restores.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SettingsBeforeEdit {
    /// No settings file existed before the change, so undoing the change deletes the file.
    NoFile,
    /// The settings file had this text before the change, so undoing the change restores the text.
    Text(String),
}

impl SettingsChangeRecord {
    /// Creates the record of a change of the settings `file` for the server `name`, from the text
    /// `old` to `new`. The file did not exist if `old` is `None`.
    pub(super) fn between(file: &Path, name: &str, old: Option<&str>, new: &str) -> Self {
        let (before, after) = changed_lines(old.unwrap_or_default(), new);
        Self {
            file: file.to_owned(),
            name: name.to_owned(),
            is_new_file: old.is_none(),
            folders: Vec::new(),
            before: before.to_owned(),
            after: after.to_owned(),
        }
    }

    /// Undoes the recorded change in `text`, the present text of the settings file. Returns `None`
    /// if `text` no longer contains the changed lines.
    pub(super) fn undo(&self, text: &str) -> Option<SettingsBeforeEdit> {
        if self.is_new_file {
            return (text == self.after).then_some(SettingsBeforeEdit::NoFile);
        }
        let at = only_position(text, &self.after)?;
        let rest = &text[at + self.after.len()..];
        Some(SettingsBeforeEdit::Text(format!("{}{}{rest}", &text[..at], self.before)))
    }

    /// Reads the record of the change that added the server `name` to the settings `file`. Returns
    /// `None` if there is no such record.
    pub(super) fn load(file: &Path, name: &str) -> Option<Self> {
        let text = fs::read_to_string(record_path(file, name)?).ok()?;
        let record: Self = serde_json::from_str(&text).ok()?;
        (record.file == file && record.name == name).then_some(record)
    }

    /// Stores the record of the change in a file that only the user can read, because the changed
    /// lines may contain keys.
    ///
    /// # Errors
    /// There is no state folder, or it cannot be written.
    pub(super) fn store(&self) -> anyhow::Result<()> {
        let path = record_path(&self.file, &self.name)
            .context("there is no state folder: neither XDG_STATE_HOME nor HOME is set")?;
        let folder =
            path.parent().context("the path of the record of this change has no parent folder")?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.persist(&path)?;
        Ok(())
    }

    /// Deletes the record of the change that added the server `name` to the settings `file`.
    /// Ignores failures.
    pub(super) fn delete(file: &Path, name: &str) {
        if let Some(path) = record_path(file, name) {
            let _ = fs::remove_file(path);
        }
    }
}

fn record_path(file: &Path, name: &str) -> Option<PathBuf> {
    let mut hash = blake3::Hasher::new();
    hash.update(file.as_os_str().as_encoded_bytes()).update(b"\0").update(name.as_bytes());
    let hash = hash.finalize().to_hex();
    Some(state_folder()?.join("connections").join(format!("{}.json", &hash[..32])))
}

/// Returns the part of `old` and the part of `new` in which the two texts differ. Adds surrounding
/// equal lines until the part of `new` occurs only once in `new`.
fn changed_lines<'a>(old: &'a str, new: &'a str) -> (&'a str, &'a str) {
    let old_lines: Vec<&str> = old.split_inclusive('\n').collect();
    let new_lines: Vec<&str> = new.split_inclusive('\n').collect();
    let shorter = old_lines.len().min(new_lines.len());
    let mut head = (0..shorter).take_while(|at| old_lines[*at] == new_lines[*at]).count();
    let of_end = |lines: &[&str], at: usize| lines.len() - 1 - at;
    let is_same_end =
        |at: &usize| old_lines[of_end(&old_lines, *at)] == new_lines[of_end(&new_lines, *at)];
    let mut tail = (0..shorter - head).take_while(is_same_end).count();
    loop {
        let bytes = |lines: &[&str]| lines.iter().map(|line| line.len()).sum::<usize>();
        let start = bytes(&new_lines[..head]);
        let end = bytes(&new_lines[new_lines.len() - tail..]);
        let after = &new[start..new.len() - end];
        if (head, tail) == (0, 0) || only_position(new, after).is_some() {
            return (&old[start..old.len() - end], after);
        }
        head = head.saturating_sub(1);
        tail = tail.saturating_sub(1);
    }
}

/// Returns the byte offset of `part` in `text` if `part` occurs exactly once, or `None` otherwise.
fn only_position(text: &str, part: &str) -> Option<usize> {
    let first = text.find(part).filter(|_| !part.is_empty());
    first.filter(|at| text.rfind(part) == Some(*at))
}
