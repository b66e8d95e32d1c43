//! `files.edit`: changes several places of a file, all of them or none.

mod plan;
mod flat;
mod nearest;
mod numbered;
mod diff;
mod encoded;
#[cfg(any(fuzzing, test))]
pub(super) mod fuzzing;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{
    Effects, ResultText, Tool, ToolContext, ToolError, ToolFault, WriteBudget,
};

use super::FileSettings;
use crate::counted::counted;
use encoded::EncodedText;
use toolgate_world::Root;
use toolgate_world::root::{
    Etag, ExistingFile, MissingFile, ParentPolicy, WorkMonitor, WriteConditions, quoted_path,
};

/// Attempts at an edit by text if the file keeps changing meanwhile.
const TRIES_MAX: usize = 16;
/// Maximum number of changes in one call.
const EDITS_MAX: usize = 1000;

/// The `files.edit` tool.
pub struct EditFile {
    root: Root,
    settings: Arc<FileSettings>,
}

/// File to edit and the changes to make.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditFileInput {
    /// The file, relative to the workspace root.
    path: String,
    /// Changes, each relative to the current file, not to each other's results. They must not
    /// overlap.
    #[schemars(length(min = 1, max = 1000))]
    edits: Vec<EditChange>,
    /// Edit the file only if it still has this etag (from a read). Recommended with line numbers.
    if_match: Option<String>,
    /// Return the diff without changing the file.
    #[serde(default)]
    dry_run: bool,
}

/// One change: of the text `old`, or of the lines from `start_line` to `end_line`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EditChange {
    /// Text to replace, exactly as in the file except line endings; must occur once.
    old: Option<String>,
    /// Replacement; empty deletes. Line endings become those of the file.
    new: String,
    /// Replace every occurrence of `old`.
    #[serde(default)]
    replace_all: bool,
    /// Replace every occurrence of `old` if there are exactly this many.
    #[schemars(range(min = 1))]
    count: Option<u64>,
    /// First line to replace (1-based).
    #[schemars(range(min = 1))]
    start_line: Option<u64>,
    /// Last line to replace; by default `start_line`. `start_line - 1` inserts before `start_line`.
    end_line: Option<u64>,
}

/// Result of the edit.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EditFileOutput {
    /// The file, relative to the workspace root.
    path: String,
    /// Unified diff of the change.
    diff: String,
    /// True if the diff was cut because of its length; the edit itself is complete.
    diff_truncated: bool,
    /// Number of places changed.
    replacements: u64,
    /// New etag of the file.
    etag: Etag,
    /// New size in bytes.
    size: u64,
    /// Last modification time (RFC 3339).
    mtime: String,
    /// True if nothing was written.
    dry_run: bool,
}

impl EditFile {
    /// Creates the tool for files beneath `root`.
    pub fn new(root: &Root, settings: &Arc<FileSettings>) -> Self {
        Self { root: root.clone(), settings: settings.clone() }
    }
}

impl Tool for EditFile {
    const NAME: &'static str = "files.edit";
    const TITLE: &'static str = "Edit file";
    const DESCRIPTION: &'static str = "Change places in a file, given by exact text or by line \
        numbers: all of them or, if one does not match, none. Text that occurs more than once is \
        refused without replace_all or count. Keeps line endings, permissions and all other \
        content, and returns the diff.";
    const EFFECTS: Effects = Effects::Changes;
    type Input = EditFileInput;
    type Output = EditFileOutput;

    async fn run(
        &self,
        ctx: &ToolContext,
        input: EditFileInput,
    ) -> Result<EditFileOutput, ToolError> {
        let settings = self.settings.clone();
        let spent = ctx.write_budget.clone();
        self.root
            .run_blocking(ctx, move |root, watch| edit(root, &settings, &input, &spent, watch))
            .await
    }

    fn result_text(output: &EditFileOutput) -> ResultText {
        let EditFileOutput { diff, diff_truncated, replacements, etag, size, dry_run, .. } = output;
        let body = match (diff.is_empty(), diff_truncated) {
            (true, false) => "no change\n".to_owned(),
            (true, true) => "the changed lines are too long to show\n".to_owned(),
            (false, _) => diff.clone(),
        };
        let places = counted(*replacements, "place", "places");
        let size = counted(*size, "byte", "bytes");
        let status = if *dry_run { "would be changed (dry run)" } else { "changed" };
        let cut = if *diff_truncated { "; the diff is cut here, the edit is complete" } else { "" };
        ResultText::from_body(body)
            .with_note(format!("{places} {status}; etag {etag}; {size}{cut}"))
    }
}

fn edit(
    root: &Root,
    settings: &FileSettings,
    input: &EditFileInput,
    spent: &WriteBudget,
    watch: &WorkMonitor,
) -> Result<EditFileOutput, ToolError> {
    if input.edits.is_empty() {
        return Err(ToolError::invalid("/edits", "it is empty; give at least one edit"));
    }
    if input.edits.len() > EDITS_MAX {
        let message =
            format!("it has {} edits; one call can make at most {EDITS_MAX}", input.edits.len());
        return Err(ToolError::invalid("/edits", message));
    }
    let changes = plan::validate_changes(&input.edits)?;
    root.check_changeable(&input.path)?;
    // After a change by others, line numbers may point elsewhere. Text still identifies its place.
    let attempts =
        if plan::all_by_text(&changes) && input.if_match.is_none() { TRIES_MAX } else { 1 };
    for _ in 1..attempts {
        match edit_once(root, settings, input, &changes, spent, watch) {
            Err(ToolError { fault: ToolFault::Conflict(_), .. }) => {}
            outcome => return outcome,
        }
    }
    edit_once(root, settings, input, &changes, spent, watch)
}

fn edit_once(
    root: &Root,
    settings: &FileSettings,
    input: &EditFileInput,
    changes: &[plan::PlannedChange<'_>],
    spent: &WriteBudget,
    watch: &WorkMonitor,
) -> Result<EditFileOutput, ToolError> {
    let file = root.open_file(&input.path)?;
    let path = file.path().to_owned();
    let most = settings.limits.write_bytes_max;
    let too_large = |size: u64| {
        let message =
            format!("{} has {size} bytes; at most {most} can be edited", quoted_path(&path));
        ToolError::new(ToolFault::TooLarge, message)
    };
    let meta = *file.meta();
    if meta.size() > most {
        return Err(too_large(meta.size()));
    }
    let old = file.read(0, meta.size(), watch)?;
    let etag = root.etag_of_content(&old, &meta);
    if let Some(expected) = &input.if_match
        && !etag.matches(expected)
    {
        return Err(etag.stale_error(&path, expected));
    }
    let text = EncodedText::decode(&old, changes, &path)?;
    let plan = plan::plan_edit(&text.bytes, changes, &path, text.bytes_max(most), watch)?;
    text.check_plan(changes, &plan)?;
    let edited = plan::apply(&text.bytes, &plan);
    let new = text.encode(&edited);
    if new.len() as u64 > most {
        return Err(too_large(new.len() as u64));
    }
    let (diff, diff_truncated) = diff::unified_diff(
        &text.bytes,
        &edited,
        &plan.spans,
        &path,
        settings.limits.answer_bytes,
        watch,
    )?;
    let replacements = plan.spans.len() as u64;
    let dry_run = input.dry_run;
    let (meta, etag) = if dry_run || *new == *old {
        (meta, etag)
    } else {
        let terms = WriteConditions {
            existing: ExistingFile::Match(etag.as_str().to_owned()),
            missing: MissingFile::Refuse,
            parents: ParentPolicy::Require,
            mode: None,
        };
        spent.reserve(new.len() as u64)?;
        let written = root.write(&path, &new, &terms, watch)?;
        (written.meta, written.etag)
    };
    let size = meta.size();
    let mtime = meta.mtime().to_string();
    Ok(EditFileOutput { path, diff, diff_truncated, replacements, etag, size, mtime, dry_run })
}
