//! Edits several files in one call. Checks the edits of all files before writing the first file.

use toolgate_contract::{ToolError, ToolErrorKind};
use toolgate_world::root::quoted_path;

use super::plan::{self, PlannedTextChange};
use super::{CheckedFileEdit, EditFileInput, EditFileOutput, FileEditor};

/// The changes that a call makes in one file.
pub(super) struct FileEdits<'e> {
    /// The path of the file, as written in the call.
    pub(super) path: String,
    pub(super) changes: Vec<PlannedTextChange<'e>>,
    /// The index of each change to this file in the list of edits of the call.
    positions: Vec<usize>,
}

/// Groups the edits of `input` by file, in the order in which the call names the files.
pub(super) fn edits_by_file(input: &EditFileInput) -> Result<Vec<FileEdits<'_>>, ToolError> {
    let mut files: Vec<FileEdits<'_>> = Vec::new();
    for (at, edit) in input.edits.iter().enumerate() {
        let change = plan::validate_change(at, edit)?;
        let Some(path) = edit.path.as_ref().or(input.path.as_ref()) else {
            return Err(ToolError::invalid("", "`path` is missing"));
        };
        match files.iter_mut().find(|file| file.path == *path) {
            Some(file) => {
                file.changes.push(change);
                file.positions.push(at);
            }
            None => files.push(FileEdits {
                path: path.clone(),
                changes: vec![change],
                positions: vec![at],
            }),
        }
    }
    if files.len() > 1 && input.if_match.is_some() {
        let message = "if_match applies to one file, and the call edits several; leave it out";
        return Err(ToolError::invalid("/if_match", message));
    }
    Ok(files)
}

/// Edits several files. Writes nothing unless all edits are possible.
///
/// # Errors
/// Fails if an edit is impossible, or if a write fails. The error of a failed write lists the files
/// that were written and those that were not.
pub(super) fn edit_files(
    editor: &FileEditor<'_>,
    files: &[FileEdits<'_>],
) -> Result<EditFileOutput, ToolError> {
    let most = editor.settings.limits.write_bytes_max;
    let mut bytes = 0;
    let mut checked = Vec::new();
    for file in files {
        let edit = editor.check(file).map_err(|err| file.with_call_positions(err))?;
        let is_same = |(_, known): &(String, CheckedFileEdit)| known.meta.is_same_entry(&edit.meta);
        if checked.iter().any(is_same) {
            let message = format!(
                "{} is named in two different ways; use only one of them",
                quoted_path(&edit.path)
            );
            return Err(ToolError::invalid("/edits", message));
        }
        // All of it is in memory until the last file is checked.
        bytes += (edit.new.as_ref().map_or(0, Vec::len) + edit.diff.len()) as u64;
        if bytes > most {
            let message = format!("the edited files have more than {most} bytes; edit fewer");
            return Err(ToolError::new(ToolErrorKind::TooLarge, message));
        }
        checked.push((edit.path.clone(), edit));
    }
    if !editor.input.dry_run {
        // A limit must not stop the call between two files.
        let new = checked.iter().filter_map(|(_, edit)| edit.new.as_ref());
        editor.spent.reserve(new.map(|new| new.len() as u64).sum())?;
    }
    let paths: Vec<String> = checked.iter().map(|(path, _)| path.clone()).collect();
    let mut written: Vec<EditFileOutput> = Vec::new();
    for (_, edit) in checked {
        match editor.write_reserved(edit) {
            Ok(output) => written.push(output),
            Err(err) => return Err(partial_error(err, &paths, written.len())),
        }
    }
    let mut written = written.into_iter();
    let first = written.next().ok_or_else(|| ToolError::failed("there is no file to edit"))?;
    Ok(EditFileOutput { others: written.collect(), ..first })
}

/// Extends the write error `err` with a list of the files that were written (the first `done` of
/// `paths`) and those that were not.
fn partial_error(err: ToolError, paths: &[String], done: usize) -> ToolError {
    let names = |paths: &[String]| {
        let names: Vec<_> = paths.iter().map(|path| quoted_path(path)).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let (written, left) = paths.split_at(done);
    let message =
        format!("{}; written: {}; not written: {}", err.message, names(written), names(left));
    ToolError { message, ..err }
}

impl FileEdits<'_> {
    /// Returns `err`, the error of a change to this file, with the index that the change has in the
    /// call.
    fn with_call_positions(&self, err: ToolError) -> ToolError {
        let ToolErrorKind::Invalid { pointer } = &err.fault else { return err };
        let Some(rest) = pointer.strip_prefix("/edits/") else { return err };
        let (at, field) =
            rest.split_once('/').map_or((rest, None), |(at, field)| (at, Some(field)));
        let position = at.parse().ok().and_then(|at: usize| self.positions.get(at));
        let Some(position) = position else { return err };
        let field = field.map(|field| format!("/{field}")).unwrap_or_default();
        err.with_pointer(format!("/edits/{position}{field}"))
    }
}
