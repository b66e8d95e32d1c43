//! `files.edit`: makes several changes in one or more files, all of them or none.

mod plan;
mod flat;
mod nearest;
mod numbered;
mod diff;
mod encoded;
mod several;
#[cfg(any(fuzzing, test))]
pub(super) mod fuzzing;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::printable::escape_line;
use toolgate_contract::{
    Effects, ResultText, Tool, ToolContext, ToolError, ToolErrorKind, WriteBudget,
};

use super::FileSettings;
use crate::counted::counted;
use encoded::DecodedFileText;
use toolgate_world::Root;
use toolgate_world::root::{
    DiskWorkMonitor, EntryMeta, Etag, ExistingFilePolicy, FileWriteConditions, MissingFilePolicy,
    MissingParentPolicy, quoted_path,
};

/// The maximum number of attempts to edit a file whose changes are identified by text, if another
/// program changes the file during the edit.
const TRIES_MAX: usize = 16;
/// The maximum number of changes in one call of `files.edit`.
const EDITS_MAX: usize = 1000;

/// The `files.edit` tool.
pub struct EditFile {
    pub(super) root: Root,
    pub(super) settings: Arc<FileSettings>,
}

/// Input of `files.edit`: the file to edit and the changes to make.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditFileInput {
    /// The file.
    path: Option<String>,
    /// Edits that do not overlap.
    #[schemars(length(min = 1, max = 1000))]
    edits: Vec<FileEditChange>,
    /// Etag that the file must have.
    if_match: Option<String>,
    /// Only show the diff.
    #[serde(default)]
    dry_run: bool,
}

/// One change: of the text `old`, or of the lines from `start_line` to `end_line`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FileEditChange {
    /// File to edit, if the call edits several.
    path: Option<String>,
    /// Exact text to replace; must occur once.
    old: Option<String>,
    /// The replacement.
    new: String,
    /// Replace every occurrence.
    #[serde(default)]
    replace_all: bool,
    /// Expected number of occurrences of `old`; all are replaced.
    #[schemars(range(min = 1))]
    count: Option<u64>,
    /// First line to replace, instead of `old`.
    #[schemars(range(min = 1))]
    start_line: Option<u64>,
    /// Last line; `start_line - 1` inserts.
    end_line: Option<u64>,
}

/// The result of editing a file.
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
    /// Further files, with the same fields, if the call edits several files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>")]
    others: Vec<Self>,
}

impl Tool for EditFile {
    const NAME: &'static str = "files.edit";
    const TITLE: &'static str = "Edit file";
    const DESCRIPTION: &'static str = "Replace exact text or lines in one or several files: all \
        edits, or none if one does not match. Returns the diff.";
    const EFFECTS: Effects = Effects::Changes;
    const RARE_ARGUMENTS: &'static [&'static str] = &["edits[].count"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[
        ("edits[].old_string", "old"),
        ("edits[].old_text", "old"),
        ("edits[].oldText", "old"),
        ("edits[].new_string", "new"),
        ("edits[].new_text", "new"),
        ("edits[].newText", "new"),
    ];
    type Input = EditFileInput;
    type Output = EditFileOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let settings = self.settings.clone();
        let spent = ctx.write_budget.clone();
        self.root
            .run_blocking(ctx, move |root, watch| edit(root, &settings, &input, &spent, watch))
            .await
    }

    fn result_text(output: &EditFileOutput) -> ResultText {
        if output.others.is_empty() {
            return output.text();
        }
        let texts = [output].into_iter().chain(&output.others).map(|edited| {
            let ResultText { body, note } = edited.text();
            let note = note.map(|note| format!("[{}: {note}]\n", escape_line(&edited.path)));
            body + &note.unwrap_or_default()
        });
        ResultText::from_body(texts.collect::<String>())
    }
}

impl EditFileOutput {
    /// Formats the result as text: the diff of the edited file and a note about the edit.
    fn text(&self) -> ResultText {
        let Self { diff, diff_truncated, replacements, etag, size, dry_run, .. } = self;
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
    watch: &DiskWorkMonitor,
) -> Result<EditFileOutput, ToolError> {
    if input.edits.is_empty() {
        return Err(ToolError::invalid("/edits", "it is empty; give at least one edit"));
    }
    if input.edits.len() > EDITS_MAX {
        let message =
            format!("it has {} edits; one call can make at most {EDITS_MAX}", input.edits.len());
        return Err(ToolError::invalid("/edits", message));
    }
    let files = several::edits_by_file(input)?;
    for file in &files {
        root.check_changeable(&file.path)?;
    }
    let editor = FileEditor { root, settings, input, spent, watch };
    match files.as_slice() {
        [only] => editor.edit_alone(only),
        files => several::edit_files(&editor, files),
    }
}

/// The input, settings and limits of one `files.edit` call. Its methods make the edits of the call.
struct FileEditor<'e> {
    root: &'e Root,
    settings: &'e FileSettings,
    input: &'e EditFileInput,
    spent: &'e WriteBudget,
    watch: &'e DiskWorkMonitor,
}

/// An edit of one file that has been checked but not yet written.
struct CheckedFileEdit {
    path: String,
    /// The metadata of the file version on which the edit is based.
    meta: EntryMeta,
    etag: Etag,
    /// The new content. `None` if the edit does not change the content.
    new: Option<Vec<u8>>,
    diff: String,
    diff_truncated: bool,
    replacements: u64,
}

impl FileEditor<'_> {
    /// Edits the file of a call that edits only one file. Tries again if the file changes during
    /// the edit and the changes are identified by text.
    fn edit_alone(&self, file: &several::FileEdits<'_>) -> Result<EditFileOutput, ToolError> {
        // After a change by others, line numbers may point elsewhere. Text still identifies its
        // place.
        let may_retry = plan::all_by_text(&file.changes) && self.input.if_match.is_none();
        let attempts = if may_retry { TRIES_MAX } else { 1 };
        for _ in 1..attempts {
            match self.write(self.check(file)?) {
                Err(ToolError { fault: ToolErrorKind::Conflict(_), .. }) => {}
                outcome => return outcome,
            }
        }
        self.write(self.check(file)?)
    }

    /// Makes the changes of one file in memory, and fails if they are not possible. Writes nothing.
    fn check(&self, file: &several::FileEdits<'_>) -> Result<CheckedFileEdit, ToolError> {
        let Self { root, settings, watch, .. } = *self;
        let changes = file.changes.as_slice();
        let file = root.open_file(&file.path)?;
        let path = file.path().to_owned();
        let most = settings.limits.write_bytes_max;
        let too_large = |size: u64| {
            let message =
                format!("{} has {size} bytes; at most {most} can be edited", quoted_path(&path));
            ToolError::new(ToolErrorKind::TooLarge, message)
        };
        let meta = *file.meta();
        if meta.size() > most {
            return Err(too_large(meta.size()));
        }
        let old = file.read(0, meta.size(), watch)?;
        let etag = root.etag_of_content(&old, &meta);
        if let Some(expected) = &self.input.if_match
            && !etag.matches(expected)
        {
            return Err(etag.stale_error(&path, expected));
        }
        let text = DecodedFileText::decode(&old, changes, &path)?;
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
        let new = (*new != *old).then(|| new.to_vec());
        Ok(CheckedFileEdit { path, meta, etag, new, diff, diff_truncated, replacements })
    }

    /// Writes a checked edit, unless the call is a dry run. Fails if the write budget is used up.
    fn write(&self, edit: CheckedFileEdit) -> Result<EditFileOutput, ToolError> {
        if let Some(new) = edit.new.as_ref().filter(|_| !self.input.dry_run) {
            self.spent.reserve(new.len() as u64)?;
        }
        self.write_reserved(edit)
    }

    /// Writes a checked edit, unless the call is a dry run. The caller must already have reserved
    /// the edit's bytes in the write budget.
    fn write_reserved(&self, edit: CheckedFileEdit) -> Result<EditFileOutput, ToolError> {
        let CheckedFileEdit { path, meta, etag, new, diff, diff_truncated, replacements } = edit;
        let dry_run = self.input.dry_run;
        let (meta, etag) = match new.filter(|_| !dry_run) {
            None => (meta, etag),
            Some(new) => {
                let terms = FileWriteConditions {
                    existing: ExistingFilePolicy::Match(etag.as_str().to_owned()),
                    missing: MissingFilePolicy::Refuse,
                    parents: MissingParentPolicy::Require,
                    mode: None,
                };
                let written = self.root.write(&path, &new, &terms, self.watch)?;
                (written.meta, written.etag)
            }
        };
        let size = meta.size();
        let mtime = meta.mtime().to_string();
        let others = Vec::new();
        Ok(EditFileOutput {
            path,
            diff,
            diff_truncated,
            replacements,
            etag,
            size,
            mtime,
            dry_run,
            others,
        })
    }
}
