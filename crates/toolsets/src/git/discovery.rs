//! Finds the repository of a folder, and checks that all of it is inside the workspace.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toolgate_contract::{Ctx, Fault, ToolError};

use schemars::JsonSchema;

use super::Git;
use super::command::{Command, PRINTED_BYTES, Reads};
use super::configuration::{Allowed, Configuration};
use super::repository::Repository;
use crate::world::Root;
use crate::world::root::{Heed, Stray, Watch, Why, shown};

/// Most bytes read of a list of alternate object stores.
const ALTERNATES_BYTES: u64 = 64 << 10;
/// Most object stores of one repository.
const STORES_MAX: usize = 64;
/// Most entries of a repository's folder that are checked.
const ENTRIES_MAX: usize = 500_000;
/// Folders in git's folder whose files git reads.
const READ: [&str; 8] =
    ["info", "refs", "logs", "reftable", "worktrees", "sequencer", "rebase-merge", "rebase-apply"];
/// Entries that are not checked: hooks do not run unless settings allow them, and the other is a
/// socket of git.
const ANYWHERE: [&str; 2] = ["hooks", "fsmonitor--daemon.ipc"];

/// A folder of the repository.
#[derive(Debug, Default, Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct Repo(Option<String>);

impl Git {
    /// Opens the repository that contains the folder `repo`, by default the workspace.
    ///
    /// # Errors
    ///
    /// Fails if there is no repository, if a part of it is outside the workspace, or if its
    /// configuration cannot be read in full.
    pub(super) async fn open(&self, ctx: &Ctx, repo: &Repo) -> Result<Repository<'_>, ToolError> {
        let folder = repo.0.clone().unwrap_or_else(|| ".".to_owned());
        let named = folder.clone();
        let root = &self.programs.root;
        let cwd = root.work(ctx, move |root, _| root.open_dir(&named)).await;
        let cwd = cwd.map_err(|err| err.at("/repo"))?;

        let list = Command::new(self, &cwd, &[], Reads::Owners, "config");
        let list = list.args(["--list", "--show-scope", "-z", "--includes"]).run(ctx).await?;
        // Settings in the part that is not read could not be disarmed.
        if list.is_cut() {
            return Err(ToolError::not_allowed(format!(
                "the configuration of the repository of {} is longer than {PRINTED_BYTES} bytes",
                shown(&folder)
            )));
        }
        let configuration = Configuration::read(&list.fields());
        if let Some(key) = configuration.garbled() {
            return Err(ToolError::not_allowed(format!(
                "the configuration of the repository of {} has a name that is not UTF-8: {}",
                shown(&folder),
                shown(key)
            )));
        }
        let allowed = Allowed { hooks: self.settings.hooks, filters: self.settings.filters };
        let overrides = configuration.overrides(allowed);

        let find = Command::new(self, &cwd, &overrides, Reads::Repository, "rev-parse").args([
            "--path-format=absolute",
            "--show-toplevel",
            "--git-dir",
            "--git-common-dir",
        ]);
        let found = find.attempt(ctx).await?;
        if found.code != 0 {
            return Err(refused(&folder, found.refusal()));
        }
        let lines: Vec<&[u8]> = found.stdout.split(|byte| *byte == b'\n').collect();
        let [top, git_dir, common_dir, []] = lines[..] else {
            return Err(ToolError::failed(format!(
                "where the repository of {} is has a line break in it; rename that folder",
                shown(&folder)
            )));
        };
        let [top, git_dir, common_dir] =
            [top, git_dir, common_dir].map(|path| PathBuf::from(OsStr::from_bytes(path)));
        let whole = (top.clone(), git_dir.clone(), common_dir.clone(), folder);
        let top_fd = root
            .work(ctx, move |root, watch| {
                let (top, git_dir, common_dir, folder) = whole;
                let top = beneath(root, &top, &folder)?;
                let common_dir = beneath(root, &common_dir, &folder)?;
                let git_dir = beneath(root, &git_dir, &folder)?;
                root.open_dir(&git_dir)?;
                all_beneath(root, &common_dir, &folder, watch, of_git)?;
                if !Path::new(&git_dir).starts_with(&common_dir) {
                    all_beneath(root, &git_dir, &folder, watch, of_git)?;
                }
                stores_beneath(root, &common_dir, &folder, watch)?;
                root.open_dir(&top)
            })
            .await?;
        let idle = if allowed.filters { Vec::new() } else { configuration.filters() };
        Ok(Repository {
            git: self,
            top: top_fd,
            top_path: top,
            git_dir,
            common_dir,
            overrides,
            idle_filters: idle,
            quotes_paths: configuration.quotes_paths(),
        })
    }
}

/// Returns the error for a folder without a repository.
fn refused(folder: &str, err: ToolError) -> ToolError {
    match err.fault {
        Fault::NotFound => ToolError::not_found(format!(
            "there is no git repository in {} of the workspace (what is around the workspace does \
             not count): name the folder of one in `repo`, or have whoever owns the folder run \
             `git init` there, which programs may not",
            shown(folder)
        )),
        _ => err,
    }
}

/// Returns the absolute `path` relative to the root, or an error if it is outside.
fn beneath(root: &Root, path: &Path, folder: &str) -> Result<String, ToolError> {
    let inside = path.strip_prefix(root.path()).ok().and_then(Path::to_str);
    let inside = inside.ok_or_else(|| outside(folder, path))?;
    Ok(if inside.is_empty() { ".".to_owned() } else { inside.to_owned() })
}

fn outside(folder: &str, path: &Path) -> ToolError {
    ToolError::not_allowed(format!(
        "the repository of {} keeps a part of itself outside the workspace, at {}: serve a folder \
         that has all of it",
        shown(folder),
        shown(&path.to_string_lossy())
    ))
}

/// Returns how thoroughly to check the entry `at` of git's folder.
fn of_git(at: &Path) -> Heed {
    let mut names = at.iter().filter_map(OsStr::to_str);
    match (names.next(), names.next()) {
        (Some(name), None) if ANYWHERE.contains(&name) => Heed::Not,
        (Some(name), _) if READ.contains(&name) => Heed::Within,
        (Some(_) | None, _) => Heed::Itself,
    }
}

/// Returns how thoroughly to check an entry of an object store.
fn of_store(_: &Path) -> Heed {
    Heed::Within
}

/// Checks that nothing in the folder `dir` of the repository leads out of the root.
///
/// Git follows symlinks, and quotes lines of files that it cannot parse. The function `heed`
/// decides how thoroughly each entry is checked.
fn all_beneath(
    root: &Root,
    dir: &str,
    folder: &str,
    watch: &Watch,
    heed: fn(&Path) -> Heed,
) -> Result<(), ToolError> {
    let stray = root.stray(dir, ENTRIES_MAX, watch, heed).map_err(|err| match err.fault {
        Fault::TooLarge => {
            ToolError { message: format!("{}: run `git gc` there", err.message), ..err }
        }
        _ => err,
    });
    match stray? {
        None => Ok(()),
        Some(Stray { path, why: Why::LeadsOut }) => Err(outside(folder, &root.path().join(path))),
        Some(Stray { path, why: Why::NoFile }) => Err(ToolError::not_allowed(format!(
            "the repository of {} has something at {} that is no file: take it away",
            shown(folder),
            shown(&path.to_string_lossy())
        ))),
    }
}

/// Checks that every object store of the repository `dir` is inside the root. Symlinks and lists of
/// alternate stores could lead outside.
fn stores_beneath(root: &Root, dir: &str, folder: &str, watch: &Watch) -> Result<(), ToolError> {
    let mut stores = vec![format!("{dir}/objects")];
    let mut at = 0;
    while let Some(store) = stores.get(at).cloned() {
        at += 1;
        if at > STORES_MAX {
            let message = format!("the repository of {} has too many stores", shown(folder));
            return Err(ToolError::not_allowed(message));
        }
        match root.open_dir(&store) {
            Err(err) if err.fault == Fault::NotAllowed => {
                return Err(outside(folder, &root.path().join(store)));
            }
            // Git itself reports a missing store.
            Err(_) => continue,
            Ok(_) => all_beneath(root, &store, folder, watch, of_store)?,
        }
        let list = match root.open_file(&format!("{store}/info/alternates")) {
            Ok(list) => list.read(0, ALTERNATES_BYTES, watch)?,
            Err(err) if err.fault == Fault::NotFound => continue,
            Err(_) => return Err(outside(folder, &root.path().join(store))),
        };
        for line in list.split(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(line);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let other = Path::new(line.as_ref());
            let other = if other.is_absolute() {
                beneath(root, other, folder)?
            } else {
                format!("{store}/{line}")
            };
            stores.push(other);
        }
    }
    Ok(())
}
