//! Skills with their front matter and their files.

use std::path::PathBuf;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use toolgate_contract::printable::json_texts;
use toolgate_contract::{ResourceContents, ResourceSpec, Skill, SkillFile, SkillFileList};

use super::{BYTES_MAX, FILES_MAX, SCHEME, SKILL_FILE};
use crate::front_matter::{self, FileErrorWithLine};
use crate::{icons, media, uri_paths};

/// Skill that the server offers to clients.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OfferedSkill {
    /// The path of the skill in its URI, after `skill://`, such as `acme/refunds`.
    pub(super) path: String,
    pub(super) name: String,
    pub(super) about: String,
    pub(super) front_matter: Map<String, Value>,
    /// The skill's files, sorted by URI, including `SKILL.md`.
    pub(super) files: Vec<OfferedSkillFile>,
}

/// A file that belongs to a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OfferedSkillFile {
    pub(super) uri: String,
    /// The path of the file relative to the skill's folder.
    pub(super) path: String,
    pub(super) info: Arc<SkillFileInfo>,
    pub(super) origin: SkillFileOrigin,
}

/// The properties of the content of a skill's file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SkillFileInfo {
    digest: String,
    pub(super) bytes: u64,
    is_text: bool,
    /// The text of the file, if it is a `SKILL.md` in UTF-8.
    pub(super) text: Option<String>,
}

/// The location of the content of a skill's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SkillFileOrigin {
    /// Content that is compiled into the server.
    BuiltIn(&'static str),
    /// The path of a file in the workspace, including symlinks that the search for skills followed.
    Workspace(PathBuf),
}

impl SkillFileInfo {
    /// Returns the front matter keys of this `SKILL.md` whose values should be in quotes.
    pub(super) fn unquoted_keys(&self) -> Vec<String> {
        let head = self.text.as_deref().and_then(|text| Some(front_matter::split(text).ok()?.head));
        let broken = head.filter(|head| front_matter::parse::<Value>(head, &[]).is_err());
        let quoted = broken.and_then(front_matter::quote_broken_values);
        quoted.map(|quoted| quoted.keys).unwrap_or_default()
    }

    /// Computes the properties of a skill's file with the path `name` and the content `content`.
    pub(super) fn from_content(name: &str, content: &[u8]) -> Self {
        let text = std::str::from_utf8(content).ok();
        Self {
            digest: format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(content))),
            bytes: content.len() as u64,
            is_text: media::is_text(name, content),
            text: text.filter(|_| name == SKILL_FILE).map(str::to_owned),
        }
    }
}

impl OfferedSkill {
    /// Creates the skill at `path` from `files`, each with its path in the skill's folder. Fails if
    /// its `SKILL.md` is missing or invalid.
    pub(super) fn new(
        path: &str,
        files: impl IntoIterator<Item = (String, Arc<SkillFileInfo>, SkillFileOrigin)>,
    ) -> Result<Self, FileErrorWithLine> {
        let part = |(inner, info, origin): (String, _, _)| OfferedSkillFile {
            uri: format!(
                "{SCHEME}{}/{}",
                uri_paths::percent_encode_path(path),
                uri_paths::percent_encode_path(&inner)
            ),
            path: inner,
            info,
            origin,
        };
        let mut files: Vec<OfferedSkillFile> = files.into_iter().map(part).collect();
        files.sort_by(|a, b| a.uri.cmp(&b.uri));
        let skill = files.iter().find(|part| part.path == SKILL_FILE);
        let skill = skill.ok_or_else(|| FileErrorWithLine::whole("it is not a regular file"))?;
        let text = skill
            .info
            .text
            .as_deref()
            .ok_or_else(|| FileErrorWithLine::whole("it is not UTF-8"))?;
        let (head, front_matter) = parse_head(text)?;
        let name = text_value(&front_matter, head, "name")?;
        let about = text_value(&front_matter, head, "description")?;
        let folder = path.rsplit('/').next().unwrap_or_default();
        if name != folder {
            let why = format!(
                "its name is `{name}`, but its folder is `{folder}`; they must be the same"
            );
            return Err(FileErrorWithLine::at_line(key_line(head, "name"), why));
        }
        if !is_name(&name) {
            let why = format!(
                "`{name}` is not a valid skill name: use a-z, 0-9 and single `-` between them, at \
                 most 64 characters"
            );
            return Err(FileErrorWithLine::at_line(key_line(head, "name"), why));
        }
        for (key, value) in &front_matter {
            json_texts(value).into_iter().try_for_each(|text| {
                front_matter::check_text(text).map_err(|fault| {
                    let why = format!("a text of `{key}` {fault}");
                    FileErrorWithLine::at_line(key_line(head, key), why)
                })
            })?;
        }
        Ok(Self { path: path.to_owned(), name, about, front_matter, files })
    }

    /// Returns the URI of the skill's `SKILL.md`.
    pub(super) fn uri(&self) -> String {
        format!("{SCHEME}{}/{SKILL_FILE}", uri_paths::percent_encode_path(&self.path))
    }

    pub(super) fn skill(&self) -> Skill {
        let file = |part: &OfferedSkillFile| SkillFile {
            uri: part.uri.clone(),
            digest: part.info.digest.clone(),
            bytes: part.info.bytes,
        };
        Skill {
            uri: self.uri(),
            front_matter: self.front_matter.clone(),
            files: SkillFileList::All(self.files.iter().map(file).collect()),
        }
    }

    /// Returns the entry in a resource list for the skill's file `part`.
    pub(super) fn resource(&self, part: &OfferedSkillFile) -> ResourceSpec {
        let is_skill = part.path == SKILL_FILE;
        let name = part.path.rsplit('/').next().unwrap_or_default();
        let mut spec = ResourceSpec::new(&part.uri, if is_skill { &self.name } else { name });
        spec.about = is_skill.then(|| self.about.clone());
        spec.media_type = Some(part.media_type());
        spec.bytes = Some(part.info.bytes);
        spec.icons = icons::for_toolset("skills");
        spec
    }
}

impl OfferedSkillFile {
    fn media_type(&self) -> String {
        media::media_type(&self.path, self.info.is_text)
    }

    /// Returns `content`, the content of this file of a skill, as a resource.
    pub(super) fn contents(&self, content: Vec<u8>) -> ResourceContents {
        media::contents(&self.uri, &self.path, content)
    }
}

pub(super) fn too_many_files(count: usize) -> FileErrorWithLine {
    FileErrorWithLine::whole(format!(
        "the skill has {count} files or more; a skill can have at most {FILES_MAX}"
    ))
}

pub(super) fn too_large(bytes: u64) -> FileErrorWithLine {
    FileErrorWithLine::whole(format!(
        "the files of the skill have {bytes} bytes or more; a skill can have at most {BYTES_MAX}"
    ))
}

/// Parses the front matter of `text`. Returns the YAML text and its values. Fails if the front
/// matter is missing or invalid.
///
/// Many published skills have a description with a colon and without quotes. Such a value is
/// accepted unchanged.
fn parse_head(text: &str) -> Result<(&str, Map<String, Value>), FileErrorWithLine> {
    let head = front_matter::split(text)?.head;
    let parsed = front_matter::parse(head, &[]).or_else(|problem| {
        let quoted = front_matter::quote_broken_values(head).ok_or_else(|| problem.clone())?;
        front_matter::parse(&quoted.head, &[]).map_err(|_| problem)
    });
    match parsed? {
        Value::Object(fields) => Ok((head, fields)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(FileErrorWithLine::at_line(2, "the front matter is not a list of `key: value`"))
        }
    }
}

/// Returns the front matter of `text`, the content of a `SKILL.md`.
///
/// # Errors
/// Fails if the front matter is missing or invalid. The message names the line and the reason.
pub fn front_matter(text: &str) -> Result<Map<String, Value>, String> {
    let fields = parse_head(text).map(|(_, fields)| fields);
    fields.map_err(|FileErrorWithLine { line, message }| format!("line {line}: {message}"))
}

/// Returns the value of `key` in the front matter. Fails if the value is missing or not a text.
fn text_value(
    front_matter: &Map<String, Value>,
    head: &str,
    key: &str,
) -> Result<String, FileErrorWithLine> {
    match front_matter.get(key) {
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
        Some(_) => Err(FileErrorWithLine::at_line(
            key_line(head, key),
            format!("`{key}` must be text and not empty; put it in quotes"),
        )),
        None => Err(FileErrorWithLine::at_line(1, format!("the front matter has no `{key}`"))),
    }
}

/// Returns the number of the line in the file on which `key` is in the front matter.
fn key_line(head: &str, key: &str) -> usize {
    let is_key = |line: &str| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':'));
    head.lines().position(is_key).map_or(1, |at| at + 2)
}

fn is_name(name: &str) -> bool {
    let parts = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    name.len() <= 64 && name.split('-').all(parts)
}
