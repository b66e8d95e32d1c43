//! `git.diff`: what differs between the work tree, the index and commits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::Git;
use super::command::{Command, Printed};
use super::discovery::Repo;
use super::revision::Range;

/// How much a result shows where the call does not say.
const BYTES: usize = 64 << 10;
/// How much it can show.
pub(super) const BYTES_MAX: usize = 1 << 20;
/// How many lines around a change can be shown.
const CONTEXT_MAX: u32 = 1000;
/// How many files are listed.
const FILES_MAX: usize = 1000;

/// Shows differences.
pub(super) struct Diff(pub(super) Git);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// A folder of the repository, beneath the workspace; by default the workspace itself.
    #[serde(default)]
    repo: Repo,
    /// What is staged, instead of what is not.
    #[serde(default)]
    staged: bool,
    /// A commit that the work tree (with `staged`, the index) is held against; or two, as `a..b`,
    /// or `a...b` for what b has changed since they parted.
    #[serde(default, rename = "ref")]
    revision: Option<String>,
    /// Only these files and folders, named from the repository's top folder.
    #[serde(default)]
    paths: Vec<String>,
    /// Counts the lines for each file, instead of showing them.
    #[serde(default)]
    stat: bool,
    /// How many lines around a change are shown; 3 by default.
    #[serde(default)]
    #[schemars(range(max = CONTEXT_MAX))]
    context: Option<u32>,
    /// How much of it is shown at most; 65536 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = BYTES_MAX))]
    max_bytes: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Output {
    /// What `git diff` prints.
    diff: String,
    /// The files that differ, the first 1000.
    files: Vec<Changed>,
    /// Whether there is more of it than is shown.
    truncated: bool,
    /// How much there is.
    total_bytes: u64,
}

/// A file that differs.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Changed {
    /// The path from the repository's top folder.
    pub(super) path: String,
    /// Where it was before, if it was renamed or copied.
    pub(super) from: Option<String>,
    /// How many lines are new; null for what is not text.
    pub(super) added: Option<u64>,
    /// How many lines are gone; null for what is not text.
    pub(super) removed: Option<u64>,
}

impl Tool for Diff {
    const NAME: &'static str = "git.diff";
    const TITLE: &'static str = "Git diff";
    const ABOUT: &'static str = "Shows what differs in a git repository: what is changed and not \
        staged; with `staged`, what is; with `ref`, against a commit or between two. Where there \
        is much, look at `stat` first and then at some `paths`.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let Input { repo, staged, revision, paths, stat, context, max_bytes } = input;
        let repository = self.0.open(ctx, &repo).await?;
        let range = match &revision {
            Some(name) => Some(repository.range(ctx, name, "/ref").await?),
            None => None,
        };
        if let (true, Some(Range::Between(..) | Range::Parted(..))) = (staged, &range) {
            let message = "two commits are held against each other, which leaves nothing for \
                           `staged` to mean; give one";
            return Err(ToolError::invalid("/staged", message));
        }
        let paths = repository.paths(&paths, "/paths")?;
        let ask = |ask: Vec<String>| {
            safe(repository.read("diff"))
                .args(ask)
                .arg("--ignore-submodules=dirty")
                .flag(staged, "--cached")
                .args(range.as_ref().map(Range::argument))
                .arg("--")
                .args(&paths)
        };
        let counted = ask(vec!["--numstat".into(), "-z".into()]).run(ctx).await?;
        let how = match (stat, context) {
            (true, _) => Some("--stat".to_owned()),
            (false, Some(lines)) => Some(format!("--unified={}", lines.min(CONTEXT_MAX))),
            (false, None) => None,
        };
        let bytes_max = max_bytes.unwrap_or(BYTES).clamp(1, BYTES_MAX);
        let printed = ask(how.into_iter().collect()).bytes_max(bytes_max).run(ctx).await?;
        if printed.total_bytes == 0 {
            repository.refuse_unknown(ctx, &paths).await?;
        }
        let mut files = changed(&counted);
        files.truncate(FILES_MAX);
        Ok(Output {
            diff: if stat { printed.summary() } else { printed.text() },
            files,
            truncated: printed.is_cut(),
            total_bytes: printed.total_bytes,
        })
    }

    fn text(output: &Output) -> Text {
        let text = Text::body(output.diff.clone());
        if output.truncated {
            return text.with_note(cut(output.total_bytes));
        }
        if output.diff.is_empty() { text.with_note("nothing differs") } else { text }
    }
}

/// What to know of a patch that is cut.
pub(super) fn cut(total_bytes: u64) -> String {
    format!(
        "cut: it has {total_bytes} bytes; look at some `paths`, at `stat`, or give `max_bytes`, up \
         to {BYTES_MAX}"
    )
}

/// `command`, which shows differences, without any program of a configuration.
pub(super) fn safe(command: Command<'_>) -> Command<'_> {
    command.args(["--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short"])
}

/// Reads what `--numstat -z` printed.
pub(super) fn changed(counted: &Printed) -> Vec<Changed> {
    let mut files = Vec::new();
    let fields = counted.fields();
    let mut fields = fields.iter();
    while let Some(field) = fields.next() {
        let mut parts = field.splitn(3, '\t');
        let (added, removed, path) = (parts.next(), parts.next(), parts.next());
        let count = |count: Option<&str>| count.and_then(|count| count.trim().parse().ok());
        let (path, from) = match path {
            // Both its names are fields of their own.
            Some("") => {
                let (Some(from), Some(path)) = (fields.next(), fields.next()) else { break };
                (path.clone(), Some(from.clone()))
            }
            Some(path) => (path.to_owned(), None),
            None => continue,
        };
        files.push(Changed { path, from, added: count(added), removed: count(removed) });
    }
    files
}
