//! `files.mkdir`: creates a directory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use toolgate_world::Root;
use toolgate_world::root::{MissingParentPolicy, quoted_path};

/// The `files.mkdir` tool.
pub struct MakeDirectory {
    pub(super) root: Root,
}

/// Input of `files.mkdir`: the directory to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeDirectoryInput {
    /// The directory.
    path: String,
    /// Create missing parent directories, too.
    #[serde(default = "crate::input_defaults::yes")]
    parents: bool,
}

/// The result of creating a directory.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MakeDirectoryOutput {
    /// Path of the directory, as given in the call.
    path: String,
    /// True if the directory is new; false if it already existed.
    created: bool,
}

impl Tool for MakeDirectory {
    const NAME: &'static str = "files.mkdir";
    const TITLE: &'static str = "Make directory";
    const DESCRIPTION: &'static str = "Create a directory and its missing parents.";
    const EFFECTS: Effects = Effects::Adds;
    const RARE_ARGUMENTS: &'static [&'static str] = &["parents"];
    const IDEMPOTENT: bool = true;
    type Input = MakeDirectoryInput;
    type Output = MakeDirectoryOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let parents =
            if input.parents { MissingParentPolicy::Make } else { MissingParentPolicy::Require };
        self.root
            .run_blocking(ctx, move |root, _| {
                let created = root.make_dir(&input.path, parents)?;
                Ok(MakeDirectoryOutput { path: input.path, created })
            })
            .await
    }

    fn result_text(output: &MakeDirectoryOutput) -> ResultText {
        let path = quoted_path(&output.path);
        ResultText::from_body(if output.created {
            format!("created {path}")
        } else {
            format!("{path} already exists")
        })
    }
}
