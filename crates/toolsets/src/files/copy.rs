//! `files.copy`: a file or directory a second time.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::Settings;
use crate::world::Root;
use crate::world::root::{Bounds, Copied, Extent, Parents, Standing, shown};

/// Copies one entry.
pub struct Copy {
    root: Root,
    settings: Arc<Settings>,
}

/// What to copy, and where to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The file or directory, relative to the workspace root.
    source: String,
    /// The path of the copy, with its name: not the directory to put it in.
    destination: String,
    /// Copy a directory with all in it, to a path where nothing is.
    #[serde(default)]
    recursive: bool,
    /// Replace a file that is at the destination.
    #[serde(default)]
    overwrite: bool,
    /// Create missing directories on the way to the destination.
    #[serde(default = "yes")]
    mkdirs: bool,
}

/// What was copied.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// What was copied.
    source: String,
    /// The copy.
    destination: String,
    /// How many files and directories it has.
    entries: u64,
    /// How many bytes its files have.
    bytes: u64,
    /// How many pipes, sockets and devices were left out.
    skipped: u64,
}

impl Copy {
    /// The tool for entries beneath `root`.
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
        // How much it will be is seen on the way.
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
