//! `git.diff`: shows differences between the work tree, the index and commits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::command::{GitCommand, GitOutput};
use super::discovery::RepositoryFolder;
use super::repository::GitRepository;
use super::revision::GitRevisionRange;
use super::submodules::SubmoduleStates;
use crate::counted::counted;
use toolgate_world::root::quoted_path;

/// The default size limit of the result of `git.diff`, in bytes.
const BYTES_DEFAULT: usize = 64 << 10;
/// The highest size limit that a call can set for the result of `git.diff`, in bytes.
pub(super) const BYTES_MAX: usize = 1 << 20;
/// The maximum number of context lines that a diff shows around a change.
const CONTEXT_MAX: u32 = 1000;
/// The maximum number of changed files that a result lists.
pub(super) const FILES_MAX: usize = 1000;
/// The maximum size of git's list of untracked files that is read to count them, in bytes.
const UNTRACKED_BYTES_MAX: usize = 64 << 10;
/// The maximum number of files that the note about a cut patch names.
const NAMED_FILES_MAX: usize = 40;

/// The git option that counts changed lines. The widths are high, so that git prints complete
/// paths. By default, git shortens them to 80 columns.
pub(super) const STAT_FORMAT: &str = "--stat=4200,4096,50";

/// The `git.diff` tool.
pub(super) struct GitDiff(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitDiffInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// Compare staged changes.
    #[serde(default)]
    staged: bool,
    /// One commit, or `a..b`.
    #[serde(default, rename = "ref")]
    revision: Option<String>,
    /// Files and folders to show.
    #[serde(default)]
    paths: Vec<String>,
    /// Return only line counts.
    #[serde(default)]
    stat: bool,
    /// Lines around a change.
    #[serde(default)]
    #[schemars(range(max = CONTEXT_MAX))]
    context: Option<u32>,
    /// Maximum bytes to return; 65536 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = BYTES_MAX))]
    max_bytes: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitDiffOutput {
    /// Output of `git diff`.
    diff: String,
    /// Files that differ, at most 1000.
    files: Vec<GitChangedFile>,
    /// True if the diff was cut.
    truncated: bool,
    /// Size of the complete diff in bytes.
    total_bytes: u64,
    /// Submodules that contain changes or could not be checked; name one in `repo` to see its
    /// changes.
    submodules: Vec<String>,
    /// Number of untracked files, if nothing differs.
    #[serde(skip)]
    untracked: Option<UntrackedFileCount>,
}

/// The number of untracked files, which `git diff` does not show.
#[derive(Debug)]
struct UntrackedFileCount {
    files: u64,
    /// True if the list of untracked files was too long to count all of them.
    is_cut: bool,
}

/// A file that differs between two versions.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct GitChangedFile {
    /// Path from the repository's top folder.
    pub(super) path: String,
    /// Old path of a renamed or copied file.
    pub(super) from: Option<String>,
    /// Number of added lines; null if the file is not text.
    pub(super) added: Option<u64>,
    /// Number of removed lines; null if the file is not text.
    pub(super) removed: Option<u64>,
}

impl Tool for GitDiff {
    const NAME: &'static str = "git.diff";
    const TITLE: &'static str = "Git diff";
    const DESCRIPTION: &'static str = "Show unstaged changes. `staged` shows staged changes; \
         `ref` shows changes since a commit or between two.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("path", "paths"), ("file", "paths")];
    const RARE_ARGUMENTS: &'static [&'static str] = &["context", "max_bytes"];
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitDiffInput;
    type Output = GitDiffOutput;

    async fn run(&self, ctx: &ToolContext, input: GitDiffInput) -> Result<Self::Output, ToolError> {
        let GitDiffInput { repo, staged, revision, paths, stat, context, max_bytes } = input;
        let repository = self.0.open(ctx, &repo).await?;
        let range = match &revision {
            Some(name) => Some(repository.resolve_range(ctx, name, "/ref").await?),
            None => None,
        };
        if let (true, Some(GitRevisionRange::Between(..) | GitRevisionRange::SinceMergeBase(..))) =
            (staged, &range)
        {
            let message = "`staged` compares with one commit, and `ref` names two; leave one out";
            return Err(ToolError::invalid("/staged", message));
        }
        let paths = repository.resolve_paths(&paths, "/paths")?;
        let diff = |options: Vec<String>| {
            without_programs(repository.read_command("diff"))
                .args(options)
                .arg("--ignore-submodules=dirty")
                .arg_if(staged, "--cached")
                .args(range.as_ref().map(GitRevisionRange::to_argument))
                .arg("--")
                .args(&paths)
        };
        let numstat = diff(vec!["--numstat".into(), "-z".into()]).run(ctx).await?;
        let format = match (stat, context) {
            (true, _) => Some(STAT_FORMAT.to_owned()),
            (false, Some(lines)) => Some(format!("--unified={}", lines.min(CONTEXT_MAX))),
            (false, None) => None,
        };
        let bytes_max = max_bytes.unwrap_or(BYTES_DEFAULT).clamp(1, BYTES_MAX);
        let printed = diff(format.into_iter().collect()).bytes_max(bytes_max).run(ctx).await?;
        if printed.total_bytes == 0 {
            repository.refuse_unknown_paths(ctx, &paths).await?;
        }
        let includes_work_tree = matches!(range, None | Some(GitRevisionRange::One(_)));
        let shows_work_tree = includes_work_tree && !staged;
        let untracked = match shows_work_tree && printed.total_bytes == 0 {
            true => Some(count_untracked(ctx, &repository, &paths).await?),
            false => None,
        };
        let submodules = if shows_work_tree {
            let SubmoduleStates { changed, unchecked } =
                repository.check_submodules(ctx, true).await?;
            let mut submodules = [changed, unchecked].concat();
            submodules.retain(|submodule| is_selected(submodule, &paths));
            submodules
        } else {
            Vec::new()
        };
        let mut files = parse_numstat(&numstat);
        files.truncate(FILES_MAX);
        Ok(GitDiffOutput {
            diff: if stat { printed.printable_text() } else { printed.text() },
            files,
            truncated: printed.is_truncated(),
            total_bytes: printed.total_bytes,
            submodules,
            untracked,
        })
    }

    fn result_text(output: &GitDiffOutput) -> ResultText {
        let text = ResultText::from_body(output.diff.clone());
        if output.truncated {
            return text.with_note(truncation_note(output.total_bytes, &output.files));
        }
        if !output.submodules.is_empty() {
            let names: Vec<String> =
                output.submodules.iter().map(|path| quoted_path(path)).collect();
            return text.with_note(format!(
                "changes in submodules are left out; to see them, name a submodule in `repo`: {}",
                names.join(", ")
            ));
        }
        if !output.diff.is_empty() {
            return text;
        }
        match &output.untracked {
            Some(UntrackedFileCount { files: files @ 1.., is_cut }) => {
                let more = if *is_cut { "more than " } else { "" };
                let files = counted(*files, "untracked file is", "untracked files are");
                text.with_note(format!("no differences; {more}{files} not shown, see git_status"))
            }
            Some(_) | None => text.with_note("no differences"),
        }
    }
}

/// Counts the untracked files below `paths` that git does not ignore, and returns their number.
async fn count_untracked(
    ctx: &ToolContext,
    repository: &GitRepository<'_>,
    paths: &[String],
) -> Result<UntrackedFileCount, ToolError> {
    let visible = repository.visible_paths().filter(|_| paths.is_empty());
    let listed = repository
        .read_command("ls-files")
        .args(["--others", "--exclude-standard", "-z", "--"])
        .args(visible)
        .args(paths)
        .bytes_max(UNTRACKED_BYTES_MAX)
        .run(ctx)
        .await?;
    let files = listed.fields().len() as u64;
    Ok(UntrackedFileCount { files, is_cut: listed.is_truncated() })
}

/// Returns true if `paths` is empty, or contains `path` or one of its parent folders.
fn is_selected(path: &str, paths: &[String]) -> bool {
    let contains = |folder: &String| {
        folder == "."
            || path
                .strip_prefix(folder)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    paths.is_empty() || paths.iter().any(contains)
}

/// Returns the note about a patch that was cut. `files` are all files that the complete patch
/// changes, and `total_bytes` is its size.
pub(super) fn truncation_note(total_bytes: u64, files: &[GitChangedFile]) -> String {
    let mut note = format!(
        "cut: the whole text has {total_bytes} bytes; request some `paths` or `stat`, or set \
         `max_bytes`, up to {BYTES_MAX}"
    );
    if !files.is_empty() {
        let named: Vec<String> =
            files.iter().take(NAMED_FILES_MAX).map(GitChangedFile::summary).collect();
        note = format!("{note}; changed: {}", named.join(", "));
    }
    if let Some(rest @ 1..) = files.len().checked_sub(NAMED_FILES_MAX) {
        note = format!("{note} and {rest} more");
    }
    note
}

impl GitChangedFile {
    /// Returns the file's path in backquotes, with the numbers of added and removed lines (`+1 -2`)
    /// if they are known.
    fn summary(&self) -> String {
        let Self { path, from: _, added, removed } = self;
        let path = quoted_path(path);
        match (added, removed) {
            (Some(added), Some(removed)) => format!("{path} +{added} -{removed}"),
            (_, _) => path,
        }
    }
}

/// Adds options to `command` that keep git from running external diff and textconv programs.
pub(super) fn without_programs(command: GitCommand<'_>) -> GitCommand<'_> {
    command.args(["--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short"])
}

/// Parses `numstat`, the output of `git diff --numstat -z`. Lists each file once.
pub(super) fn parse_numstat(numstat: &GitOutput) -> Vec<GitChangedFile> {
    let mut files: Vec<GitChangedFile> = Vec::new();
    let fields = numstat.fields();
    let mut fields = fields.iter();
    while let Some(field) = fields.next() {
        let mut parts = field.splitn(3, '\t');
        let added = parts.next();
        let removed = parts.next();
        let path = parts.next();
        let count = |count: Option<&str>| count.and_then(|count| count.trim().parse().ok());
        let (path, from) = match path {
            // For a rename, the old and new name are separate fields.
            Some("") => {
                let (Some(from), Some(path)) = (fields.next(), fields.next()) else { break };
                (path.clone(), Some(from.clone()))
            }
            Some(path) => (path.to_owned(), None),
            None => continue,
        };
        // For a file in conflict, git prints an entry with zeros before the entry with the counts.
        files.pop_if(|last| last.path == path);
        files.push(GitChangedFile { path, from, added: count(added), removed: count(removed) });
    }
    files
}
