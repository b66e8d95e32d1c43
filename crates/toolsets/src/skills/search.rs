//! Finds the skills in the folders of a workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolgate_contract::{ToolError, ToolErrorKind};

use super::entry::{OfferedSkill, SkillFileInfo, SkillFileOrigin, too_large, too_many_files};
use super::{BYTES_MAX, FILES_MAX, SHIPPED, SKILL_FILE, SKILL_FILE_BYTES_MAX};
use crate::front_matter::{FileErrorWithLine, SkippedFile};
use crate::workspace_scan::{FileValueCache, WorkspaceScanState};
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, EntryKind, WalkFilter, WalkFolder, WalkStartPoint};

/// The maximum number of folder levels below a folder of skills that are searched.
const DEPTH_MAX: usize = 4;
/// The noun for a skill in error messages.
const ITEM_KIND: &str = "a skill";
/// The maximum number of folders that are searched for skills.
const FOLDERS_MAX: usize = 4_000;
/// The filter of the search for skills: everything except hidden files. Files that git ignores may
/// belong to a skill.
const SKILL_FILTER: WalkFilter = WalkFilter { include_ignored: true, include_hidden: false };

/// Returns the skills in `folders`, and the built-in skill if `shipped` is true, in order of URI.
/// Logs the skipped items. Fails if the call is canceled.
pub(super) fn find_skills(
    root: &Root,
    folders: &[String],
    shipped: bool,
    memory: &mut WorkspaceScanState<Arc<SkillFileInfo>>,
    watch: &DiskWorkMonitor,
) -> Result<Vec<OfferedSkill>, ToolError> {
    let (mut found, left_out) = search_folders(root, folders, &mut memory.files, watch)?;
    memory.files.evict_unused();
    memory.log_left_out(left_out);
    if shipped {
        let (path, files) = SHIPPED;
        let file = |(inner, text): (&str, &'static str)| {
            let info = SkillFileInfo::from_content(inner, text.as_bytes());
            (inner.to_owned(), Arc::new(info), SkillFileOrigin::BuiltIn(text))
        };
        // A skill of the workspace with the same name replaces the built-in one. A test reads the
        // built-in one.
        if let Ok(entry) = OfferedSkill::new(path, files.map(file)) {
            found.entry(path.to_owned()).or_insert(entry);
        }
    }
    let mut found: Vec<OfferedSkill> = found.into_values().collect();
    found.sort_by_cached_key(OfferedSkill::uri);
    Ok(found)
}

/// Finds the skills in `folders`. Returns them by path, and the items that were skipped. Fails if
/// the call is canceled.
pub(super) fn search_folders(
    root: &Root,
    folders: &[String],
    files: &mut FileValueCache<Arc<SkillFileInfo>>,
    watch: &DiskWorkMonitor,
) -> Result<(BTreeMap<String, OfferedSkill>, Vec<SkippedFile>), ToolError> {
    let mut search = SkillFolderSearch {
        root,
        watch,
        files,
        skills: BTreeMap::new(),
        skipped: Vec::new(),
        visited: BTreeSet::new(),
        folders_read: 0,
    };
    for folder in folders {
        search.search_folder(folder.trim_end_matches('/'))?;
    }
    Ok((search.skills, search.skipped))
}

/// Search for skills in the folders of a workspace, in progress.
struct SkillFolderSearch<'s> {
    root: &'s Root,
    watch: &'s DiskWorkMonitor,
    files: &'s mut FileValueCache<Arc<SkillFileInfo>>,
    /// The skills found so far, by path.
    skills: BTreeMap<String, OfferedSkill>,
    skipped: Vec<SkippedFile>,
    /// The real paths of the folders that the search has already visited.
    visited: BTreeSet<PathBuf>,
    folders_read: usize,
}

/// Folder that must still be searched for skills.
struct PendingSkillFolder {
    folder: WalkFolder,
    /// The path of the folder relative to the workspace root, including symlinks that were
    /// followed.
    place: String,
    /// The path of the folder relative to the configured folder of skills.
    path: String,
    depth: usize,
}

impl SkillFolderSearch<'_> {
    /// Finds the skills in the folder `top` of the workspace, and adds them to the result of this
    /// search. Fails if the call is canceled.
    fn search_folder(&mut self, top: &str) -> Result<(), ToolError> {
        let start = match self.root.walk_start(top) {
            Err(err) if err.fault == ToolErrorKind::NotFound => return Ok(()),
            start => self.record_error(top, start)?,
        };
        let Some(WalkStartPoint::Folder(folder)) = start else { return Ok(()) };
        let place = top.to_owned();
        let path = String::new();
        let mut waiting = vec![PendingSkillFolder { folder, place, path, depth: 0 }];
        // Real folders are searched before symlinks to them.
        let mut links = Vec::new();
        while let Some(mut level) = waiting.pop().or_else(|| links.pop()) {
            if self.visited.contains(&level.folder.path) {
                continue;
            }
            if self.folders_read >= FOLDERS_MAX {
                let why = format!("the search for skills ends after {FOLDERS_MAX} folders");
                self.skipped.push(SkippedFile::whole(ITEM_KIND, &level.place, why));
                return Ok(());
            }
            let Some(entries) = self.read_entries(&mut level)? else { continue };
            let mut has_skill =
                entries.iter().any(|(name, kind)| name == SKILL_FILE && *kind != EntryKind::Dir);
            if has_skill && level.depth == 0 {
                let why = "a skill must be in a separate folder that has the skill's name";
                let file = join_path(&level.place, SKILL_FILE);
                self.skipped.push(SkippedFile::file_only(&file, why));
                has_skill = false;
            }
            if has_skill {
                self.add_skill(level, entries)?;
            } else if level.depth < DEPTH_MAX {
                self.visited.insert(level.folder.path.clone());
                for (name, kind) in entries.iter().rev() {
                    let inner = self.enter(&level, name, *kind)?;
                    if *kind == EntryKind::Symlink { &mut links } else { &mut waiting }
                        .extend(inner);
                }
            }
        }
        Ok(())
    }

    fn read_entries(
        &mut self,
        level: &mut PendingSkillFolder,
    ) -> Result<Option<Vec<(OsString, EntryKind)>>, ToolError> {
        self.folders_read += 1;
        let entries = level.folder.list(self.root, SKILL_FILTER, self.watch);
        self.record_error(&level.place, entries)
    }

    /// Opens the entry `name` of the folder `level` for the search. Returns `None` if the entry is
    /// neither a folder nor a symlink to a folder in the workspace. Fails if the call is canceled.
    fn enter(
        &mut self,
        level: &PendingSkillFolder,
        name: &OsString,
        kind: EntryKind,
    ) -> Result<Option<PendingSkillFolder>, ToolError> {
        // A skill's name is always UTF-8.
        let Some(text) = name.to_str() else { return Ok(None) };
        let place = format!("{}/{text}", level.place);
        let folder = match kind {
            EntryKind::Dir => level.folder.child(name),
            EntryKind::Symlink => {
                let start = self.root.walk_start(&place);
                match self.record_error(&place, start)? {
                    Some(WalkStartPoint::Folder(folder)) => folder,
                    Some(WalkStartPoint::File(_)) | None => return Ok(None),
                }
            }
            EntryKind::File | EntryKind::Other => return Ok(None),
        };
        Ok(Some(PendingSkillFolder {
            folder,
            place,
            path: join_path(&level.path, text),
            depth: level.depth + 1,
        }))
    }

    /// Adds the skill in the folder `level`, which has the entries `entries`. Records an invalid
    /// skill as a skipped item.
    fn add_skill(
        &mut self,
        level: PendingSkillFolder,
        entries: Vec<(OsString, EntryKind)>,
    ) -> Result<(), ToolError> {
        let file = join_path(&level.place, SKILL_FILE);
        let path = level.path.clone();
        let at = level.folder.path.clone();
        let entry = if self.skills.contains_key(&path) {
            Err(FileErrorWithLine::whole(format!("another folder already has a skill at `{path}`")))
        } else {
            let parts = self.collect_files(level, entries)?;
            parts.and_then(|parts| OfferedSkill::new(&path, parts))
        };
        match entry {
            Ok(entry) => {
                self.skills.insert(path, entry);
                self.visited.insert(at);
            }
            Err(problem) => self.skipped.push(problem.into_skipped(ITEM_KIND, &file)),
        }
        Ok(())
    }

    /// Returns the files of the skill in the folder `top`, which has the entries `entries`.
    #[allow(
        clippy::type_complexity,
        reason = "the files of a skill, or the reason why it is invalid"
    )]
    fn collect_files(
        &mut self,
        top: PendingSkillFolder,
        entries: Vec<(OsString, EntryKind)>,
    ) -> Result<
        Result<Vec<(String, Arc<SkillFileInfo>, SkillFileOrigin)>, FileErrorWithLine>,
        ToolError,
    > {
        let mut parts = Vec::new();
        let mut bytes = 0;
        let above = top.path.len() + 1;
        let mut waiting = vec![(top, Some(entries))];
        while let Some((mut level, entries)) = waiting.pop() {
            let entries = match entries {
                Some(entries) => entries,
                None => self.read_entries(&mut level)?.unwrap_or_default(),
            };
            for (name, kind) in entries {
                let Some(text) = name.to_str() else {
                    let why = format!("the name of `{}` is not UTF-8", name.to_string_lossy());
                    return Ok(Err(FileErrorWithLine::whole(why)));
                };
                let place = format!("{}/{text}", level.place);
                match kind {
                    EntryKind::Dir => {
                        waiting.extend(self.enter(&level, &name, kind)?.map(|it| (it, None)));
                    }
                    EntryKind::File => {
                        let inner = join_path(&level.path, text)[above..].to_owned();
                        if inner != SKILL_FILE && text == SKILL_FILE {
                            let why = format!("it contains another skill, at `{inner}`");
                            return Ok(Err(FileErrorWithLine::whole(why)));
                        }
                        let at = level.folder.path.join(&name);
                        let info = match self.file_info(&at, text, bytes) {
                            Ok(Ok(info)) => info,
                            Ok(Err(problem)) => return Ok(Err(problem)),
                            Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
                            Err(err) => return Ok(Err(FileErrorWithLine::whole(err.message))),
                        };
                        bytes += info.bytes;
                        parts.push((inner, info, SkillFileOrigin::Workspace(at)));
                        if parts.len() > FILES_MAX {
                            return Ok(Err(too_many_files(parts.len())));
                        }
                    }
                    EntryKind::Symlink => {
                        let why = "it is a symlink, and symlinks in a skill are not followed";
                        self.skipped.push(SkippedFile::whole("a file of a skill", &place, why));
                    }
                    EntryKind::Other => {}
                }
            }
            if self.folders_read >= FOLDERS_MAX || waiting.len() > FOLDERS_MAX {
                return Ok(Err(FileErrorWithLine::whole("the skill has too many folders")));
            }
        }
        Ok(Ok(parts))
    }

    /// Returns the properties of the skill's file at the path `at`, or an inner error if the file
    /// is too large. `bytes` is the total size of the skill's files so far. Fails if the file is
    /// unreadable.
    fn file_info(
        &mut self,
        at: &Path,
        name: &str,
        bytes: u64,
    ) -> Result<Result<Arc<SkillFileInfo>, FileErrorWithLine>, ToolError> {
        let file = self.root.open_walked(at)?;
        let size = file.meta().size();
        if bytes.saturating_add(size) > BYTES_MAX {
            return Ok(Err(too_large(bytes.saturating_add(size))));
        }
        if name == SKILL_FILE && size > SKILL_FILE_BYTES_MAX {
            let why = format!("it has {size} bytes; it can have at most {SKILL_FILE_BYTES_MAX}");
            return Ok(Err(FileErrorWithLine::whole(why)));
        }
        let info = self.files.get_or_make(at, &file, || {
            let content = file.read(0, size, self.watch)?;
            let info = SkillFileInfo::from_content(name, &content);
            // This is logged only once, because a file is read again only after it has changed.
            let keys = info.unquoted_keys();
            if !keys.is_empty() {
                tracing::warn!(
                    "{}: not valid YAML: {}; the value is used unchanged, but put it in quotes",
                    at.display(),
                    keys.join(", ")
                );
            }
            Ok(Arc::new(info))
        });
        info.map(Ok)
    }

    /// Returns the value of `outcome`. Records an error as a skipped item at the path `place` and
    /// returns `None`. Fails only if the call is canceled.
    fn record_error<T>(
        &mut self,
        place: &str,
        outcome: Result<T, ToolError>,
    ) -> Result<Option<T>, ToolError> {
        match outcome {
            Ok(it) => Ok(Some(it)),
            Err(err) if err.fault == ToolErrorKind::Canceled => Err(err),
            Err(err) => {
                self.skipped.push(SkippedFile::whole(ITEM_KIND, place, err.message));
                Ok(None)
            }
        }
    }
}

fn join_path(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}
