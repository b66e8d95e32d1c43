//! `git.show`: shows one commit, or a file as of that commit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::Git;
use super::commits::{Entry, FORMAT};
use super::diff::{BYTES_MAX, cut, safe};
use super::discovery::Repo;
use crate::printable;
use crate::world::root::shown;

/// Default size limit of a result, in bytes.
const BYTES: usize = 64 << 10;
/// Size limit of a message, in bytes.
const MESSAGE_BYTES: usize = 64 << 10;

/// The `git.show` tool.
pub(super) struct Show(pub(super) Git);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// A folder of the repository, in the workspace; by default the workspace itself.
    #[serde(default)]
    repo: Repo,
    /// Branch, tag or commit; by default `HEAD`.
    #[serde(default, rename = "ref")]
    revision: Option<String>,
    /// File to show as of the commit, instead of the commit's changes.
    #[serde(default)]
    file: Option<String>,
    /// Only changes to these files and folders, relative to the repository's top folder.
    #[serde(default)]
    paths: Vec<String>,
    /// Count changed lines for each file, instead of showing them.
    #[serde(default)]
    stat: bool,
    /// Most bytes to return; 65536 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = BYTES_MAX))]
    max_bytes: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Output {
    /// The commit.
    commit: Option<Entry>,
    /// Full message.
    message: String,
    /// Patch of the commit, or content of the file.
    text: String,
    /// True if `text` was cut.
    truncated: bool,
    /// Size of the whole text in bytes.
    total_bytes: u64,
    /// The file, if requested.
    file: Option<String>,
}

impl Tool for Show {
    const NAME: &'static str = "git.show";
    const TITLE: &'static str = "Git show";
    const ABOUT: &'static str = "Shows one commit of a git repository: who, when, its message and \
        what it changed. With `file`, shows that file as it was in that commit instead.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let Input { repo, revision, file, paths, stat, max_bytes } = input;
        let repository = self.0.open(ctx, &repo).await?;
        let revision = revision.as_deref().unwrap_or("HEAD");
        refuse_file(revision)?;
        let commit = repository.commit(ctx, revision, "/ref").await?;
        let bytes_max = max_bytes.unwrap_or(BYTES).clamp(1, BYTES_MAX);
        let told = repository.read("log").args(["-z", "--max-count=1", "--decorate=short"]);
        let told = told.args(["--no-color", "--no-show-signature", "--no-patch"]);
        let told = told.arg(format!("{FORMAT}%x00%B")).args(["--end-of-options"]);
        let told = told.arg(commit.clone()).arg("--").bytes_max(MESSAGE_BYTES).run(ctx).await?;
        // A message that was cut has no NUL character at its end and is shown as far as it goes.
        let text = told.text();
        let mut fields: Vec<String> = text.split('\0').map(str::to_owned).collect();
        fields.truncate(super::commits::FIELDS + 1);
        let message = fields.pop().unwrap_or_default();
        let message = printable::lines(message.trim_end()).into_owned();
        let entry = Entry::read(&fields);
        let (printed, file) = match file {
            Some(file) => {
                let file = repository.path(&file, "/file")?;
                let name = format!("{}:{file}", commit.as_str());
                let blob = repository.read("cat-file").args(["blob", &name]);
                let printed = blob.bytes_max(bytes_max).attempt(ctx).await?;
                if printed.code != 0 {
                    let why = printed.complaint();
                    let file = shown(&file);
                    let revision = shown(revision);
                    return Err(ToolError::not_found(format!(
                        "there is no file {file} in {revision}: {why}"
                    )));
                }
                (printed, Some(file))
            }
            None => {
                let paths = repository.paths(&paths, "/paths")?;
                let how = if stat { "--stat" } else { "--patch" };
                let patch = safe(repository.read("show"))
                    .args(["--format=", "--no-show-signature", how, "--end-of-options"])
                    .arg(commit)
                    .arg("--")
                    .args(&paths);
                let printed = patch.bytes_max(bytes_max).run(ctx).await?;
                if printed.total_bytes == 0 {
                    repository.refuse_unknown(ctx, &paths).await?;
                }
                (printed, None)
            }
        };
        Ok(Output {
            commit: entry,
            message,
            text: if stat && file.is_none() { printed.summary() } else { printed.text() },
            truncated: printed.is_cut(),
            total_bytes: printed.total_bytes,
            file,
        })
    }

    fn text(output: &Output) -> Text {
        let Output { commit, message, text, truncated, total_bytes, file } = output;
        let body = match (file, commit) {
            (None, Some(Entry { commit, author, email, date, .. })) => {
                let message: String = message.lines().map(|line| format!("    {line}\n")).collect();
                format!(
                    "commit {commit}\nAuthor: {author} <{email}>\nDate:   {date}\n\n{message}\n{text}"
                )
            }
            (_, _) => text.clone(),
        };
        let body = Text::body(body);
        if *truncated { body.with_note(cut(*total_bytes)) } else { body }
    }
}

/// Refuses `HEAD:src/a.rs`, git's notation for a file in a commit.
fn refuse_file(revision: &str) -> Result<(), ToolError> {
    // A colon in braces belongs to a time or a message.
    let parts = revision.split_once(':').filter(|(name, _)| !name.contains('{'));
    let Some((name, file)) = parts.filter(|(name, _)| !name.is_empty()) else { return Ok(()) };
    let message = format!(
        "{} is a file in a commit: give `ref` as {} and `file` as {}",
        shown(revision),
        shown(name),
        shown(file)
    );
    Err(ToolError::invalid("/ref", message))
}
