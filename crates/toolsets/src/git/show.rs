//! `git.show`: shows one commit, or the content of a file in that commit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::commits::{COMMIT_FORMAT, GitCommitEntry};
use super::diff::{
    BYTES_MAX, FILES_MAX, GitChangedFile, STAT_FORMAT, parse_numstat, truncation_note,
    without_programs,
};
use super::discovery::RepositoryFolder;
use toolgate_contract::printable;
use toolgate_world::root::quoted_path;

/// The default size limit of the result of `git.show`, in bytes.
const BYTES_DEFAULT: usize = 64 << 10;
/// The maximum size of a commit message in a result, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The `git.show` tool.
pub(super) struct GitShow(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitShowInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// Branch, tag or commit.
    #[serde(default, rename = "ref")]
    revision: Option<String>,
    /// File to show as of the commit.
    #[serde(default)]
    file: Option<String>,
    /// Files and folders to show.
    #[serde(default)]
    paths: Vec<String>,
    /// Return only line counts.
    #[serde(default)]
    stat: bool,
    /// Maximum bytes to return; 65536 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = BYTES_MAX))]
    max_bytes: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitShowOutput {
    /// The commit.
    commit: Option<GitCommitEntry>,
    /// Full message.
    message: String,
    /// Patch of the commit, or content of the file.
    text: String,
    /// True if `text` was cut.
    truncated: bool,
    /// Size of the complete text in bytes.
    total_bytes: u64,
    /// The file, if requested.
    file: Option<String>,
    /// Files that a cut patch changes, at most 1000.
    files: Vec<GitChangedFile>,
}

impl Tool for GitShow {
    const NAME: &'static str = "git.show";
    const TITLE: &'static str = "Git show";
    const DESCRIPTION: &'static str =
        "Show a commit with its message and changes; with `file`, that file as of the commit.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = &[("path", "paths")];
    const RARE_ARGUMENTS: &'static [&'static str] = &["max_bytes"];
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitShowInput;
    type Output = GitShowOutput;

    async fn run(&self, ctx: &ToolContext, input: GitShowInput) -> Result<Self::Output, ToolError> {
        let GitShowInput { repo, revision, file, paths, stat, max_bytes } = input;
        let repository = self.0.open(ctx, &repo).await?;
        let revision = revision.as_deref().unwrap_or("HEAD");
        refuse_file_notation(revision)?;
        let commit = repository.resolve_commit(ctx, revision, "/ref").await?;
        let bytes_max = max_bytes.unwrap_or(BYTES_DEFAULT).clamp(1, BYTES_MAX);
        let log = repository.read_command("log").args(["-z", "--max-count=1", "--decorate=short"]);
        let log = log.args(["--no-color", "--no-show-signature", "--no-patch"]);
        let log = log.arg(format!("{COMMIT_FORMAT}%x00%B")).args(["--end-of-options"]);
        let log = log.arg(commit.clone()).arg("--").bytes_max(MESSAGE_BYTES_MAX).run(ctx).await?;
        // A message that was cut has no NUL character at its end and is shown as far as it goes.
        let text = log.text();
        let mut fields: Vec<String> = text.split('\0').map(str::to_owned).collect();
        fields.truncate(super::commits::COMMIT_FIELDS + 1);
        let message = fields.pop().unwrap_or_default();
        let message = printable::escape_lines(message.trim_end()).into_owned();
        let entry = GitCommitEntry::parse(&fields);
        let mut files = Vec::new();
        let (printed, file) = match file {
            Some(file) => {
                let file = repository.resolve_path(&file, "/file")?;
                let name = format!("{}:{}{file}", commit.as_str(), repository.workspace_prefix());
                let blob = repository.read_command("cat-file").args(["blob", &name]);
                let printed = blob.bytes_max(bytes_max).run_unchecked(ctx).await?;
                if printed.code != 0 {
                    let named = std::slice::from_ref(&file);
                    repository.refuse_inner_paths_without_history(ctx, named).await?;
                    let error = printed.error_text();
                    let file = quoted_path(&file);
                    let revision = quoted_path(revision);
                    return Err(ToolError::not_found(format!(
                        "there is no file {file} in {revision}: {error}"
                    )));
                }
                (printed, Some(file))
            }
            None => {
                let paths = repository.resolve_paths(&paths, "/paths")?;
                let show = |options: &[&str]| {
                    without_programs(repository.read_command("show"))
                        .args(["--format=", "--no-show-signature"])
                        .args(options.iter().copied())
                        .arg("--end-of-options")
                        .arg(commit.clone())
                        .arg("--")
                        .args(&paths)
                };
                let patch = show(&[if stat { STAT_FORMAT } else { "--patch" }]);
                let printed = patch.bytes_max(bytes_max).run(ctx).await?;
                if printed.is_truncated() && !stat {
                    files = parse_numstat(&show(&["--numstat", "-z"]).run(ctx).await?);
                    files.truncate(FILES_MAX);
                }
                if printed.total_bytes == 0 {
                    repository.refuse_unknown_paths(ctx, &paths).await?;
                }
                (printed, None)
            }
        };
        Ok(GitShowOutput {
            commit: entry,
            message,
            text: if stat && file.is_none() { printed.printable_text() } else { printed.text() },
            truncated: printed.is_truncated(),
            total_bytes: printed.total_bytes,
            file,
            files,
        })
    }

    fn result_text(output: &GitShowOutput) -> ResultText {
        let GitShowOutput { commit, message, text, truncated, total_bytes, file, files } = output;
        let body = match (file, commit) {
            (None, Some(GitCommitEntry { commit, author, email, date, .. })) => {
                let message: String = message.lines().map(|line| format!("    {line}\n")).collect();
                format!(
                    "commit {commit}\nAuthor: {author} <{email}>\nDate:   {date}\n\n{message}\n{text}"
                )
            }
            (_, _) => text.clone(),
        };
        let body = ResultText::from_body(body);
        if *truncated { body.with_note(truncation_note(*total_bytes, files)) } else { body }
    }
}

/// Refuses a `revision` such as `HEAD:src/a.rs`, git's notation for a file in a commit.
fn refuse_file_notation(revision: &str) -> Result<(), ToolError> {
    // A colon in braces belongs to a time or a message.
    let parts = revision.split_once(':').filter(|(name, _)| !name.contains('{'));
    let Some((name, file)) = parts.filter(|(name, _)| !name.is_empty()) else { return Ok(()) };
    let message = format!(
        "{} is a file in a commit; set `ref` to {} and `file` to {}",
        quoted_path(revision),
        quoted_path(name),
        quoted_path(file)
    );
    Err(ToolError::invalid("/ref", message))
}
