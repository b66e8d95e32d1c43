//! Descriptions of tools: ids, effects, schemas and limits.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{EncodedJsonCache, Icon, LazySchema, MetaFields};

/// The rule that decides if calls of a tool run as jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JobSupport {
    /// Calls never run as jobs.
    Never,
    /// A call runs as a job if the caller requests one, or if the caller accepts jobs and the tool
    /// runs programs.
    #[default]
    Optional,
    /// A call runs as a job if the caller accepts or requests jobs.
    Preferred,
    /// Every call runs as a job.
    Required,
}

/// The outcome of a tool run that returned a result: success, or a failure of the tool or its
/// program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolRunStatus {
    /// The tool did its work, and no program that it ran reported failure.
    Done,
    /// A program that the tool ran reported failure, by its exit code, a signal or a timeout.
    ProgramFailed,
    /// The tool reported failure. Its content explains the reason.
    ToolFailed,
}

/// The kind of changes that a tool can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effects {
    /// The tool changes nothing.
    Reads,
    /// The tool only adds items, for example a new folder or a copy.
    Adds,
    /// The tool can overwrite or remove files or other data.
    Changes,
    /// The tool runs programs, which can do everything that their sandbox allows.
    Runs,
}

impl Effects {
    /// Returns the effects in one word, as rules and results spell them.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Adds => "adds",
            Self::Changes => "changes",
            Self::Runs => "runs",
        }
    }
}

/// The id of a tool, `toolset.verb`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolId(Arc<str>);

impl ToolId {
    /// Parses `id`: one or more `.`-separated parts of `[a-z0-9_]`. Returns `None` if it is
    /// malformed. Use [`ToolId::foreign`] for names of other servers.
    pub fn new(id: &str) -> Option<Self> {
        let parts = id.split('.');
        let sound = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        parts.into_iter().all(sound).then(|| Self(id.into()))
    }

    /// Parses the id of another server's tool: one or more `.`-separated parts of `[A-Za-z0-9_-]`.
    pub fn foreign(id: &str) -> Option<Self> {
        let sound = |part: &str| {
            let known = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
            !part.is_empty() && part.bytes().all(known)
        };
        id.split('.').all(sound).then(|| Self(id.into()))
    }

    /// Returns the tool's id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first part of the tool's id, the name of the toolset.
    pub fn toolset(&self) -> &str {
        self.0.split('.').next().unwrap_or_default()
    }
}

impl fmt::Display for ToolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The deepest nesting of braces in a glob that is compiled.
const GLOB_DEPTH_MAX: usize = 50;
/// The longest glob that is compiled, in bytes.
const GLOB_BYTES_MAX: usize = 8 << 10;

/// Returns the reason to reject `glob`: longer than 8 KiB, or braces nested deeper than 50.
/// Compiling such a glob could exhaust the process.
pub fn glob_problem(glob: &str) -> Option<String> {
    if glob.len() > GLOB_BYTES_MAX {
        return Some(format!("it has {} bytes; at most {GLOB_BYTES_MAX} are allowed", glob.len()));
    }
    let mut depth = 0_usize;
    let mut deepest = 0;
    for byte in glob.bytes() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    (deepest > GLOB_DEPTH_MAX).then(|| format!("its braces nest deeper than {GLOB_DEPTH_MAX}"))
}

/// Replaces every separator in a tool's name with `_`.
///
/// `files.read`, `files/read`, `files-read` and `files_read` fold to the same string. The catalog
/// refuses two tools whose names fold to the same string.
pub fn fold_name(name: &str) -> Cow<'_, str> {
    // This runs several times on every call, and most names need no change.
    if !name.as_bytes().iter().any(|byte| is_separator(*byte)) {
        return name.into();
    }
    let fold =
        |letter: char| if u8::try_from(letter).is_ok_and(is_separator) { '_' } else { letter };
    name.chars().map(fold).collect::<String>().into()
}

/// Returns true if `byte` separates the parts of a tool's name. No other character of UTF-8
/// contains such a byte.
fn is_separator(byte: u8) -> bool {
    matches!(byte, b'.' | b'/' | b'-' | b':' | b' ')
}

/// A group of tools whose running calls are counted separately from all other calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConcurrencyGroup {
    /// The name of the group, e.g. of the upstream that has the tools.
    pub name: Arc<str>,
    /// The maximum number of calls of the group that may run at once.
    pub concurrency_max: usize,
}

/// The description of a tool.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// The id of the tool.
    pub id: ToolId,
    /// A short name of the tool for people.
    pub title: String,
    /// A description of the tool for the agent.
    pub description: String,
    /// The kind of changes that a run of the tool can make.
    pub effects: Effects,
    /// The effects that lists announce, if they differ from `effects`. A tool that only passes
    /// calls on changes nothing by itself, and announces the most that these calls may do.
    pub announced_effects: Option<Effects>,
    /// A tool whose rules for denial, confirmation and rates also apply to this tool.
    pub ruled_as: Option<ToolId>,
    /// True if the tool interacts with external systems such as the web. With `None`, this is
    /// assumed if the tool runs programs.
    pub open_world: Option<bool>,
    /// Tags of the tool for policy rules, in addition to the id and the effects.
    pub tags: Vec<String>,
    /// The names of the arguments that are workspace paths.
    pub paths: Vec<String>,
    /// Further names that the tool accepts for its arguments. Each comes with the argument that
    /// it means.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Arguments that are left out of tool lists for models, such as `encoding` or `edits[].count`.
    /// Calls accept these arguments.
    pub rare_arguments: &'static [&'static str],
    /// False if tool lists for models leave the tool out, because another tool does the same. A
    /// call by its name still works.
    pub listed: bool,
    /// True if a second run of the tool with the same input is harmless.
    pub idempotent: bool,
    /// True if a result may leave out a part of a program's output, and refer to
    /// [`OUTPUT_TOOL`](crate::OUTPUT_TOOL) for it.
    pub stores_output: bool,
    /// The time limit of one call of the tool. `None` means the configured default.
    pub deadline: Option<Duration>,
    /// The maximum number of calls of this tool that may run at once. `None` means no separate
    /// limit.
    pub concurrency_max: Option<usize>,
    /// The concurrency group to which the tool belongs. `None` means the group of the server's own
    /// tools.
    pub group: Option<ConcurrencyGroup>,
    /// The priority of the tool's jobs among waiting jobs. Jobs with a higher priority run first.
    pub priority: i32,
    /// JSON Schema 2020-12 of the tool's arguments. Its root is an object.
    pub input_schema: LazySchema,
    /// JSON Schema 2020-12 of the tool's structured result, if it has one.
    pub output_schema: Option<LazySchema>,
    /// The rule that decides if calls of the tool run as jobs: never, optionally, preferably or
    /// always.
    pub job: JobSupport,
    /// The icons of the tool.
    pub icons: Vec<Icon>,
    /// Further metadata about the tool for clients.
    pub meta: MetaFields,
    /// The list entries of this tool that dialects have cached.
    pub list_cache: EncodedJsonCache,
}

impl ToolSpec {
    /// Creates a minimal description of a tool: an object as input and no structured result.
    pub fn new(
        id: ToolId,
        title: impl Into<String>,
        about: impl Into<String>,
        effects: Effects,
    ) -> Self {
        Self {
            id,
            title: title.into(),
            description: about.into(),
            effects,
            announced_effects: None,
            ruled_as: None,
            open_world: None,
            tags: Vec::new(),
            paths: Vec::new(),
            aliases: &[],
            rare_arguments: &[],
            listed: true,
            idempotent: false,
            stores_output: false,
            deadline: None,
            concurrency_max: None,
            group: None,
            priority: 0,
            input_schema: serde_json::json!({ "type": "object" }).into(),
            output_schema: None,
            job: JobSupport::Optional,
            icons: Vec::new(),
            meta: MetaFields::new(),
            list_cache: EncodedJsonCache::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_separator_of_a_name_becomes_an_underscore_and_other_characters_stay() {
        let spellings = ["files.read", "files/read", "files-read", "files:read", "files read"];
        assert!(spellings.into_iter().all(|name| fold_name(name) == "files_read"));
        assert!(matches!(fold_name("files_read"), Cow::Borrowed("files_read")));
        assert_eq!(fold_name("ä.ö-\u{ae}\u{12e}..x"), "ä_ö_\u{ae}\u{12e}__x");
        assert_eq!(fold_name(""), "");
    }

    #[test]
    fn long_or_deeply_nested_globs_are_refused() {
        let nested = |depth: usize| "{".repeat(depth) + "a" + &"}".repeat(depth);
        assert_eq!(glob_problem(&nested(50)), None);
        assert_eq!(glob_problem("src/**/*.{rs,toml}"), None);
        assert!(glob_problem(&nested(51)).is_some_and(|why| why.contains("nest deeper than 50")));
        assert!(glob_problem(&"a".repeat(8193)).is_some_and(|why| why.contains("8193 bytes")));
    }
}
