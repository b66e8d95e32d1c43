//! `files.copy`: copies a file or directory.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::Settings;
use crate::world::Root;
use crate::world::root::{Bounds, Copied, Extent, Parents, Standing, shown};

/// The `files.copy` tool.
pub struct Copy {
    root: Root,
    settings: Arc<Settings>,
}

/// Entry to copy and the path of the copy.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The file or directory, relative to the workspace root.
    source: String,
    /// Path of the copy including its name: not the directory to put it in.
    destination: String,
    /// Copy a directory with everything in it, to a path that does not exist.
    #[serde(default)]
    recursive: bool,
    /// Replace a file that is at the destination.
    #[serde(default)]
    overwrite: bool,
    /// Create missing directories on the way to the destination.
    #[serde(default = "yes")]
    mkdirs: bool,
}

/// Entry that was copied.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// The original.
    source: String,
    /// The copy.
    destination: String,
    /// Number of files and directories copied.
    entries: u64,
    /// Number of bytes in the copied files.
    bytes: u64,
    /// Number of pipes, sockets and devices left out.
    skipped: u64,
}

impl Copy {
    /// Creates the tool for entries beneath `root`.
    pub fn new(root: &Root, settings: &Arc<Settings>) -> Self {
        Self { root: root.clone(), settings: settings.clone() }
    }
}

impl Tool for Copy {
    const NAME: &'static str = "files.copy";
    const TITLE: &'static str = "Copy";
    const ABOUT: &'static str = "Copies a file, or with recursive: true a directory; the copy \
        appears whole or not at all. Symlinks in a directory are copied as they are.";
    const EFFECTS: Effects = Effects::Changes;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let bounds = Bounds {
            extent: if input.recursive { Extent::Tree } else { Extent::Entry },
            standing: if input.overwrite { Standing::Goes } else { Standing::Stays },
            parents: if input.mkdirs { Parents::Make } else { Parents::Require },
            bytes_max: self.settings.copy_bytes_max,
        };
        // The size is known only after the copy, so this only checks that some budget is left.
        ctx.spent.written(0)?;
        let spent = ctx.spent.clone();
        self.root
            .work(ctx, move |root, watch| {
                let Input { source, destination, .. } = input;
                let Copied { entries, bytes, skipped } =
                    root.copy(&source, &destination, bounds, watch)?;
                spent.wrote(bytes);
                Ok(Output { source, destination, entries, bytes, skipped })
            })
            .await
    }

    fn text(output: &Output) -> Text {
        let Output { source, destination, entries, bytes, skipped } = output;
        let text = Text::body(format!("copied {} to {}", shown(source), shown(destination)));
        let left_out = match skipped {
            0 => String::new(),
            skipped => format!("; {skipped} pipes, sockets or devices were left out"),
        };
        text.with_note(format!("{entries} files and directories, {bytes} bytes{left_out}"))
    }
}

fn yes() -> bool {
    true
}
