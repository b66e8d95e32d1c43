//! Trust in a settings file in the workspace.
//!
//! A workspace may come from anybody, and so may its `toolgate.toml`. Until the user trusts the
//! exact content of the file, it may only restrict the server.
#![allow(
    clippy::disallowed_methods,
    reason = "the owner's own trust marks, in the state folder, outside the workspace"
)]

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toolgate_contract::printable;
use toolgate_toolsets::files;

use super::load::FILE_BYTES_MAX;
use super::state_folder;
use crate::owned_files::{self, OwnedFileSymlinkPolicy};

/// Settings that can only restrict tools, and so apply even if the user does not trust the settings
/// file. Only the owner may decide all other settings. `files.protected` needs no trust if no entry
/// releases a default name.
const NARROWING: [(&str, &str); 5] = [
    ("tools", "allow"),
    ("tools", "deny"),
    ("tools", "confirm"),
    ("tools", "effects"),
    ("exec", "confirm"),
];

/// A setting in a settings file that only the owner may decide, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerOnlySetting {
    /// Name of the setting, such as `sandbox.profile`, `command."a.b"` or `upstream.NAME` for a
    /// named table, or `keys` for one table of a list.
    pub name: String,
    /// Line number of the setting, from 1.
    pub line: usize,
}

/// Checks that the settings file `file` with the content `text`, which the user does not trust,
/// only restricts the server.
///
/// # Errors
/// The file contains settings that only the owner may decide. The message lists these settings and
/// the possible fixes.
pub(super) fn check(file: &Path, text: &str) -> anyhow::Result<()> {
    let owned = owner_settings(text);
    if owned.is_empty() || is_trusted(file, text) {
        return Ok(());
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    bail!(
        "{} is not trusted, and it contains settings that only you may decide: {}. Read the file, \
         then run `toolgate trust {}`. Or name the file with --config, or remove it",
        file.display(),
        list_settings(&owned),
        folder.display()
    )
}

/// Returns a text that lists the first five of `settings` with their line numbers, and the number
/// of the others.
pub fn list_settings(settings: &[OwnerOnlySetting]) -> String {
    const SHOWN: usize = 5;
    let shown = settings.iter().take(SHOWN);
    let mut shown: Vec<_> = shown.map(|it| format!("`{}` in line {}", it.name, it.line)).collect();
    if settings.len() > SHOWN {
        shown.push(format!("{} more", settings.len() - SHOWN));
    }
    shown.join(", ")
}

/// Returns the settings in `text`, a settings file, that only the owner may decide, in order of
/// lines. Each named table and each table of a list is a setting of its own.
pub fn owner_settings(text: &str) -> Vec<OwnerOnlySetting> {
    let Ok(table) = DeTable::parse(text) else { return Vec::new() };
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    let mut owned = Vec::new();
    let mut add = |name: String, key_start: usize, value: &Spanned<DeValue<'_>>| {
        let starts = table_starts(value).unwrap_or_else(|| vec![key_start]);
        owned.extend(
            starts.into_iter().map(|at| OwnerOnlySetting { name: name.clone(), line: line(at) }),
        );
    };
    for (section, body) in table.get_ref() {
        let name: &str = section.get_ref();
        let DeValue::Table(settings) = body.get_ref() else {
            add(written_key(name), section.span().start, body);
            continue;
        };
        for (setting, value) in settings {
            let setting_name: &str = setting.get_ref();
            if !narrows(name, setting_name, value) {
                let name = format!("{}.{}", written_key(name), written_key(setting_name));
                add(name, setting.span().start, value);
            }
        }
    }
    owned.sort_by_key(|it| it.line);
    owned
}

/// Returns the byte offset of each table in `value`, if this value of a setting is a list of
/// tables. Returns `None` for any other value.
fn table_starts(value: &Spanned<DeValue<'_>>) -> Option<Vec<usize>> {
    let entries = value.get_ref().as_array()?;
    let start = |entry: &Spanned<DeValue<'_>>| {
        matches!(entry.get_ref(), DeValue::Table(_)).then(|| entry.span().start)
    };
    let starts: Vec<usize> = entries.iter().map(start).collect::<Option<_>>()?;
    (!starts.is_empty()).then_some(starts)
}

/// Returns `key` as TOML writes it: in quotes if it has other characters than letters, digits, `-`
/// and `_`. Control characters are escaped.
fn written_key(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match !key.is_empty() && key.chars().all(is_bare) {
        true => key.to_owned(),
        false => format!("\"{}\"", printable::escape_line(key)),
    }
}

/// Returns true if the setting `setting` in the section `section` can only restrict tools with this
/// `value`.
fn narrows(section: &str, setting: &str, value: &Spanned<DeValue<'_>>) -> bool {
    let releases = |entry: &Spanned<DeValue<'_>>| {
        entry.get_ref().as_str().is_some_and(|entry| entry.starts_with(files::RELEASE))
    };
    match (section, setting) {
        ("files", "protected") => {
            value.get_ref().as_array().is_some_and(|entries| !entries.iter().any(releases))
        }
        pair => NARROWING.contains(&pair),
    }
}

/// Reads the settings `file` of an untrusted workspace.
///
/// # Errors
/// The file is not a regular file, is too large, or is not UTF-8.
pub fn read_settings_text(file: &Path) -> anyhow::Result<String> {
    owned_files::read_text(file, OwnedFileSymlinkPolicy::Refused, FILE_BYTES_MAX)
}

/// Returns true if the user has trusted `file` with exactly the content `text`.
pub fn is_trusted(file: &Path, text: &str) -> bool {
    let marked = mark_path(file).and_then(|mark| Ok(fs::read_to_string(mark)?));
    marked.is_ok_and(|marked| marked.lines().next() == Some(&digest(text)))
}

/// Records that the user trusts `file` with the content `text`. Earlier content of the file is no
/// longer trusted, because an attacker could restore it.
///
/// # Errors
/// The file that records the trust cannot be written.
pub fn trust(file: &Path, text: &str) -> anyhow::Result<()> {
    let mark = mark_path(file)?;
    let folder = mark.parent().unwrap_or(Path::new("/"));
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    // The path is only for people who look at the mark.
    let marked = format!("{}\n{}\n", digest(text), file.display());
    let written = made.and_then(|()| fs::write(&mark, marked));
    written.with_context(|| format!("cannot write {}", mark.display()))
}

/// Removes the trust in `file`. Returns false if the file was not trusted.
///
/// # Errors
/// The file that records the trust cannot be removed.
pub fn distrust(file: &Path) -> anyhow::Result<bool> {
    let mark = mark_path(file)?;
    match fs::remove_file(&mark) {
        Ok(()) => Ok(true),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(err) => Err(err).with_context(|| format!("cannot remove {}", mark.display())),
    }
}

/// Returns the path of the file that records the user's trust in `file`. Fails if this user has no
/// state folder.
pub(crate) fn mark_path(file: &Path) -> anyhow::Result<PathBuf> {
    let Some(marks) = marks_folder() else {
        bail!("cannot store the trust: neither XDG_STATE_HOME nor HOME is set");
    };
    // The last component is not resolved: a link gets its own mark.
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::canonicalize(folder.unwrap_or(Path::new(".")));
    let folder = folder.with_context(|| format!("cannot find the folder of {}", file.display()))?;
    let real = folder.join(file.file_name().unwrap_or_default());
    let name = blake3::hash(real.as_os_str().as_encoded_bytes());
    Ok(marks.join(name.to_hex().as_str()))
}

/// Returns the folder of the files that record the user's trust, if this user has a state folder.
pub(crate) fn marks_folder() -> Option<PathBuf> {
    Some(state_folder()?.join("trusted"))
}

fn digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<(String, usize)> {
        owner_settings(text).into_iter().map(|it| (it.name, it.line)).collect()
    }

    #[test]
    fn a_file_that_only_restricts_needs_no_trust() {
        let text =
            "[tools]\ndeny = [\"exec.*\"]\neffects = \"reads\"\n[files]\nprotected = [\"a\"]\n";
        assert!(names(text).is_empty());
        assert!(names("").is_empty());
    }

    #[test]
    fn each_owner_setting_is_reported_with_its_line_in_any_spelling() {
        let cases = [
            ("[sandbox]\nprofile = \"off\"\n", "sandbox.profile", 2),
            ("sandbox.profile = \"off\"\n", "sandbox.profile", 1),
            ("sandbox = { profile = \"off\" }\n", "sandbox.profile", 1),
            ("# a\n[command.\"a.b\"]\nargv = []\n", "command.\"a.b\"", 2),
            ("[command.a]\nargv = []\n", "command.a", 1),
            ("[command.\"a\\u001b.b\"]\nargv = []\n", "command.\"a\\u{1b}.b\"", 1),
            ("[files]\nprotected = [\"a\", \"!.git\"]\n", "files.protected", 2),
            ("files.protected = ['!.git']\n", "files.protected", 1),
            ("files = { protected = [\"\\u0021.git\"] }\n", "files.protected", 1),
            ("[files]\nconfirm_folders = \"never\"\n", "files.confirm_folders", 2),
            ("\n[[keys]]\nname = \"x\"\n", "keys", 2),
            ("\n[[sandbox.for]]\ntools = \"x\"\n", "sandbox.for", 2),
        ];
        for (text, name, line) in cases {
            assert_eq!(names(text), [(name.to_owned(), line)], "{text}");
        }
    }

    #[test]
    fn each_named_table_and_each_table_of_a_list_is_reported_with_its_own_line() {
        let text = "[command.a]\nargv = []\n[[listen]]\naddr = \"1\"\n[upstream.x]\nurl = \"\"\n\
                    [command.\"b.c\"]\nargv = []\n[[listen]]\naddr = \"2\"\n[upstream.y]\nurl = \"\"\n\
                    [[policy.rules]]\nname = \"r\"\n[[policy.rules]]\nname = \"s\"\n";
        let expected = [
            ("command.a", 1),
            ("listen", 3),
            ("upstream.x", 5),
            ("command.\"b.c\"", 7),
            ("listen", 9),
            ("upstream.y", 11),
            ("policy.rules", 13),
            ("policy.rules", 15),
        ];
        assert_eq!(names(text), expected.map(|(name, line)| (name.to_owned(), line)));
    }
}
