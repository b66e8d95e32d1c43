//! Skills: folders with a `SKILL.md` of instructions for an agent.

use serde_json::{Map, Value};

use crate::{ToolContext, ToolFuture, ToolSpec, UriClaimStrength};

/// A skill: its `SKILL.md` and further files. Each file is a resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    /// The skill's URI `skill://PATH/SKILL.md`. The last part of the path is the skill's name.
    pub uri: String,
    /// The front matter of `SKILL.md`, unchanged.
    pub front_matter: Map<String, Value>,
    /// The files of the skill.
    pub files: SkillFileList,
}

/// The list of a skill's files.
#[derive(Debug, Clone, PartialEq)]
pub enum SkillFileList {
    /// Complete list of the skill's files.
    All(Vec<SkillFile>),
    /// Files that are generated on request, so they cannot be listed.
    Dynamic,
}

/// A file of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillFile {
    /// The URI of the file. Clients read the file as a resource with this URI.
    pub uri: String,
    /// The digest of the file: `sha256:` followed by the SHA-256 in hex.
    pub digest: String,
    /// The length of the file in bytes.
    pub bytes: u64,
}

/// A source of skills. A resource source serves their files.
pub trait SkillSource: Send + Sync + 'static {
    /// Returns the tool whose policy applies to the skills of this source, if there is one.
    fn guard(&self) -> Option<&ToolSpec> {
        None
    }
    /// Returns the strength of the source's claim on the skill with the `SKILL.md` at `uri`, or
    /// `None` if the source makes no claim. If a source lists the skill, the host asks only this
    /// source.
    fn claim(&self, _uri: &str) -> Option<UriClaimStrength> {
        Some(UriClaimStrength::Scheme)
    }
    /// Returns all skills that the source lists, ordered by URI.
    fn all<'a>(&'a self, ctx: &'a ToolContext) -> ToolFuture<'a, Vec<Skill>>;
    /// Returns the skill with the `SKILL.md` at `uri`, even if it is not listed.
    fn get<'a>(&'a self, ctx: &'a ToolContext, uri: &'a str) -> ToolFuture<'a, Option<Skill>>;
    /// Returns the reason that the skill with the `SKILL.md` at `uri` is unusable, as of the last
    /// query. `None` if the skill is usable or unknown.
    fn unusable_reason(&self, _uri: &str) -> Option<String> {
        None
    }
}
