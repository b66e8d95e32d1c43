//! Which program a call may run, and what to say when there is none.

use std::os::fd::BorrowedFd;
use std::path::Path;

use toolgate_contract::ToolError;

use crate::world::processes::{Missing, Program, nearest};

/// The program `command` names in `cwd`, if it is one of `allow`; empty allows any.
///
/// Where a list says what is allowed, what runs is the file the list names, under the
/// name the list gives it: the call's own spelling chooses, and is then forgotten.
pub(super) fn choose(
    command: &str,
    cwd: BorrowedFd<'_>,
    path: &str,
    allow: &[String],
) -> Result<Program, ToolError> {
    if command.trim().is_empty() {
        return Err(ToolError::invalid("/command", "the command is empty; name a program"));
    }
    if command.contains('\0') {
        return Err(ToolError::invalid("/command", "the command contains a NUL character"));
    }
    if allow.is_empty() {
        return Program::find(command, cwd, path).map_err(|missing| absent(command, path, missing));
    }
    // The name counts as well as the file: programs of many names (busybox, rustup)
    // are one file that does what its name says.
    let same_name = allow.iter().filter(|entry| file_name(entry) == file_name(command));
    let same_name: Vec<&String> = same_name.collect();
    if same_name.is_empty() {
        return Err(refused(command, allow));
    }
    let mut allowed = same_name.iter().filter_map(|entry| Program::find(entry, cwd, path).ok());
    if !command.contains('/') {
        return allowed.next().ok_or_else(|| absent(command, path, Missing::Absent));
    }
    let called = Program::find(command, cwd, path).map_err(|_| refused(command, allow))?;
    let same_file = allowed.find(|program| program.identity == called.identity);
    same_file.ok_or_else(|| refused(command, allow))
}

fn file_name(program: &str) -> Option<&str> {
    Path::new(program).file_name()?.to_str()
}

fn refused(command: &str, allow: &[String]) -> ToolError {
    let allow = allow.join(", ");
    let command = command.escape_debug();
    ToolError::not_allowed(format!("`{command}` may not be run here; what may is: {allow}"))
}

/// Says why there is no program `command`, and what was probably meant.
fn absent(command: &str, path: &str, missing: Missing) -> ToolError {
    let named = command.escape_debug();
    let message = match missing {
        Missing::NotAFile => format!("`{named}` is not a file; name a program"),
        Missing::NotExecutable => {
            format!("`{named}` is not executable; make it so, or run it by its interpreter")
        }
        Missing::Absent if command.contains('/') => {
            format!("`{named}` does not exist; paths are relative to `cwd`{}", hint(command))
        }
        Missing::Absent => {
            let meant = match nearest(command, path) {
                Some(name) if hint(command).is_empty() => format!("; did you mean `{name}`?"),
                Some(_) | None => hint(command).to_owned(),
            };
            format!("no program is named `{named}` in {path}{meant}")
        }
    };
    ToolError::invalid("/command", message)
}

/// For those who wrote a whole command line.
fn hint(command: &str) -> &'static str {
    if command.contains(char::is_whitespace) {
        "; pass its arguments separately in `args`, or set `shell` to true"
    } else {
        ""
    }
}
