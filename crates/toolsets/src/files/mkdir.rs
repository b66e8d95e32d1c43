//! `files.mkdir`: a directory made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use crate::world::Root;
use crate::world::root::{Parents, shown};

/// Makes a directory.
pub struct Mkdir {
    root: Root,
}

/// Which directory to make.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The directory, relative to the workspace root.
    path: String,
    /// Make missing directories on the way, too.
    #[serde(default = "yes")]
    parents: bool,
}

/// What was made.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// The directory, as it was named.
    path: String,
    /// Whether it is new; false if it was there.
    created: bool,
}

impl Mkdir {
    /// The tool for directories beneath `root`.
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
