//! Chooses the program of a call, and explains a refusal or a missing program.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use toolgate_contract::ToolError;

use super::Settings;
use crate::world::processes::{Missing, Program, nearest};

/// Permission to run scripts with `sh`.
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

/// The tool input that error messages refer to, so that they suggest fields that exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    /// The input of `exec.run`: `command`, `args`, `cwd`, `env`, `shell`.
    Program,
    /// The input of a command line, which is split or run by `sh` as needed: `command`, `args`,
    /// `folder`.
    Line,
    /// The input of a project tool, which takes only a folder: `project`.
    Project,
}

impl Words {
    /// Returns the name of the field for the working directory.
    fn folder(self) -> &'static str {
        match self {
            Self::Program => "cwd",
            Self::Line => "folder",
            Self::Project => "project",
        }
    }

    /// Returns the advice for a program name that contains arguments.
    fn apart(self, scripts: Scripts) -> &'static str {
        match (self, scripts) {
            (Self::Program, Scripts::Run) => {
                "pass its arguments separately in `args`, or set `shell` to true"
            }
            (Self::Program | Self::Project, _) => "pass its arguments separately in `args`",
            (Self::Line, _) => "with `args`, `command` is the program alone: leave `args` out",
        }
    }

    /// Returns the advice for the shell builtin `name`, if it is one.
    fn instead(self, name: &str, scripts: Scripts) -> Option<String> {
        let env = match self {
            Self::Program => "give variables in `env`".to_owned(),
            Self::Line | Self::Project => {
                "nothing it sets outlasts its own run; begin the line with `env NAME=value`"
                    .to_owned()
            }
        };
        let instead = match name {
            "cd" | "pushd" | "popd" => format!("give the directory as `{}`", self.folder()),
            "export" | "set" | "unset" | "source" | "." => env,
            "alias" => "name the program itself in `command`".to_owned(),
            "ulimit" | "umask" => "nothing it sets outlasts its own run".to_owned(),
            _ => return None,
        };
        let script = match (self, scripts) {
            (Self::Program, Scripts::Run) => ", or run a script with `shell: true`",
            (Self::Line, Scripts::Run) => ", or put what follows on the same line, after `&&`",
            (Self::Program | Self::Line, Scripts::Refused) | (Self::Project, _) => "",
        };
        Some(format!("{instead}{script}"))
    }

    /// Returns the message that refuses a script.
    pub(super) fn no_scripts(self) -> &'static str {
        match self {
            Self::Program => {
                "scripts may not be run here; name a program in `command`, its arguments in \
                 `args`, and leave `shell` out"
            }
            Self::Line | Self::Project => {
                "this line needs a shell, and scripts may not be run here; name one program and \
                 its arguments, without pipes, redirections, globs or variables, or give the \
                 arguments as they are in `args`"
            }
        }
    }
}

/// The rules by which a program is chosen.
pub(super) struct Choice<'c> {
    /// The directory in which the program starts.
    pub(super) cwd: BorrowedFd<'c>,
    /// The folders in which names are looked up, as in `PATH`.
    pub(super) path: &'c str,
    pub(super) scripts: Scripts,
    pub(super) words: Words,
    /// Checks whether programs can see the file at a path, inside the sandbox.
    pub(super) is_seen: &'c dyn Fn(&Path) -> bool,
}

impl Choice<'_> {
    /// Finds the program that `command` names, if `allow` permits it. An empty list permits any.
    ///
    /// With a list, the file and the name to run come from the list. The spelling in the call only
    /// selects an entry.
    pub(super) fn of(&self, command: &str, allow: &[String]) -> Result<Program, ToolError> {
        if command.trim().is_empty() {
            return Err(ToolError::invalid("/command", "the command is empty; name a program"));
        }
        if command.contains('\0') {
            return Err(ToolError::invalid("/command", "the command contains a NUL character"));
        }
        if allow.is_empty() {
            return self.seen(command).map_err(|missing| self.absent(command, missing));
        }
        // The name must match too: multi-call programs such as busybox and rustup are one file that
        // acts by its name.
        let same_name = allow.iter().filter(|entry| file_name(entry) == file_name(command));
        let same_name: Vec<&String> = same_name.collect();
        if same_name.is_empty() {
            return Err(refused(command, allow));
        }
        let mut allowed = same_name.iter().filter_map(|entry| self.found(entry).ok());
        if !command.contains('/') {
            return allowed.next().ok_or_else(|| self.absent(command, Missing::Absent));
        }
        let called = self.found(command).map_err(|_| refused(command, allow))?;
        let same_file = allowed.find(|program| program.identity == called.identity);
        same_file.ok_or_else(|| refused(command, allow))
    }

    fn found(&self, command: &str) -> Result<Program, Missing> {
        Program::find(command, self.cwd, self.path)
    }

    /// Finds a program that the sandbox shows. A hidden file is reported as absent, so that callers
    /// cannot learn that it exists.
    fn seen(&self, command: &str) -> Result<Program, Missing> {
        let found = self.found(command);
        if !command.contains('/') || found == Err(Missing::Absent) {
            return found;
        }
        let named = match command.starts_with('/') {
            true => PathBuf::from(command),
            false => format!("/proc/self/fd/{}/{command}", self.cwd.as_raw_fd()).into(),
        };
        if (self.is_seen)(&named) { found } else { Err(Missing::Absent) }
    }

    /// Creates the error for the missing program `command`, with a suggestion.
    fn absent(&self, command: &str, missing: Missing) -> ToolError {
        let named = command.escape_debug();
        let message = match missing {
            Missing::NotAFile => format!("`{named}` is not a file; name a program"),
            Missing::NotExecutable => {
                format!("`{named}` is not executable; make it so, or run it by its interpreter")
            }
            Missing::Absent => {
                let advice = advice(command, self.path, self.scripts, self.words);
                let advice = advice.unwrap_or_default();
                let why = if command.starts_with('/') {
                    format!(
                        "`{named}` does not exist, or not where programs see it: whoever runs the \
                         server can add folders to `sandbox.read`"
                    )
                } else if command.contains('/') {
                    let folder = self.words.folder();
                    format!(
                        "`{named}` does not exist, or leads where programs see nothing; paths are \
                         relative to `{folder}`"
                    )
                } else {
                    format!("no program is named `{named}` in PATH")
                };
                format!("{advice}{why}")
            }
        };
        ToolError::invalid("/command", message)
    }
}

fn file_name(program: &str) -> Option<&str> {
    Path::new(program).file_name()?.to_str()
}

fn refused(command: &str, allow: &[String]) -> ToolError {
    let allow = allow.join(", ");
    let command = command.escape_debug();
    ToolError::not_allowed(format!("`{command}` may not be run here; what may is: {allow}"))
}

/// Returns advice on a fix, if `command` is a shell builtin, includes arguments, or is misspelled.
fn advice(command: &str, path: &str, scripts: Scripts, words: Words) -> Option<String> {
    let first = command.split_whitespace().next()?;
    if let Some(instead) = words.instead(first, scripts) {
        return Some(format!("`{first}` is a shell's own: {instead}; "));
    }
    if command.contains(char::is_whitespace) {
        return Some(format!("{}; ", words.apart(scripts)));
    }
    if command.contains('/') {
        return None;
    }
    nearest(command, path).map(|name| format!("did you mean `{name}`? "))
}
