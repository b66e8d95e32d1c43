//! `files.move`: moves or renames a file, directory or symlink.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use crate::world::Root;
use crate::world::root::{Kind, Parents, Standing, shown};

/// The `files.move` tool.
pub struct Move {
    root: Root,
}

/// Entry to move and its new path.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The file, directory or symlink, relative to the workspace root.
    source: String,
    /// New path including the new name: not the directory to put it in.
    destination: String,
    /// Replace a file (or an empty directory) that is at the destination.
    #[serde(default)]
    overwrite: bool,
    /// Create missing directories on the way to the destination.
    #[serde(default = "yes")]
    mkdirs: bool,
}

/// Entry that was moved.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// Old path.
    source: String,
    /// New path.
    destination: String,
    /// Kind of entry.
    kind: Kind,
}

impl Move {
    /// Creates the tool for entries beneath `root`.
    pub fn new(root: &Root) -> Self {
        Self { root: root.clone() }
    }
}

impl Tool for Move {
    const NAME: &'static str = "files.move";
    const TITLE: &'static str = "Move or rename";
    const ABOUT: &'static str = "Moves or renames a file, directory or symlink at one stroke. \
        Nothing at the destination is replaced unless overwrite: true says so.";
    const EFFECTS: Effects = Effects::Changes;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let standing = if input.overwrite { Standing::Goes } else { Standing::Stays };
        let parents = if input.mkdirs { Parents::Make } else { Parents::Require };
        self.root
            .work(ctx, move |root, watch| {
                let Input { source, destination, .. } = input;
                let kind = root.rename(&source, &destination, standing, parents, watch)?;
                Ok(Output { source, destination, kind })
            })
            .await
    }

    fn text(output: &Output) -> Text {
        let Output { source, destination, .. } = output;
        Text::body(format!("moved {} to {}", shown(source), shown(destination)))
    }
}

fn yes() -> bool {
    true
}
