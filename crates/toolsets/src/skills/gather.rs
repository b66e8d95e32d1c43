//! Finds the skills in the folders of a workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolgate_contract::{Fault, ToolError};

use super::entry::{Entry, From, Known, too_large, too_many};
use super::{BYTES_MAX, FILES_MAX, SHIPPED, SKILL_FILE, SKILL_FILE_BYTES_MAX};
use crate::front_matter::{LeftOut, Wrong};
use crate::looked::{Memory, Remembered};
use crate::world::Root;
use crate::world::root::{Folder, Kind, Sight, Start, Watch};

/// The deepest level below a folder of skills that is searched.
const DEPTH_MAX: usize = 4;
/// The kind of item, for error messages.
const WHAT: &str = "a skill";
/// The most folders that are searched.
const FOLDERS_MAX: usize = 4_000;
/// Selects everything except hidden files. Files that git ignores may belong to a skill.
const SIGHT: Sight = Sight { ignored: true, hidden: false };

/// Returns the skills in `folders`, and the built-in one if `shipped`, in order of URI. Logs the
/// skipped items.
pub(super) fn look(
    root: &Root,
    folders: &[String],
    shipped: bool,
    memory: &mut Memory<Arc<Known>>,
    watch: &Watch,
) -> Result<Vec<Entry>, ToolError> {
    let (mut found, left_out) = search(root, folders, &mut memory.files, watch)?;
    memory.files.forget_the_rest();
    memory.tell(left_out);
    if shipped {
        let (path, files) = SHIPPED;
        let file = |(inner, text): (&str, &'static str)| {
            let known = Known::of(inner, text.as_bytes());
            (inner.to_owned(), Arc::new(known), From::Program(text))
        };
        // A skill of the workspace with the same name replaces the built-in one. A test reads the
        // built-in one.
        if let Ok(entry) = Entry::new(path, files.map(file)) {
            found.entry(path.to_owned()).or_insert(entry);
        }
    }
    let mut found: Vec<Entry> = found.into_values().collect();
    found.sort_by_cached_key(Entry::uri);
    Ok(found)
}

/// Finds the skills in `folders`, by path, and the items that were skipped.
pub(super) fn search(
    root: &Root,
    folders: &[String],
    files: &mut Remembered<Arc<Known>>,
    watch: &Watch,
) -> Result<(BTreeMap<String, Entry>, Vec<LeftOut>), ToolError> {
    let found = BTreeMap::new();
    let left_out = Vec::new();
    let seen = BTreeSet::new();
    let mut search = Search { root, watch, files, found, left_out, seen, looked_into: 0 };
    for folder in folders {
        search.folder(folder.trim_end_matches('/'))?;
    }
    Ok((search.found, search.left_out))
}

struct Search<'s> {
    root: &'s Root,
    watch: &'s Watch,
    files: &'s mut Remembered<Arc<Known>>,
    /// The skills found so far, by path.
    found: BTreeMap<String, Entry>,
    left_out: Vec<LeftOut>,
    /// The real paths of the folders that are already searched.
    seen: BTreeSet<PathBuf>,
    looked_into: usize,
}

/// A folder to search.
struct Level {
    folder: Folder,
    /// The path relative to the workspace root, including symlinks that were followed.
    place: String,
    /// The path relative to the folder of skills.
    path: String,
    depth: usize,
}

impl Search<'_> {
    /// Finds the skills in the folder `top` of the workspace.
    fn folder(&mut self, top: &str) -> Result<(), ToolError> {
        let start = match self.root.start(top) {
            Err(err) if err.fault == Fault::NotFound => return Ok(()),
            start => self.stopped_by(top, start)?,
        };
        let Some(Start::Folder(folder)) = start else { return Ok(()) };
        let place = top.to_owned();
        let path = String::new();
        let mut waiting = vec![Level { folder, place, path, depth: 0 }];
        // Real folders are searched before symlinks to them.
        let mut links = Vec::new();
        while let Some(mut level) = waiting.pop().or_else(|| links.pop()) {
            if self.seen.contains(&level.folder.path) {
                continue;
            }
            if self.looked_into >= FOLDERS_MAX {
                let why = format!("more than {FOLDERS_MAX} folders were looked into for skills");
                self.left_out.push(LeftOut::whole(WHAT, &level.place, why));
                return Ok(());
            }
            let Some(entries) = self.look(&mut level)? else { continue };
            let mut has_skill =
                entries.iter().any(|(name, kind)| name == SKILL_FILE && *kind != Kind::Dir);
            if has_skill && level.depth == 0 {
                let why = "a skill lies in a folder of its own, which has its name";
                let file = joined(&level.place, SKILL_FILE);
                self.left_out.push(LeftOut::alone(&file, why));
                has_skill = false;
            }
            if has_skill {
                self.skill(level, entries)?;
            } else if level.depth < DEPTH_MAX {
                self.seen.insert(level.folder.path.clone());
                for (name, kind) in entries.iter().rev() {
                    let inner = self.inner(&level, name, *kind)?;
                    if *kind == Kind::Symlink { &mut links } else { &mut waiting }.extend(inner);
                }
            }
        }
        Ok(())
    }

    fn look(&mut self, level: &mut Level) -> Result<Option<Vec<(OsString, Kind)>>, ToolError> {
        self.looked_into += 1;
        let entries = level.folder.look(self.root, SIGHT, self.watch);
        self.stopped_by(&level.place, entries)
    }

    /// Enters the folder `name` in `level`. Returns `None` if it is not a folder, or a symlink to
    /// one in the workspace.
    fn inner(
        &mut self,
        level: &Level,
        name: &OsString,
        kind: Kind,
    ) -> Result<Option<Level>, ToolError> {
        // A skill's name is always UTF-8.
        let Some(text) = name.to_str() else { return Ok(None) };
        let place = format!("{}/{text}", level.place);
        let folder = match kind {
            Kind::Dir => level.folder.enter(name),
            Kind::Symlink => {
                let start = self.root.start(&place);
                match self.stopped_by(&place, start)? {
                    Some(Start::Folder(folder)) => folder,
                    Some(Start::File(_)) | None => return Ok(None),
                }
            }
            Kind::File | Kind::Other => return Ok(None),
        };
        Ok(Some(Level { folder, place, path: joined(&level.path, text), depth: level.depth + 1 }))
    }

    /// Adds the skill in the folder `level`, whose entries are `entries`.
    fn skill(&mut self, level: Level, entries: Vec<(OsString, Kind)>) -> Result<(), ToolError> {
        let file = joined(&level.place, SKILL_FILE);
        let path = level.path.clone();
        let at = level.folder.path.clone();
        let entry = if self.found.contains_key(&path) {
            Err(Wrong::whole(format!("another folder has a skill at `{path}` already")))
        } else {
            let parts = self.parts(level, entries)?;
            parts.and_then(|parts| Entry::new(&path, parts))
        };
        match entry {
            Ok(entry) => {
                self.found.insert(path, entry);
                self.seen.insert(at);
            }
            Err(wrong) => self.left_out.push(wrong.of(WHAT, &file)),
        }
        Ok(())
    }

    /// Returns the files of the skill in `top`.
    #[allow(
        clippy::type_complexity,
        reason = "a list of what an entry is made of, or what is wrong"
    )]
    fn parts(
        &mut self,
        top: Level,
        entries: Vec<(OsString, Kind)>,
    ) -> Result<Result<Vec<(String, Arc<Known>, From)>, Wrong>, ToolError> {
        let mut parts = Vec::new();
        let mut bytes = 0;
        let above = top.path.len() + 1;
        let mut waiting = vec![(top, Some(entries))];
        while let Some((mut level, entries)) = waiting.pop() {
            let entries = match entries {
                Some(entries) => entries,
                None => self.look(&mut level)?.unwrap_or_default(),
            };
            for (name, kind) in entries {
                let Some(text) = name.to_str() else {
                    let why = format!("the name of `{}` is not UTF-8", name.to_string_lossy());
                    return Ok(Err(Wrong::whole(why)));
                };
                let place = format!("{}/{text}", level.place);
                match kind {
                    Kind::Dir => {
                        waiting.extend(self.inner(&level, &name, kind)?.map(|it| (it, None)));
                    }
                    Kind::File => {
                        let inner = joined(&level.path, text)[above..].to_owned();
                        if inner != SKILL_FILE && text == SKILL_FILE {
                            let why = format!("there is another skill in it, at `{inner}`");
                            return Ok(Err(Wrong::whole(why)));
                        }
                        let at = level.folder.path.join(&name);
                        let known = match self.known(&at, text, bytes) {
                            Ok(Ok(known)) => known,
                            Ok(Err(wrong)) => return Ok(Err(wrong)),
                            Err(err) if err.fault == Fault::Canceled => return Err(err),
                            Err(err) => return Ok(Err(Wrong::whole(err.message))),
                        };
                        bytes += known.bytes;
                        parts.push((inner, known, From::Workspace(at)));
                        if parts.len() > FILES_MAX {
                            return Ok(Err(too_many(parts.len())));
                        }
                    }
                    Kind::Symlink => {
                        let why = "it is a symlink, which is not followed in a skill";
                        self.left_out.push(LeftOut::whole("a file of a skill", &place, why));
                    }
                    Kind::Other => {}
                }
            }
            if self.looked_into >= FOLDERS_MAX || waiting.len() > FOLDERS_MAX {
                return Ok(Err(Wrong::whole("the skill has too many folders")));
            }
        }
        Ok(Ok(parts))
    }

    /// Reads the properties of the file at the walked path `at`. The skill already has `bytes`
    /// bytes.
    fn known(
        &mut self,
        at: &Path,
        name: &str,
        bytes: u64,
    ) -> Result<Result<Arc<Known>, Wrong>, ToolError> {
        let file = self.root.open_walked(at)?;
        let size = file.meta().size();
        if bytes.saturating_add(size) > BYTES_MAX {
            return Ok(Err(too_large(bytes.saturating_add(size))));
        }
        if name == SKILL_FILE && size > SKILL_FILE_BYTES_MAX {
            let why =
                format!("it has {size} bytes; a {SKILL_FILE} has {SKILL_FILE_BYTES_MAX} at most");
            return Ok(Err(Wrong::whole(why)));
        }
        let known = self.files.of(at, &file, || {
            let content = file.read(0, size, self.watch)?;
            Ok(Arc::new(Known::of(name, &content)))
        });
        known.map(Ok)
    }

    /// Returns the value of `outcome`. Records an error as a skipped item at `place`, except for
    /// cancellation.
    fn stopped_by<T>(
        &mut self,
        place: &str,
        outcome: Result<T, ToolError>,
    ) -> Result<Option<T>, ToolError> {
        match outcome {
            Ok(it) => Ok(Some(it)),
            Err(err) if err.fault == Fault::Canceled => Err(err),
            Err(err) => {
                self.left_out.push(LeftOut::whole(WHAT, place, err.message));
                Ok(None)
            }
        }
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}
