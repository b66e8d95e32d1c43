//! Asks a person before running a program that the setting `exec.confirm` lists.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use toolgate_contract::{ToolContext, ToolError};

use super::programs::WorkspaceProgramRunner;
use crate::confirmation::{ConfirmationRequest, ask_confirmation};
use crate::counted::counted;
use toolgate_world::Root;
use toolgate_world::processes::ProgramStartRequest;

/// The key prefix of each question whether a program may run.
const QUESTION_KEY: &str = "exec.confirm";
/// The maximum length of a command line that can be confirmed, in characters. The person must see
/// all of it.
const ARGV_CHARS_MAX: usize = 8000;
/// The number of characters of the program's standard input that the question shows.
const STDIN_CHARS_MAX: usize = 1000;

/// Asks a person to confirm the program start `start`, if a pattern in `exec.confirm` matches it.
/// `cwd` is the directory as the caller wrote it.
///
/// # Errors
/// Fails if the person refuses or cannot be asked.
pub(super) async fn confirm(
    ctx: &ToolContext,
    WorkspaceProgramRunner { root, settings, .. }: &WorkspaceProgramRunner,
    start: &ProgramStartRequest,
    cwd: Option<&str>,
) -> Result<(), ToolError> {
    let Some(pattern) = settings.confirm.iter().find(|pattern| matches_pattern(pattern, start))
    else {
        return Ok(());
    };
    let action = format!("running `{}`", pattern.escape_debug());
    let argv = quoted_argv(start);
    if argv.chars().count() > ARGV_CHARS_MAX {
        return Err(ToolError::not_allowed(format!(
            "{action} must be confirmed by a person each time (`exec.confirm`), and this command \
             line is longer than the {ARGV_CHARS_MAX} characters that a confirmation shows; move \
             the long part to a file or to `stdin`"
        )));
    }
    let place = describe_place(root, cwd);
    let stdin = start.stdin.as_deref().map(describe_stdin).unwrap_or_default();
    let file = start.program.real_path(start.cwd.as_fd());
    let file = file.filter(|file| *file != start.program.path);
    let file = file.map(|file| format!("\nThe program is {file:?}")).unwrap_or_default();
    let question = format!("Run this in {place}?\n{argv}{file}{stdin}");
    let key = question_key(&question);
    ask_confirmation(
        ctx,
        ConfirmationRequest { key: &key, question, action: &action, setting: "exec.confirm" },
    )
    .await
}

/// Describes the workspace `root` and the directory `cwd` in which the program starts, for the
/// question.
fn describe_place(root: &Root, cwd: Option<&str>) -> String {
    let folder = cwd.map(|cwd| format!("{cwd:?} of ")).unwrap_or_default();
    let workspace = root.path();
    let name = workspace.file_name().unwrap_or(workspace.as_os_str());
    format!("{folder}the workspace {name:?} ({workspace:?})")
}

/// Returns the key of `question`, with a digest of its text. A confirmation is therefore not valid
/// for a changed question, for example if the program was replaced.
fn question_key(question: &str) -> String {
    let digest = Sha256::digest(question);
    format!("{QUESTION_KEY}.{}", HEXLOWER.encode(&digest[..8]))
}

/// Returns true if `start` matches `pattern`, which consists of a program and, optionally, its
/// first arguments.
fn matches_pattern(pattern: &str, start: &ProgramStartRequest) -> bool {
    let mut words = pattern.split_whitespace();
    let Some(program) = words.next() else { return false };
    let mut args = start.args.iter();
    words.all(|word| args.next().is_some_and(|arg| arg == OsStr::new(word)))
        && is_program(program, start)
}

/// Returns true if `start` runs `program`. `program` can be the name in the call, the path, or the
/// file to which the path leads through symlinks.
fn is_program(program: &str, start: &ProgramStartRequest) -> bool {
    let is_one = |path: &Path| match program.contains('/') {
        true => path == Path::new(program),
        false => path.file_name() == Some(OsStr::new(program)),
    };
    is_one(&start.program.path)
        || is_one(Path::new(&start.program.name))
        || start.program.real_path(start.cwd.as_fd()).is_some_and(|path| is_one(&path))
}

/// Formats the program in `start` and its arguments, each quoted, with invisible characters
/// escaped.
fn quoted_argv(start: &ProgramStartRequest) -> String {
    let program = start.program.path.as_os_str();
    let words = [program].into_iter().chain(start.args.iter().map(|arg| arg.as_os_str()));
    words.map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" ")
}

/// Describes `bytes`, a program's standard input, by its first characters.
fn describe_stdin(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let begin: String = text.chars().take(STDIN_CHARS_MAX).collect();
    let rest = if begin.len() < text.len() { " and more" } else { "" };
    let count = counted(bytes.len() as u64, "byte", "bytes");
    format!("\nIts standard input has {count}: {begin:?}{rest}")
}
