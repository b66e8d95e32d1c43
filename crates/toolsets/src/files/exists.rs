//! `files.exists`: whether something is at a path.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use crate::world::Root;
use crate::world::root::{Kind, shown};

/// Tells whether an entry exists.
pub struct Exists {
    root: Root,
}

/// What to look for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The path, relative to the workspace root.
    path: String,
}

/// Whether it is there.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// The path, as it was named.
    path: String,
    /// Whether something is there.
    exists: bool,
    /// What it is, symlinks followed; `symlink` for one that leads to nothing.
    kind: Option<Kind>,
}

impl Exists {
    /// The tool for paths beneath `root`.
    pub fn new(root: &Root) -> Self {
        Self { root: root.clone() }
    }
}

impl Tool for Exists {
    const NAME: &'static str = "files.exists";
    const TITLE: &'static str = "Check path";
    const ABOUT: &'static str =
        "Tells whether a path exists and whether it is a file or a directory.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, _: &Ctx, input: Input) -> Result<Output, ToolError> {
        let kind = self.root.exists(&input.path)?;
        Ok(Output { path: input.path, exists: kind.is_some(), kind })
    }

    fn text(output: &Output) -> Text {
        let path = shown(&output.path);
        Text::body(match output.kind {
            Some(Kind::File) => format!("{path} is a file"),
            Some(Kind::Dir) => format!("{path} is a directory"),
            Some(Kind::Symlink) => format!("{path} is a symlink to something that does not exist"),
            Some(Kind::Other) => format!("{path} is a pipe, a socket or a device"),
            None => format!("{path} does not exist"),
        })
    }
}
