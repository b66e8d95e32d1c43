//! `files.mkdir`: creates a directory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use crate::world::Root;
use crate::world::root::{Parents, shown};

/// The `files.mkdir` tool.
pub struct Mkdir {
    root: Root,
}

/// Directory to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The directory, relative to the workspace root.
    path: String,
    /// Create missing parent directories, too.
    #[serde(default = "yes")]
    parents: bool,
}

/// Directory that was created.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// The directory, as the caller named it.
    path: String,
    /// True if it is new; false if it already existed.
    created: bool,
}

impl Mkdir {
    /// Creates the tool for directories beneath `root`.
    pub fn new(root: &Root) -> Self {
        Self { root: root.clone() }
    }
}

impl Tool for Mkdir {
    const NAME: &'static str = "files.mkdir";
    const TITLE: &'static str = "Make directory";
    const ABOUT: &'static str = "Makes a directory and those on the way to it. files_write does \
        so by itself; this is for empty ones.";
    const EFFECTS: Effects = Effects::Adds;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let parents = if input.parents { Parents::Make } else { Parents::Require };
        self.root
            .work(ctx, move |root, _| {
                let created = root.make_dir(&input.path, parents)?;
                Ok(Output { path: input.path, created })
            })
            .await
    }

    fn text(output: &Output) -> Text {
        let path = shown(&output.path);
        Text::body(if output.created {
            format!("made {path}")
        } else {
            format!("{path} was there")
        })
    }
}

fn yes() -> bool {
    true
}
