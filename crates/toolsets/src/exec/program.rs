//! Which program a call may run, and what to say when there is none.

use std::os::fd::BorrowedFd;
use std::path::Path;

use toolgate_contract::ToolError;

use super::Settings;
use crate::world::processes::{Missing, Program, nearest};

/// Whether a call may hand a script to `sh`, and so be told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scripts {
    Run,
    Refused,
}

impl Scripts {
    pub(super) fn of(settings: &Settings) -> Self {
        let Settings { allow, shell, .. } = settings;
        let is_sh_allowed = allow.is_empty() || allow.iter().any(|it| file_name(it) == Some("sh"));
        if *shell && is_sh_allowed { Self::Run } else { Self::Refused }
    }
}

/// The program `command` names in `cwd`, if it is one of `allow`; empty allows any.
///
/// Where a list says what is allowed, what runs is the file the list names, under the
/// name the list gives it: the call's own spelling chooses, and is then forgotten.
pub(super) fn choose(
    command: &str,
    cwd: BorrowedFd<'_>,
    path: &str,
    allow: &[String],
    scripts: Scripts,
) -> Result<Program, ToolError> {
    if command.trim().is_empty() {
        return Err(ToolError::invalid("/command", "the command is empty; name a program"));
    }
    if command.contains('\0') {
        return Err(ToolError::invalid("/command", "the command contains a NUL character"));
    }
    if allow.is_empty() {
        return Program::find(command, cwd, path)
            .map_err(|missing| absent(command, path, missing, scripts));
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
        return allowed.next().ok_or_else(|| absent(command, path, Missing::Absent, scripts));
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
fn absent(command: &str, path: &str, missing: Missing, scripts: Scripts) -> ToolError {
    let named = command.escape_debug();
    let message = match missing {
        Missing::NotAFile => format!("`{named}` is not a file; name a program"),
        Missing::NotExecutable => {
            format!("`{named}` is not executable; make it so, or run it by its interpreter")
        }
        Missing::Absent => {
            let advice = advice(command, path, scripts).unwrap_or_default();
            let why = if command.contains('/') {
                format!("`{named}` does not exist; paths are relative to `cwd`")
            } else {
                format!("no program is named `{named}` in PATH")
            };
            format!("{advice}{why}")
        }
    };
    ToolError::invalid("/command", message)
}

/// What to do instead, for what is no program.
fn advice(command: &str, path: &str, scripts: Scripts) -> Option<String> {
    let first = command.split_whitespace().next()?;
    if let Some(instead) = builtin(first) {
        let script = match scripts {
            Scripts::Run => ", or run a script with `shell: true`",
            Scripts::Refused => "",
        };
        return Some(format!("`{first}` is a shell's own: {instead}{script}; "));
    }
    if command.contains(char::is_whitespace) {
        let script = match scripts {
            Scripts::Run => ", or set `shell` to true",
            Scripts::Refused => "",
        };
        return Some(format!("pass its arguments separately in `args`{script}; "));
    }
    if command.contains('/') {
        return None;
    }
    nearest(command, path).map(|name| format!("did you mean `{name}`? "))
}

/// What to use instead of what only a shell has.
fn builtin(name: &str) -> Option<&'static str> {
    match name {
        "cd" | "pushd" | "popd" => Some("give the directory as `cwd`"),
        "export" | "set" | "unset" | "source" | "." => Some("give variables in `env`"),
        "alias" => Some("name the program itself in `command`"),
        "ulimit" | "umask" => Some("nothing it sets outlasts its own run"),
        _ => None,
    }
}
