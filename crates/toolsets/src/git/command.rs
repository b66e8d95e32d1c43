//! Builds and runs one command of the git program.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toolgate_contract::{ToolContext, ToolError, ToolErrorKind};

use super::GitContext;
use super::error_redaction::redact_contents;
use super::outside::OutsideRepository;
use crate::exec::{bounds, set_trace_variables};
use toolgate_contract::printable;
use toolgate_world::processes::{
    CapturedOutput, ProgramOutcome, ProgramStartRequest, ProgramStopReason,
};
use toolgate_world::programs::ResolvedProgram;

/// The default limit for git's output, in bytes. The limit suits lists, whose entries are limited
/// by count.
pub(super) const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// The time limit of one git command, if the settings do not allow git to run other programs.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit of one git command, if the settings allow git to run programs such as hooks and
/// filters.
const TIMEOUT_WITH_PROGRAMS: Duration = Duration::from_secs(600);
/// The maximum number of characters of git's error output that an error quotes.
const ERROR_CHARS_MAX: usize = 2000;
/// The maximum number of bytes that are kept of git's error output.
const STDERR_BYTES_MAX: usize = 64 << 10;

/// The environment variables of the server that git receives.
const INHERITED_VARIABLES: [&str; 3] = ["HOME", "XDG_CONFIG_HOME", "TZ"];
/// The environment variables of the server that name the committer and the user's git configuration
/// files.
const OWNER_VARIABLES: [&str; 8] = [
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_AUTHOR_NAME",
    "GIT_AUTHOR_EMAIL",
    "GIT_COMMITTER_NAME",
    "GIT_COMMITTER_EMAIL",
    "EMAIL",
];
/// Environment variables that keep git from prompting, starting a pager and fetching.
const FIXED_VARIABLES: [(&str, &str); 10] = [
    // The code parses git's messages, so they must be in English.
    ("LC_ALL", "C.UTF-8"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", "false"),
    ("GIT_ASKPASS", "false"),
    ("GIT_ALLOW_PROTOCOL", "none"),
    // A partial clone would otherwise fetch missing objects.
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_LITERAL_PATHSPECS", "1"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_ADVICE", "0"),
];

/// The folders of git's own helper programs, relative to git's installation prefix.
const GIT_CORE_FOLDERS: [&str; 2] = ["lib/git-core", "libexec/git-core"];

/// The configuration files that git reads when it runs a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GitConfigScope {
    /// Only the configuration of the repository, with toolgate's overrides.
    Repository,
    /// The configurations of the repository, the user and the system.
    UserAndSystem,
}

/// A git command that a tool runs.
pub(super) struct GitCommand<'g> {
    git: &'g GitContext,
    cwd: &'g OwnedFd,
    overrides: &'g [(OsString, OsString)],
    config_scope: GitConfigScope,
    /// The path of the repository's `.git` folder, if the command may change the repository.
    changed_folder: Option<&'g Path>,
    /// The repository in which the command runs, if its `.git` folder is outside the workspace.
    outside: Option<&'g OutsideRepository>,
    args: Vec<OsString>,
    stdin: Option<Vec<u8>>,
    env: BTreeMap<OsString, OsString>,
    bytes_max: usize,
}

/// The output and exit code of a git command.
#[derive(Debug)]
pub(super) struct GitOutput {
    /// The exit code. If a signal ended git, 128 plus the signal's number.
    pub(super) code: i32,
    /// The start of git's standard output, up to the limit of the command.
    pub(super) stdout: Vec<u8>,
    /// The size of git's complete standard output, in bytes.
    pub(super) total_bytes: u64,
    /// Git's standard error output, without quotations of file contents.
    pub(super) stderr: String,
}

impl<'g> GitCommand<'g> {
    /// Creates the command `git VERB`, which starts in the directory `cwd`. `overrides` are git
    /// settings that take precedence over configuration files.
    pub(super) fn new(
        git: &'g GitContext,
        cwd: &'g OwnedFd,
        overrides: &'g [(OsString, OsString)],
        config_scope: GitConfigScope,
        verb: &str,
    ) -> Self {
        Self {
            git,
            cwd,
            overrides,
            config_scope,
            changed_folder: None,
            outside: None,
            args: vec!["--no-pager".into(), verb.into()],
            stdin: None,
            env: BTreeMap::new(),
            bytes_max: OUTPUT_BYTES_MAX,
        }
    }

    /// Allows the command to change the repository whose `.git` folder is `git_dir`. Returns the
    /// command.
    pub(super) fn with_changes_to(mut self, git_dir: &'g Path) -> Self {
        self.changed_folder = Some(git_dir);
        self
    }

    /// Allows the command to read `outside`, a repository outside the workspace, and to change it
    /// if the tool makes changes. Returns the command.
    pub(super) fn in_outside(mut self, outside: &'g OutsideRepository) -> Self {
        self.outside = Some(outside);
        self
    }

    pub(super) fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(super) fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds the argument `arg` to the git command if `wanted` is true. Returns the command.
    pub(super) fn arg_if(self, wanted: bool, arg: &str) -> Self {
        if wanted { self.arg(arg) } else { self }
    }

    pub(super) fn stdin(mut self, bytes: Vec<u8>) -> Self {
        self.stdin = Some(bytes);
        self
    }

    pub(super) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Limits the output of git that is kept to `bytes_max` bytes. Returns the command.
    pub(super) fn bytes_max(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Runs the git command, and returns its output.
    ///
    /// # Errors
    /// Fails if git exits with a code other than 0, is cancelled, times out or cannot start.
    pub(super) async fn run(self, ctx: &ToolContext) -> Result<GitOutput, ToolError> {
        let printed = self.run_unchecked(ctx).await?;
        if printed.code == 0 { Ok(printed) } else { Err(printed.to_error()) }
    }

    /// Runs the git command, and returns its output for any exit code.
    ///
    /// # Errors
    /// Fails if git is cancelled, times out or cannot start.
    pub(super) async fn run_unchecked(self, ctx: &ToolContext) -> Result<GitOutput, ToolError> {
        let Self {
            git,
            cwd,
            overrides,
            config_scope,
            changed_folder,
            outside,
            args,
            stdin,
            env: extra_env,
            bytes_max,
        } = self;
        let GitContext { programs, settings, .. } = git;
        let path = programs.processes.search_path();
        let path = programs.processes.unwritable_path(&path, &programs.root);
        let program = ResolvedProgram::find("git", cwd.as_fd(), &path).map_err(|_| {
            let message = format!("the program `git` is missing: it is not in PATH ({path})");
            ToolError::new(ToolErrorKind::Unavailable, message)
        })?;
        let cwd = cwd
            .try_clone()
            .map_err(|err| ToolError::with_cause("git could not be started", err))?;
        let keep: Vec<String> = INHERITED_VARIABLES
            .iter()
            .chain(&OWNER_VARIABLES)
            .map(|&name| name.to_owned())
            .collect();
        let mut env = programs.processes.environment(&keep, &path);
        set_trace_variables(&mut env, ctx.trace.as_ref());
        env.extend(FIXED_VARIABLES.iter().map(|(name, value)| (name.into(), value.into())));
        match config_scope {
            GitConfigScope::UserAndSystem => {}
            GitConfigScope::Repository => {
                env.insert("GIT_CONFIG_GLOBAL".into(), "/dev/null".into());
                env.insert("GIT_CONFIG_NOSYSTEM".into(), "1".into());
            }
        }
        // Git must not search for a repository above the workspace.
        if let Some(parent) = programs.root.path().parent() {
            env.insert("GIT_CEILING_DIRECTORIES".into(), parent.into());
        }
        env.insert("GIT_CONFIG_COUNT".into(), overrides.len().to_string().into());
        for (at, (key, value)) in overrides.iter().enumerate() {
            env.insert(format!("GIT_CONFIG_KEY_{at}").into(), key.clone());
            env.insert(format!("GIT_CONFIG_VALUE_{at}").into(), value.clone());
        }
        env.extend(extra_env);
        let timeout = if settings.programs.is_empty() { TIMEOUT } else { TIMEOUT_WITH_PROGRAMS };
        let mut bounds = bounds(&programs.settings, timeout, None);
        // Only the first half of the kept output is its start, so twice as much is kept.
        bounds.memory_bytes_max = bytes_max.saturating_mul(2).max(2 * STDERR_BYTES_MAX);
        bounds.spool_bytes_max = 0;
        let only_reads = changed_folder.is_none();
        let mut confinement = programs.clone().with_only_reads(only_reads).confinement();
        if let Some(confinement) = &mut confinement {
            // The parts of a repository outside the workspace are listed one by one.
            let changed_folder = changed_folder.filter(|_| outside.is_none());
            confinement.git_folder = Some(changed_folder.unwrap_or(Path::new("")).to_owned());
            confinement.repository_places =
                outside.map(|outside| outside.places(!only_reads)).unwrap_or_default();
            confinement.visible_paths.extend(excludes_file(overrides, &env));
            // Configuration files that the server's administrator chose.
            let configured = ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"].map(OsStr::new);
            let named = configured.iter().filter_map(|name| Some(PathBuf::from(env.get(*name)?)));
            let is_file = |path: &PathBuf| path.is_absolute() && path != Path::new("/dev/null");
            confinement.visible_paths.extend(named.filter(is_file));
            let runs_only_git = settings.programs.is_empty();
            if runs_only_git {
                // No git tool uses a network.
                confinement.hosts = None;
            }
            confinement.executables =
                runs_only_git.then(|| own_programs(&program, cwd.as_fd())).flatten();
        }
        let start = ProgramStartRequest { program, args, cwd, env, stdin, bounds, confinement };
        let ended = programs.processes.run(start, &ctx.cancel, &|_, _| {}).await;
        let ended = ended.map_err(|err| match err.kind() {
            std::io::ErrorKind::Interrupted => ToolError::canceled(),
            _ => ToolError::with_cause("git could not be run", err),
        })?;
        ctx.sandbox_report.add_profile(ended.sandbox.summary());
        match ended.stop_reason {
            None => Ok(GitOutput::new(ended, bytes_max)),
            Some(ProgramStopReason::Canceled) => Err(ToolError::canceled()),
            Some(ProgramStopReason::TimedOut) => Err(ToolError::failed(format!(
                "git timed out and was stopped after {} ms; request less",
                timeout.as_millis()
            ))),
        }
    }
}

/// Returns the only programs that a sandboxed git may run: git itself and its helper programs.
/// Returns `None` if git is a script, because its interpreter could run anything.
fn own_programs(git: &ResolvedProgram, cwd: BorrowedFd<'_>) -> Option<Vec<PathBuf>> {
    let mut files = git.executable_files(cwd)?;
    let prefix = files.first()?.parent()?.parent()?.to_owned();
    files.extend(GIT_CORE_FOLDERS.map(|folder| prefix.join(folder)));
    Some(files)
}

/// Returns the path of the user's ignore file, the git setting `core.excludesFile`, if the path is
/// absolute or in the home folder.
fn excludes_file(
    overrides: &[(OsString, OsString)],
    env: &BTreeMap<OsString, OsString>,
) -> Option<PathBuf> {
    let (_, named) = overrides.iter().rev().find(|(key, _)| key == "core.excludesfile")?;
    let named = Path::new(named);
    match named.strip_prefix("~") {
        Ok(rest) => Some(Path::new(env.get(OsStr::new("HOME"))?).join(rest)),
        Err(_) => Some(named.to_owned()).filter(|path| path.is_absolute()),
    }
}

impl GitOutput {
    fn new(ended: ProgramOutcome, bytes_max: usize) -> Self {
        let ProgramOutcome { status, stdout, stderr, .. } = ended;
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        let total_bytes = stdout.total_bytes;
        let stderr =
            String::from_utf8_lossy(&captured_start(stderr, STDERR_BYTES_MAX)).into_owned();
        let stderr = redact_contents(&stderr);
        Self { code, stdout: captured_start(stdout, bytes_max), total_bytes, stderr }
    }

    /// Returns git's standard output as text, with invalid UTF-8 replaced.
    pub(super) fn text(&self) -> String {
        let is_whole = !self.is_truncated();
        // A cut output may end inside a character.
        let mut end = self.stdout.len();
        if !is_whole {
            while end > 0 && self.stdout.get(end - 1).is_some_and(|byte| *byte >= 0x80) {
                end -= 1;
            }
        }
        String::from_utf8_lossy(&self.stdout[..end]).into_owned()
    }

    /// Returns true if git printed more standard output than was kept.
    pub(super) fn is_truncated(&self) -> bool {
        self.total_bytes > self.stdout.len() as u64
    }

    /// Splits git's standard output at NUL characters. Drops a last field that does not end with
    /// NUL.
    pub(super) fn fields(&self) -> Vec<String> {
        let end = self.stdout.iter().rposition(|byte| *byte == 0).unwrap_or(0);
        if end == 0 {
            return Vec::new();
        }
        let fields = self.stdout[..end].split(|byte| *byte == 0);
        fields.map(|field| String::from_utf8_lossy(field).into_owned()).collect()
    }

    /// Converts the output of a failed git command to an error for the caller.
    pub(super) fn to_error(&self) -> ToolError {
        let error = self.error_text();
        let (fault, advice) = if error.contains("not a git repository: ") {
            (
                ToolErrorKind::NotFound,
                "the `.git` file there names a folder that does not exist; have the server's \
                 operator run `git worktree repair` or `git submodule update --init`",
            )
        } else if error.contains("not a git repository") {
            (
                ToolErrorKind::NotFound,
                "name the folder of a repository in `repo`, or have the server's operator run \
                 `git init`, which programs may not do",
            )
        } else if error.contains("dubious ownership") {
            (
                ToolErrorKind::NotAllowed,
                "it belongs to another user; the server's operator can trust it with \
                 `git config --global --add safe.directory FOLDER`",
            )
        } else if error.contains("must be run in a work tree") || error.contains("bare repository")
        {
            (ToolErrorKind::NotAllowed, "name a folder with a work tree in `repo`")
        } else if error.contains("tell me who you are") || error.contains("identity unknown") {
            (
                ToolErrorKind::Failed,
                "the server's operator must set `user.name` and `user.email` in git's settings",
            )
        } else if error.contains("Read-only file system") {
            (
                ToolErrorKind::NotAllowed,
                "toolgate keeps this part of the repository read-only: `config`, `hooks`, `info`, \
                 and `modules` with the repositories of submodules; use git outside of toolgate",
            )
        } else if error.contains("index.lock") {
            (
                ToolErrorKind::Unavailable,
                "another git process is running, or one crashed; try again",
            )
        } else {
            (ToolErrorKind::Failed, "")
        };
        let advice = if advice.is_empty() { String::new() } else { format!("; {advice}") };
        ToolError::new(fault, format!("git failed: {error}{advice}"))
    }

    /// Returns git's standard output as text without control characters. Not suitable for patches,
    /// which must stay exact.
    pub(super) fn printable_text(&self) -> String {
        printable::escape_lines(&self.text()).into_owned()
    }

    /// Returns git's error output, shortened to 2000 characters.
    pub(super) fn error_text(&self) -> String {
        let printed = match self.stderr.trim() {
            "" => self.text(),
            stderr => stderr.to_owned(),
        };
        let lines = printed.lines().map(str::trim_end).filter(|line| !line.starts_with("hint:"));
        let text = lines.collect::<Vec<_>>().join("\n");
        let text = printable::escape_lines(text.trim());
        let text = text.strip_prefix("fatal: ").or(text.strip_prefix("error: ")).unwrap_or(&text);
        match text.char_indices().nth(ERROR_CHARS_MAX) {
            Some((end, _)) => format!("{} …", &text[..end]),
            None if text.is_empty() => format!("exit code {} without a message", self.code),
            None => text.to_owned(),
        }
    }
}

/// Returns the first `bytes_max` bytes of `captured`, a captured output of git.
fn captured_start(captured: CapturedOutput, bytes_max: usize) -> Vec<u8> {
    let cut = captured.cut_range().is_some();
    let CapturedOutput { mut head, tail, .. } = captured;
    if !cut {
        head.extend(tail);
    }
    head.truncate(bytes_max);
    head
}
