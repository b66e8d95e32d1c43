//! Finds the files that a command creates or changes, by the glob patterns that it declares.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::{Glob, GlobBuilder, GlobMatcher};
use toolgate_contract::{ToolError, ToolErrorKind};

use super::argument::{CommandArgument, CommandArgumentValues};
use super::template::{RawTemplatePiece, split_pieces, value_text};
use toolgate_world::Root;
use toolgate_world::root::{
    DiskWorkMonitor, EntryKind, FileTime, WalkFilter, WalkFolder, WalkStartPoint, WorkspaceFile,
    quoted_path,
};

/// The maximum number of artefacts of one call. The server keeps each file open until it is
/// delivered.
const FILES_MAX: usize = 1000;
/// Paths of devices to which programs print. Such a path is never an artefact.
const OUTPUT_DEVICES: [&str; 3] = ["/dev/stdout", "/dev/stderr", "/dev/null"];

/// A glob pattern for a command's artefacts, with placeholders for arguments. Argument values are
/// inserted literally.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArtefactPattern(Vec<ArtefactPatternPiece>);

/// A piece of an artefact pattern: text or an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ArtefactPatternPiece {
    Glob(String),
    Insert(usize),
}

/// A character of an artefact pattern, and true if it is literal instead of glob syntax.
type ArtefactPatternChar = (char, bool);

/// The folders in which a program may write artefacts, as absolute paths.
pub(super) struct ArtefactFolders<'f> {
    pub(super) workspace: &'f Path,
    /// Folders outside the workspace in which the program may write.
    pub(super) outside: Vec<PathBuf>,
}

/// An artefact pattern whose placeholders were replaced by argument values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FilledArtefactPattern {
    /// A search for files in the workspace, or in the folder `base` outside it.
    Within { base: Option<PathBuf>, search: ArtefactFileQuery },
    /// A path outside all folders in which the program may write artefacts.
    Outside(String),
    /// A pattern that no artefact can match, such as the path of a device.
    Impossible,
}

/// A query for artefact files in one folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ArtefactFileQuery {
    /// The file at this path, which contains no glob syntax.
    Single(String),
    /// The files below `folder` that match `glob`. The search descends `depth` folder levels, or
    /// any number if `deep` is true.
    Beneath { folder: String, glob: String, deep: bool, depth: usize },
}

/// The files that a finished command created or changed, and that match its artefact patterns.
#[derive(Debug, Default)]
pub(super) struct CollectedArtefacts {
    /// The open files by path. A path is relative to the workspace, or absolute if the file is
    /// outside.
    pub(super) files: BTreeMap<String, Arc<std::fs::File>>,
    /// Paths to which the command may have written, but that are outside all artefact folders or
    /// unreadable.
    pub(super) left_out: Vec<String>,
    /// Notes for the caller: the reasons why files are not collected.
    pub(super) notes: Vec<String>,
    is_full: bool,
}

impl ArtefactPattern {
    /// Parses an artefact pattern. `find` returns the index of an argument that the pattern names
    /// in braces.
    pub(super) fn parse(
        pattern: &str,
        arguments: &[CommandArgument],
        find: impl Fn(&str) -> Result<usize, String>,
    ) -> Result<Self, String> {
        let mut pieces = Vec::new();
        for raw in split_pieces(pattern)? {
            pieces.push(match raw {
                RawTemplatePiece::Text(text) => ArtefactPatternPiece::Glob(text),
                RawTemplatePiece::Insert { name, .. } => {
                    let index = find(name)?;
                    if arguments[index].note.kind == super::type_note::ArgumentValueKind::Flag {
                        return Err(format!("`{name}` is a flag, not a file"));
                    }
                    ArtefactPatternPiece::Insert(index)
                }
            });
        }
        let sample = pieces.iter().map(|piece| match piece {
            ArtefactPatternPiece::Glob(glob) => glob.as_str(),
            ArtefactPatternPiece::Insert(_) => "x",
        });
        compile_glob(&sample.collect::<String>())
            .map_err(|err| format!("`{pattern}` is not a valid glob: {err}"))?;
        Ok(Self(pieces))
    }

    /// Returns the indexes of the arguments that the artefact pattern names.
    pub(super) fn arguments(&self) -> Vec<usize> {
        let insert = |piece: &ArtefactPatternPiece| match piece {
            ArtefactPatternPiece::Insert(index) => Some(*index),
            ArtefactPatternPiece::Glob(_) => None,
        };
        self.0.iter().filter_map(insert).collect()
    }

    /// Inserts the arguments of a call into the artefact pattern, for a program that starts in
    /// `cwd`. Returns one filled pattern for each value of a list. Returns no pattern if an
    /// argument is absent, empty, `-` or a URL.
    pub(super) fn fill(
        &self,
        given: &CommandArgumentValues<'_>,
        cwd: &str,
        folders: &ArtefactFolders<'_>,
    ) -> Result<Vec<FilledArtefactPattern>, ToolError> {
        let mut all: Vec<Vec<ArtefactPatternChar>> = vec![Vec::new()];
        for piece in &self.0 {
            match piece {
                ArtefactPatternPiece::Glob(glob) => {
                    all.iter_mut().for_each(|it| it.extend(glob.chars().map(|c| (c, false))));
                }
                ArtefactPatternPiece::Insert(index) => {
                    let pointer = given.argument(*index).pointer();
                    let mut values = Vec::new();
                    for value in given.values(*index) {
                        let value = value_text(value, &pointer)?;
                        if !value.is_empty() && value != "-" && !value.contains("://") {
                            values.push(value);
                        }
                    }
                    let append = |chars: &Vec<ArtefactPatternChar>,
                                  value: &str|
                     -> Vec<ArtefactPatternChar> {
                        chars.iter().copied().chain(value.chars().map(|c| (c, true))).collect()
                    };
                    all = all
                        .iter()
                        .flat_map(|chars| values.iter().map(|value| append(chars, value)))
                        .collect();
                }
            }
        }
        Ok(all.iter().map(|chars| resolve_query(chars, cwd, folders)).collect())
    }
}

/// Converts `chars`, an artefact pattern with inserted arguments, to a search. A relative pattern
/// starts at `cwd`, a path relative to the workspace.
fn resolve_query(
    chars: &[ArtefactPatternChar],
    cwd: &str,
    folders: &ArtefactFolders<'_>,
) -> FilledArtefactPattern {
    let written = name_text(chars);
    if OUTPUT_DEVICES.contains(&written.as_str()) {
        return FilledArtefactPattern::Impossible;
    }
    let start = match written.starts_with('/') {
        true => String::new(),
        false => format!("{}/{cwd}/", folders.workspace.to_string_lossy()),
    };
    let names = absolute_names(&start, chars);
    let outside = folders.outside.iter().map(|folder| (Some(folder), folder.as_path()));
    let mut bases = std::iter::once((None, folders.workspace)).chain(outside);
    let found = bases.find_map(|(base, folder)| Some((base, names_below(&names, folder)?)));
    let Some((base, names)) = found else { return FilledArtefactPattern::Outside(written) };
    match file_query(names) {
        Some(search) => FilledArtefactPattern::Within { base: base.cloned(), search },
        None => FilledArtefactPattern::Impossible,
    }
}

/// Returns the components of the path that `start` followed by `chars` forms, with `.` and `..`
/// resolved.
fn absolute_names(start: &str, chars: &[ArtefactPatternChar]) -> Vec<Vec<ArtefactPatternChar>> {
    let all: Vec<ArtefactPatternChar> =
        start.chars().map(|c| (c, true)).chain(chars.iter().copied()).collect();
    let mut names: Vec<Vec<ArtefactPatternChar>> = Vec::new();
    for part in all.split(|(c, _)| *c == '/') {
        match name_text(part).as_str() {
            "" | "." => {}
            ".." => _ = names.pop(),
            _ => names.push(part.to_vec()),
        }
    }
    names
}

/// Removes the components of the path `folder` from the start of `names`, and returns the rest.
/// Returns `None` if the path in `names` is outside `folder`.
fn names_below<'n>(
    names: &'n [Vec<ArtefactPatternChar>],
    folder: &Path,
) -> Option<&'n [Vec<ArtefactPatternChar>]> {
    let mut rest = names;
    for part in folder.iter().skip(1) {
        let (name, after) = rest.split_first()?;
        if name_text(name) != part.to_string_lossy() {
            return None;
        }
        rest = after;
    }
    Some(rest)
}

fn name_text(name: &[ArtefactPatternChar]) -> String {
    name.iter().map(|(c, _)| c).collect()
}

/// Returns the query for the path or glob pattern whose components are `names`. Returns `None` if
/// `names` is empty.
fn file_query(names: &[Vec<ArtefactPatternChar>]) -> Option<ArtefactFileQuery> {
    let is_plain = |name: &Vec<ArtefactPatternChar>| {
        let is_syntax = |c: char| matches!(c, '*' | '?' | '[' | ']' | '{' | '}');
        name.iter().all(|(c, is_literal)| *is_literal || !is_syntax(*c))
    };
    let first = names.iter().position(|name| !is_plain(name)).unwrap_or(names.len());
    let (folder, rest) = names.split_at(first);
    let folder: Vec<String> = folder.iter().map(|name| name_text(name)).collect();
    if rest.is_empty() {
        return (!folder.is_empty()).then(|| ArtefactFileQuery::Single(folder.join("/")));
    }
    let folder = if folder.is_empty() { ".".to_owned() } else { folder.join("/") };
    let glob = |name: &Vec<ArtefactPatternChar>| -> String {
        let escaped = |(c, is_literal): &ArtefactPatternChar| {
            let c = c.to_string();
            if *is_literal { globset::escape(&c) } else { c }
        };
        name.iter().map(escaped).collect()
    };
    let deep = rest.iter().any(|name| name_text(name).contains("**"));
    let glob: Vec<String> = rest.iter().map(glob).collect();
    Some(ArtefactFileQuery::Beneath { folder, glob: glob.join("/"), deep, depth: rest.len() })
}

fn compile_glob(glob: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(glob).literal_separator(true).build()
}

impl CollectedArtefacts {
    /// Collects the regular files that match `queries` and that changed since `started`, at most
    /// 1000. Notes state the paths that cannot be collected.
    pub(super) fn collect(
        workspace: &Root,
        queries: Vec<FilledArtefactPattern>,
        started: FileTime,
        watch: &DiskWorkMonitor,
    ) -> Result<Self, ToolError> {
        let mut collected = Self::default();
        for query in queries {
            match query {
                FilledArtefactPattern::Within { base: None, search } => {
                    let folder = ArtefactSearch { root: workspace, base: None, started, watch };
                    folder.run(&search, &mut collected)?;
                }
                FilledArtefactPattern::Within { base: Some(base), search } => {
                    let Ok(root) = Root::open(&base) else {
                        let path = base.to_string_lossy().into_owned();
                        collected.leave_out(path, "cannot be opened");
                        continue;
                    };
                    let base = Some(base.as_path());
                    let folder = ArtefactSearch { root: &root, base, started, watch };
                    folder.run(&search, &mut collected)?;
                }
                FilledArtefactPattern::Outside(path) => {
                    collected.leave_out(path, "is outside the workspace");
                }
                FilledArtefactPattern::Impossible => {}
            }
        }
        if collected.is_full {
            collected.notes.push(format!("only the first {FILES_MAX} artefacts are returned"));
        }
        Ok(collected)
    }

    /// Adds `path` to the paths that are not collected, with a note. `why` continues the sentence
    /// of the note after the path.
    fn leave_out(&mut self, path: String, why: &str) {
        self.notes.push(format!("{} {why}, so it is not an artefact", quoted_path(&path)));
        self.left_out.push(path);
    }

    fn add(&mut self, path: String, file: WorkspaceFile, started: FileTime) {
        if !file.meta().has_changed_since(started) || self.files.contains_key(&path) {
            return;
        }
        if self.files.len() == FILES_MAX {
            self.is_full = true;
            return;
        }
        let fd = std::os::fd::OwnedFd::from(file);
        self.files.insert(path, Arc::new(fd.into()));
    }
}

/// A search for artefacts in one folder.
struct ArtefactSearch<'s> {
    root: &'s Root,
    /// The absolute path of the folder. `None` for the workspace.
    base: Option<&'s Path>,
    started: FileTime,
    watch: &'s DiskWorkMonitor,
}

impl ArtefactSearch<'_> {
    /// Adds the files that match `query` to `collected`.
    fn run(
        &self,
        query: &ArtefactFileQuery,
        collected: &mut CollectedArtefacts,
    ) -> Result<(), ToolError> {
        match query {
            ArtefactFileQuery::Single(path) => match self.root.open_file(path) {
                Ok(file) => collected.add(self.shown_path(path), file, self.started),
                Err(err) if self.base.is_some() && err.fault != ToolErrorKind::NotFound => {
                    collected.leave_out(self.shown_path(path), "cannot be read");
                }
                Err(_) => {}
            },
            ArtefactFileQuery::Beneath { folder, glob, deep, depth } => {
                let Ok(WalkStartPoint::Folder(folder)) = self.root.walk_start(folder) else {
                    return Ok(());
                };
                let Ok(glob) = compile_glob(glob) else { return Ok(()) };
                let depth = if *deep { usize::MAX } else { *depth };
                let start = folder.path.clone();
                self.collect_matches(folder, depth, &start, &glob.compile_matcher(), collected)?;
            }
        }
        Ok(())
    }

    /// Adds the files in `folder`, and in at most `depth - 1` levels of subfolders, whose paths
    /// relative to `start` match `glob`.
    fn collect_matches(
        &self,
        mut folder: WalkFolder,
        depth: usize,
        start: &Path,
        glob: &GlobMatcher,
        collected: &mut CollectedArtefacts,
    ) -> Result<(), ToolError> {
        let filter = WalkFilter { include_ignored: true, include_hidden: true };
        self.watch.check_cancelled()?;
        // A folder that vanished or is unreadable has no artefacts.
        let Ok(entries) = folder.list(self.root, filter, self.watch) else { return Ok(()) };
        for (name, kind) in entries {
            let path = folder.path.join(&name);
            match kind {
                EntryKind::Dir if depth > 1 => {
                    let inner = folder.child(&name);
                    self.collect_matches(inner, depth - 1, start, glob, collected)?;
                }
                EntryKind::File => {
                    let below = path.strip_prefix(start).unwrap_or(&path);
                    let (Some(text), true) = (path.to_str(), glob.is_match(below)) else {
                        continue;
                    };
                    if let Ok(file) = self.root.open_walked(&path) {
                        collected.add(self.shown_path(text), file, self.started);
                    }
                }
                EntryKind::Dir | EntryKind::Symlink | EntryKind::Other => {}
            }
        }
        Ok(())
    }

    /// Returns the path under which results show the file at `path` in the searched folder.
    fn shown_path(&self, path: &str) -> String {
        self.base.map_or(path.to_owned(), |base| base.join(path).to_string_lossy().into_owned())
    }
}
