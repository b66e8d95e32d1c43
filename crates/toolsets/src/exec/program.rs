//! Finds the program that a call names, and explains why a program is refused or missing.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use toolgate_contract::ToolError;

use super::ExecSettings;
use toolgate_world::programs::{ProgramLookupError, ResolvedProgram, nearest_program};

/// Permission for shell scripts, which run with `sh`: allowed or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShellScriptPermission {
    Allowed,
    Refused,
}

impl ShellScriptPermission {
    pub(super) fn from_settings(settings: &ExecSettings) -> Self {
        let allow = &settings.allow;
        let is_allowed = allow.is_empty() || allow.iter().any(|it| file_name(it) == Some("sh"));
        if is_allowed { Self::Allowed } else { Self::Refused }
    }
}

/// The set of input fields to which error messages may refer, so that they only suggest existing
/// fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramInputFieldNames {
    /// The fields of `exec.run`: `command`, `args`, `cwd`, `env`, `shell`.
    Program,
    /// The fields of a tool that takes a command line, split into words or run by `sh`: `command`,
    /// `args`, `path`.
    CommandLine,
    /// The field of a tool that takes only the folder of a project: `path`.
    Project,
}

impl ProgramInputFieldNames {
    /// Returns the name of the input field for the working directory.
    fn folder_field(self) -> &'static str {
        match self {
            Self::Program => "cwd",
            Self::CommandLine | Self::Project => "path",
        }
    }

    /// Returns the advice for a call in which the program name contains arguments.
    fn separate_args_advice(self, scripts: ShellScriptPermission) -> &'static str {
        match (self, scripts) {
            (Self::Program, ShellScriptPermission::Allowed) => {
                "pass its arguments separately in `args`, or set `shell` to true"
            }
            (Self::Program | Self::Project, _) => "pass its arguments separately in `args`",
            (Self::CommandLine, _) => {
                "with `args`, `command` is only the program: move its arguments to `args`, or \
                 leave `args` out"
            }
        }
    }

    /// Returns advice if `name` is a command that only shells have, such as `cd`. Otherwise returns
    /// `None`.
    fn builtin_advice(self, name: &str, scripts: ShellScriptPermission) -> Option<String> {
        let env = match self {
            Self::Program => "set variables in `env`".to_owned(),
            Self::CommandLine | Self::Project => {
                "it affects only its own run; begin the line with `env NAME=value`".to_owned()
            }
        };
        let instead = match name {
            "cd" | "pushd" | "popd" => format!("set the directory in `{}`", self.folder_field()),
            "export" | "set" | "unset" | "source" | "." => env,
            "alias" => "name the program itself in `command`".to_owned(),
            "ulimit" | "umask" => "it affects only its own run".to_owned(),
            _ => return None,
        };
        let script = match (self, scripts) {
            (Self::Program, ShellScriptPermission::Allowed) => "; for a script, set `shell: true`",
            (Self::CommandLine, ShellScriptPermission::Allowed) => {
                "; to run a command after it, add `&& COMMAND` to the line"
            }
            (Self::Program | Self::CommandLine, ShellScriptPermission::Refused)
            | (Self::Project, _) => "",
        };
        Some(format!("{instead}{script}"))
    }

    /// Returns the error message for a refused shell script.
    pub(super) fn no_scripts_message(self) -> &'static str {
        match self {
            Self::Program => {
                "this server runs no shell scripts (`exec.allow` has no `sh`); name a program in \
                 `command`, pass its arguments in `args`, and leave `shell` out"
            }
            Self::CommandLine | Self::Project => {
                "this line needs a shell, and this server runs no shell scripts (`exec.allow` has \
                 no `sh`); name one program and its arguments, without pipes, redirections, globs \
                 or variables, or pass the arguments unchanged in `args`"
            }
        }
    }
}

/// Rules for finding the program that a command name means.
pub(super) struct ProgramLookupRules<'c> {
    /// The directory in which the program starts.
    pub(super) cwd: BorrowedFd<'c>,
    /// The folders in which program names are looked up, separated by colons as in `PATH`.
    pub(super) path: &'c str,
    pub(super) scripts: ShellScriptPermission,
    pub(super) fields: ProgramInputFieldNames,
    /// A function that returns true if programs in the sandbox can see the file at a path.
    pub(super) is_visible: &'c dyn Fn(&Path) -> bool,
}

impl ProgramLookupRules<'_> {
    /// Finds the program that `command` names, if the list `allow` permits it. An empty list
    /// permits any program.
    ///
    /// If `allow` is not empty, the file and the name to run come from its entry. `command` only
    /// selects the entry.
    pub(super) fn find_allowed(
        &self,
        command: &str,
        allow: &[String],
    ) -> Result<ResolvedProgram, ToolError> {
        if command.trim().is_empty() {
            return Err(ToolError::invalid("/command", "the command is empty; name a program"));
        }
        if command.contains('\0') {
            return Err(ToolError::invalid("/command", "the command contains a NUL character"));
        }
        if allow.is_empty() {
            return self
                .look_up_visible(command)
                .map_err(|missing| self.missing_error(command, missing));
        }
        // The name must match too: multi-call programs such as busybox and rustup are one file that
        // acts by its name.
        let same_name = allow.iter().filter(|entry| file_name(entry) == file_name(command));
        let same_name: Vec<&String> = same_name.collect();
        if same_name.is_empty() {
            return Err(not_allowed(command, allow));
        }
        let mut allowed = same_name.iter().filter_map(|entry| self.look_up(entry).ok());
        if !command.contains('/') {
            return allowed
                .next()
                .ok_or_else(|| self.missing_error(command, ProgramLookupError::Absent));
        }
        let called = self.look_up(command).map_err(|_| not_allowed(command, allow))?;
        let same_file = allowed.find(|program| program.identity == called.identity);
        same_file.ok_or_else(|| not_allowed(command, allow))
    }

    fn look_up(&self, command: &str) -> Result<ResolvedProgram, ProgramLookupError> {
        ResolvedProgram::find(command, self.cwd, self.path)
    }

    /// Finds the program `command` among those visible in the sandbox. A hidden file is reported as
    /// missing, so that callers cannot learn that it exists.
    fn look_up_visible(&self, command: &str) -> Result<ResolvedProgram, ProgramLookupError> {
        let found = self.look_up(command);
        if !command.contains('/') || found == Err(ProgramLookupError::Absent) {
            return found;
        }
        let named = match command.starts_with('/') {
            true => PathBuf::from(command),
            false => format!("/proc/self/fd/{}/{command}", self.cwd.as_raw_fd()).into(),
        };
        if (self.is_visible)(&named) { found } else { Err(ProgramLookupError::Absent) }
    }

    /// Creates the error for the program `command`, which was not found, with a suggestion.
    fn missing_error(&self, command: &str, missing: ProgramLookupError) -> ToolError {
        let named = command.escape_debug();
        let message = match missing {
            ProgramLookupError::NotAFile => format!("`{named}` is not a file; name a program"),
            ProgramLookupError::NotExecutable => {
                format!(
                    "`{named}` is not executable; run `chmod +x`, or run it with its interpreter"
                )
            }
            ProgramLookupError::Absent => {
                let reason = if command.starts_with('/') {
                    format!(
                        "`{named}` does not exist, or the sandbox hides it; the server's operator \
                         can add folders to `sandbox.read`"
                    )
                } else if command.contains('/') {
                    let folder = self.fields.folder_field();
                    format!(
                        "`{named}` does not exist, or the sandbox hides it; paths are relative to \
                         `{folder}`"
                    )
                } else {
                    format!("no program is named `{named}` in PATH")
                };
                let advice = advice(command, self.path, self.scripts, self.fields);
                format!("{reason}{}", advice.unwrap_or_default())
            }
        };
        ToolError::invalid("/command", message)
    }
}

fn file_name(program: &str) -> Option<&str> {
    Path::new(program).file_name()?.to_str()
}

fn not_allowed(command: &str, allow: &[String]) -> ToolError {
    let allow = allow.join(", ");
    let command = command.escape_debug();
    ToolError::not_allowed(format!(
        "`{command}` may not be run here; allowed programs (`exec.allow`): {allow}"
    ))
}

/// Returns advice for an error about `command`, if it is a shell builtin, contains arguments or is
/// misspelled.
fn advice(
    command: &str,
    path: &str,
    scripts: ShellScriptPermission,
    fields: ProgramInputFieldNames,
) -> Option<String> {
    let first = command.split_whitespace().next()?;
    if let Some(instead) = fields.builtin_advice(first, scripts) {
        return Some(format!("; `{first}` is a shell builtin: {instead}"));
    }
    if command.contains(char::is_whitespace) {
        return Some(format!("; {}", fields.separate_args_advice(scripts)));
    }
    // A project needs the very program that it names.
    if command.contains('/') || fields == ProgramInputFieldNames::Project {
        return None;
    }
    nearest_program(command, path).map(|name| format!("; did you mean `{name}`?"))
}
