//! Which program a call may run, and what to say when there is none.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

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

/// Whose input is spoken of where a program is refused: what there is to give instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    /// `exec.run`'s own: `command`, `args`, `cwd`, `env`, `shell`.
    Program,
    /// A command line's, which is split or given to `sh` as it needs: `command`, `args`, `folder`.
    Line,
    /// A project's, of which only its folder is given: `project`.
    Project,
}

impl Words {
    /// What says where it is run.
    fn folder(self) -> &'static str {
        match self {
            Self::Program => "cwd",
            Self::Line => "folder",
            Self::Project => "project",
        }
    }

    /// What to do where arguments are in the program's own name.
    fn apart(self, scripts: Scripts) -> &'static str {
        match (self, scripts) {
            (Self::Program, Scripts::Run) => {
                "pass its arguments separately in `args`, or set `shell` to true"
            }
            (Self::Program | Self::Project, _) => "pass its arguments separately in `args`",
            (Self::Line, _) => "with `args`, `command` is the program alone: leave `args` out",
        }
    }

    /// What to use instead of `name`, which only a shell has.
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

    /// Why no script is run.
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

/// Among what a program is chosen.
pub(super) struct Choice<'c> {
    /// Where it is to start.
    pub(super) cwd: BorrowedFd<'c>,
    /// Where names are sought.
    pub(super) path: &'c str,
    pub(super) scripts: Scripts,
    pub(super) words: Words,
    /// Whether programs see the file of that path.
    pub(super) is_seen: &'c dyn Fn(&Path) -> bool,
}

impl Choice<'_> {
    /// The program `command` names, if it is one of `allow`; empty allows any.
    ///
    /// Where a list says what is allowed, what runs is the file the list names, under the
    /// name the list gives it: the call's own spelling chooses, and is then forgotten.
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
        // The name counts as well as the file: programs of many names (busybox, rustup)
        // are one file that does what its name says.
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

    /// The same among what programs see: of the rest not even whether it is there is told.
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

    /// Says why there is no program `command`, and what was probably meant.
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

/// What to do instead, for what is no program.
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
