//! Builds a program's environment variables, beginning with an empty list.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use super::ProcessRunner;
use crate::Root;

/// The search path for programs if the server itself has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Environment variables that every program gets. They turn off prompts, because no person can
/// answer a prompt.
const ADDED_VARIABLES: [(&str, &str); 1] = [("GIT_TERMINAL_PROMPT", "0")];

impl ProcessRunner {
    /// Returns a program's environment: the variables that every program gets, `path` as `PATH`,
    /// and the server's own variables that `keep` names.
    pub fn environment(&self, keep: &[String], path: &str) -> BTreeMap<OsString, OsString> {
        let kept = keep.iter().filter(|name| name.as_str() != "PATH");
        let kept = kept.filter_map(|name| Some((name.into(), self.variable(name)?.to_owned())));
        let added = ADDED_VARIABLES.iter().map(|(name, value)| (name.into(), value.into()));
        kept.chain(added).chain([("PATH".into(), path.into())]).collect()
    }

    /// Returns the search path for programs: the server's own `PATH` without relative folders.
    pub fn search_path(&self) -> String {
        let path = self.variable("PATH").map(|path| path.to_string_lossy()).unwrap_or_default();
        let path = absolute_folders(&path);
        if path.is_empty() { DEFAULT_PATH.to_owned() } else { path }
    }

    /// Returns the folders of `path` that no confined program in `workspace` can write to.
    ///
    /// If the settings allow a program by its name alone, the program is looked up only in these
    /// folders, so that no other program can replace it.
    pub fn unwritable_path(&self, path: &str, workspace: &Root) -> String {
        let home = self.variable("HOME").map(Path::new);
        let is_safe = |folder: &&str| !self.sandbox().can_write(workspace, home, Path::new(folder));
        path.split(':').filter(is_safe).collect::<Vec<_>>().join(":")
    }
}

/// Returns `path` without relative folders, which depend on the current directory.
fn absolute_folders(path: &str) -> String {
    path.split(':').filter(|folder| folder.starts_with('/')).collect::<Vec<_>>().join(":")
}

/// Returns the reason why a tool call may not set the variable `name`, which could run arbitrary
/// code in another program. Returns `None` if the call may set the variable.
pub fn refused_variable(name: &str) -> Option<&'static str> {
    const PREFIXES: [(&str, &str); 5] = [
        ("LD_", "the dynamic linker loads code that this variable names"),
        ("DYLD_", "the dynamic linker loads code that this variable names"),
        ("BASH_FUNC_", "bash loads functions from this variable"),
        ("GIT_CONFIG", "git runs the programs that this variable names"),
        ("GIT_SSH", "git runs the programs that this variable names"),
    ];
    const NAMES: [(&str, &str); 33] = [
        ("GLIBC_TUNABLES", "this variable changes the dynamic linker"),
        ("GCONV_PATH", "libc loads code that this variable names"),
        ("BASH_ENV", "bash runs the file that this variable names"),
        ("ENV", "sh runs the file that this variable names"),
        ("IFS", "sh splits words at the characters in this variable"),
        ("PS4", "sh runs commands in this variable"),
        ("SHELLOPTS", "this variable changes bash"),
        ("BASHOPTS", "this variable changes bash"),
        ("PROMPT_COMMAND", "bash runs commands in this variable"),
        ("ZDOTDIR", "zsh runs files in the folder that this variable names"),
        ("PYTHONSTARTUP", "python runs the file that this variable names"),
        ("PYTHONHOME", "python loads code that this variable names"),
        ("PERL5OPT", "perl loads code that this variable names"),
        ("PERL5DB", "perl runs code in this variable"),
        ("RUBYOPT", "ruby loads code that this variable names"),
        ("NODE_OPTIONS", "node loads code that this variable names"),
        ("JAVA_TOOL_OPTIONS", "java loads code that this variable names"),
        ("JDK_JAVA_OPTIONS", "java loads code that this variable names"),
        ("_JAVA_OPTIONS", "java loads code that this variable names"),
        ("LESSOPEN", "less runs the program that this variable names"),
        ("LESSCLOSE", "less runs the program that this variable names"),
        ("PAGER", "other programs run the command that this variable names"),
        ("EDITOR", "other programs run the command that this variable names"),
        ("VISUAL", "other programs run the command that this variable names"),
        ("BROWSER", "other programs run the command that this variable names"),
        ("SSH_ASKPASS", "ssh runs the program that this variable names"),
        ("GIT_ASKPASS", "git runs the program that this variable names"),
        ("GIT_EDITOR", "git runs the program that this variable names"),
        ("GIT_SEQUENCE_EDITOR", "git runs the program that this variable names"),
        ("GIT_PAGER", "git runs the program that this variable names"),
        ("GIT_EXTERNAL_DIFF", "git runs the program that this variable names"),
        ("GIT_PROXY_COMMAND", "git runs the program that this variable names"),
        ("GIT_EXEC_PATH", "git runs the programs that this variable names"),
    ];
    let prefix = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix));
    prefix.or_else(|| NAMES.iter().find(|(refused, _)| *refused == name)).map(|(_, why)| *why)
}
