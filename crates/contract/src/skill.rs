//! Skills: folders with a `SKILL.md` that tell an agent how to do something well.

use serde_json::{Map, Value};

use crate::{BoxFuture, Claim, Ctx, ToolError, ToolSpec};

/// A skill: its `SKILL.md` and the files beside it, each a resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    /// Its `SKILL.md`: `skill://PATH/SKILL.md`, where the last part of the path is its name.
    pub uri: String,
    /// What the front matter of its `SKILL.md` says, as it stands there.
    pub front_matter: Map<String, Value>,
    /// What it consists of.
    pub files: SkillFiles,
}

/// What a skill consists of.
#[derive(Debug, Clone, PartialEq)]
pub enum SkillFiles {
    /// These files, and no other.
    All(Vec<SkillFile>),
    /// Files that are made when they are asked for.
    Dynamic,
}

/// A file of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillFile {
    /// What it is read by.
    pub uri: String,
    /// `sha256:` and its SHA-256 in hex.
    pub digest: String,
    /// How long it is, in bytes.
    pub bytes: u64,
}

/// A source of skills. Their files are resources of a source of resources.
pub trait Skills: Send + Sync + 'static {
    /// What policy knows looking at them by, if it is to: as reading their files.
    fn guard(&self) -> Option<&ToolSpec> {
        None
    }
    /// How surely it has the skill whose `SKILL.md` is read by `uri`, if it may: who has it listed
    /// is asked alone.
    fn claims(&self, _uri: &str) -> Option<Claim> {
        Some(Claim::Scheme)
    }
    /// All that are listed, in order of URI.
    fn all<'a>(&'a self, ctx: &'a Ctx) -> BoxFuture<'a, Result<Vec<Skill>, ToolError>>;
    /// The skill whose `SKILL.md` is read by `uri`, listed or not.
    fn get<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Option<Skill>, ToolError>>;
    /// Why there is none at `uri`, where there would be if it could be used; of what there was
    /// when this was asked last.
    fn trouble(&self, _uri: &str) -> Option<String> {
        None
    }
}
