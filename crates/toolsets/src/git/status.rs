//! `git.status`: shows changed, staged and untracked files, and the state of the current branch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::discovery::RepositoryFolder;
use super::quoting::quote_name;
use super::submodules::SubmoduleStates;
use crate::counted::counted;
use toolgate_contract::printable;
use toolgate_world::root::quoted_path;

const BYTES_MAX: usize = 512 << 10;

/// The `git.status` tool.
pub(super) struct GitStatus(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitStatusInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// Include untracked files.
    #[serde(default = "crate::input_defaults::yes")]
    untracked: bool,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct GitStatusOutput {
    /// Top folder of the repository, in the workspace.
    repository: String,
    /// Output of `git status --porcelain`.
    porcelain: String,
    /// Branch that is checked out; null if no branch is.
    branch: Option<String>,
    /// True if a commit is checked out without a branch.
    detached: bool,
    /// Current commit; null before the first.
    commit: Option<String>,
    /// Remote branch that the branch tracks.
    upstream: Option<String>,
    /// Number of commits that the upstream lacks.
    ahead: Option<u64>,
    /// Number of commits that only the upstream has.
    behind: Option<u64>,
    /// Unfinished operation: `merge`, `rebase`, `cherry-pick`, `revert` or `bisect`; null if there
    /// is none.
    under_way: Option<&'static str>,
    /// True if nothing is changed or untracked, not even in submodules.
    clean: bool,
    /// Submodules that could not be checked for changes.
    unchecked: Vec<String>,
    /// Changed files in order of path, then untracked files.
    entries: Vec<GitStatusEntry>,
    /// True if there are more files.
    truncated: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct GitStatusEntry {
    /// Path from the repository's top folder.
    path: String,
    /// Old path of a renamed or copied file.
    from: Option<String>,
    /// Staged change: blank for none, M, A, D, R, C, T or U; ? for an untracked file.
    index: char,
    /// Unstaged change: blank for none, M, A, D, R, C, T or U; ? for an untracked file.
    worktree: char,
}

impl Tool for GitStatus {
    const NAME: &'static str = "git.status";
    const TITLE: &'static str = "Git status";
    const DESCRIPTION: &'static str = "Show the branch, and changed, staged and untracked files, \
        as `git status --porcelain` does.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = &[("path", "repo")];
    const RARE_ARGUMENTS: &'static [&'static str] = &["untracked"];
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitStatusInput;
    type Output = GitStatusOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let repository = self.0.open(ctx, &input.repo).await?;
        let untracked = if input.untracked { "normal" } else { "no" };
        let printed = repository
            .read_command("status")
            .args(["--porcelain=v2", "--branch", "-z", "--ignore-submodules=dirty"])
            .arg(format!("--untracked-files={untracked}"))
            .arg("--")
            .args(repository.visible_paths())
            .bytes_max(BYTES_MAX)
            .run(ctx)
            .await?;
        let submodules = repository.check_submodules(ctx, input.untracked).await?;
        let prefix = repository.workspace_prefix();
        let mut output = parse_status(&printed.fields(), prefix, submodules);
        output.repository = repository.top_in_workspace();
        output.truncated = printed.is_truncated();
        output.under_way = repository.unfinished_operation();
        Ok(output)
    }

    fn result_text(output: &GitStatusOutput) -> ResultText {
        let GitStatusOutput { branch, detached, upstream, ahead, behind, .. } = output;
        let GitStatusOutput { repository, under_way, clean, unchecked, truncated, .. } = output;
        let mut note = match (branch, detached) {
            (Some(branch), _) => format!("on `{}`", branch.escape_debug()),
            (None, _) => "on no branch".to_owned(),
        };
        if repository != "." {
            note.push_str(&format!(" of {}", quoted_path(repository)));
        }
        if let Some(upstream) = upstream {
            let count = |count: &Option<u64>| count.map_or("?".to_owned(), |n| n.to_string());
            let upstream = upstream.escape_debug();
            let ahead = count(ahead);
            let behind = count(behind);
            note.push_str(&format!(", {ahead} ahead of and {behind} behind `{upstream}`"));
        }
        if let Some(operation) = under_way {
            note.push_str(&format!("; a {operation} is in progress"));
            let is_in_conflict = |it: &&GitStatusEntry| it.index == 'U' || it.worktree == 'U';
            match output.entries.iter().filter(is_in_conflict).count() {
                0 => {}
                files => note.push_str(&format!(
                    ", with {} in conflict: resolve the conflicts, then git_add and git_commit",
                    counted(files as u64, "file", "files")
                )),
            }
        }
        if *clean {
            note.push_str("; no changes");
        }
        if !unchecked.is_empty() {
            let names: Vec<String> = unchecked.iter().map(|path| quoted_path(path)).collect();
            note.push_str(&format!("; submodules that were not checked: {}", names.join(", ")));
        }
        if *truncated {
            note.push_str("; there are more: leave untracked files out with `untracked: false`");
        }
        ResultText::from_body(output.porcelain.clone()).with_note(note)
    }
}

/// Parses `fields`, the output of `git status --porcelain=v2`, and adds the changed `submodules`.
/// Removes `prefix` from the start of paths.
fn parse_status(fields: &[String], prefix: &str, submodules: SubmoduleStates) -> GitStatusOutput {
    let without_prefix = |path: &str| path.strip_prefix(prefix).unwrap_or(path).to_owned();
    let mut output = GitStatusOutput::default();
    let mut tracked = Vec::new();
    let mut untracked = Vec::new();
    let mut fields = fields.iter();
    while let Some(field) = fields.next() {
        let (kind, rest) = field.split_once(' ').unwrap_or((field, ""));
        match kind {
            "#" => parse_header(rest, &mut output),
            "1" => tracked.extend(parse_entry(rest, 7, None)),
            // The old path is a separate field.
            "2" => tracked.extend(parse_entry(rest, 8, fields.next())),
            "u" => tracked.extend(parse_entry(rest, 9, None)),
            "?" => {
                untracked.push(GitStatusEntry {
                    path: without_prefix(rest),
                    from: None,
                    index: '?',
                    worktree: '?',
                });
            }
            _ => {}
        }
    }
    for entry in &mut tracked {
        entry.path = without_prefix(&entry.path);
        entry.from = entry.from.as_deref().map(without_prefix);
    }
    for path in submodules.changed {
        match tracked.iter_mut().find(|entry| entry.path == path) {
            Some(entry) if entry.worktree == ' ' => entry.worktree = 'M',
            Some(_) => {}
            None => tracked.push(GitStatusEntry { path, from: None, index: ' ', worktree: 'M' }),
        }
    }
    output.unchecked = submodules.unchecked;
    tracked.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
    tracked.extend(untracked);
    output.clean = tracked.is_empty() && output.unchecked.is_empty();
    for GitStatusEntry { path, from, index, worktree } in &tracked {
        let from = from.as_ref().map(|from| format!("{} -> ", quote_name(from)));
        let from = from.unwrap_or_default();
        let entry = format!("{index}{worktree} {from}{}", quote_name(path));
        output.porcelain.push_str(&printable::escape_line(&entry));
        output.porcelain.push('\n');
    }
    output.entries = tracked;
    output
}

/// Parses a header line of `git status`, and stores the information about the branch in `output`.
fn parse_header(line: &str, output: &mut GitStatusOutput) {
    let (name, value) = line.split_once(' ').unwrap_or((line, ""));
    match name {
        "branch.oid" => output.commit = (value != "(initial)").then(|| value.to_owned()),
        "branch.head" => {
            output.detached = value == "(detached)";
            output.branch = (!output.detached).then(|| value.to_owned());
        }
        "branch.upstream" => output.upstream = Some(value.to_owned()),
        "branch.ab" => {
            let (ahead, behind) = value.split_once(' ').unwrap_or_default();
            output.ahead = ahead.trim_start_matches('+').parse().ok();
            output.behind = behind.trim_start_matches('-').parse().ok();
        }
        _ => {}
    }
}

/// Parses a line of `git status` that describes a file. `before` is the number of fields before the
/// path, and `from` is the old path of a renamed file.
fn parse_entry(line: &str, before: usize, from: Option<&String>) -> Option<GitStatusEntry> {
    let mut letters = line.chars().map(|letter| if letter == '.' { ' ' } else { letter });
    let index = letters.next()?;
    let worktree = letters.next()?;
    let path = line.splitn(before + 1, ' ').nth(before)?.to_owned();
    Some(GitStatusEntry { path, from: from.cloned(), index, worktree })
}
