//! Finds the files that a command creates or changes, by the glob patterns that it declares.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use globset::{Glob, GlobBuilder, GlobMatcher};
use toolgate_contract::ToolError;

use super::argument::{ArgumentValues, CommandArgument};
use super::template::{RawPiece, split_pieces, value_text};
use toolgate_world::Root;
use toolgate_world::root::{
    EntryKind, FileTime, WalkFilter, WalkFolder, WalkStart, WorkMonitor, WorkspaceFile, quoted_path,
};

/// The most artefacts of one call. Each file stays open until it is collected.
const FILES_MAX: usize = 1000;

/// A glob for artefacts of a command, with placeholders for arguments. Argument values are inserted
/// literally.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArtefactPattern(Vec<PatternPiece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternPiece {
    Glob(String),
    Insert(usize),
}

/// A character of a pattern, and `true` if it is literal instead of glob syntax.
type PatternChar = (char, bool);

/// A pattern with its arguments filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ArtefactQuery {
    /// A single path.
    File(String),
    /// A glob below a folder. `depth` limits the levels to search, unless `deep` is set.
    Beneath { folder: String, glob: String, deep: bool, depth: usize },
    /// No possible artefact, with a note about the reason if it should be reported.
    Impossible(Option<String>),
}

/// The artefacts of a finished command.
#[derive(Debug, Default)]
pub(super) struct CollectedArtefacts {
    /// The open files, by path relative to the workspace.
    pub(super) files: BTreeMap<String, Arc<std::fs::File>>,
    /// Notes about files that are not included, with the reason.
    pub(super) notes: Vec<String>,
    is_full: bool,
}

impl ArtefactPattern {
    /// Parses a pattern. `find` looks up the arguments that it names.
    pub(super) fn parse(
        pattern: &str,
        arguments: &[CommandArgument],
        find: impl Fn(&str) -> Result<usize, String>,
    ) -> Result<Self, String> {
        let mut pieces = Vec::new();
        for raw in split_pieces(pattern)? {
            pieces.push(match raw {
                RawPiece::Text(text) => PatternPiece::Glob(text),
                RawPiece::Insert { name, .. } => {
                    let index = find(name)?;
                    if arguments[index].note.kind == super::type_note::ValueKind::Flag {
                        return Err(format!("`{name}` is a flag, not a file"));
                    }
                    PatternPiece::Insert(index)
                }
            });
        }
        let sample = pieces.iter().map(|piece| match piece {
            PatternPiece::Glob(glob) => glob.as_str(),
            PatternPiece::Insert(_) => "x",
        });
        compile_glob(&sample.collect::<String>())
            .map_err(|err| format!("`{pattern}` is not a valid glob: {err}"))?;
        Ok(Self(pieces))
    }

    /// Returns the indexes of the arguments in the pattern.
    pub(super) fn arguments(&self) -> Vec<usize> {
        let insert = |piece: &PatternPiece| match piece {
            PatternPiece::Insert(index) => Some(*index),
            PatternPiece::Glob(_) => None,
        };
        self.0.iter().filter_map(insert).collect()
    }

    /// Fills in the arguments of a call, for a program that starts in `cwd`. Returns one result per
    /// value of a list, and none if an argument is absent or clearly not a file.
    pub(super) fn fill(
        &self,
        given: &ArgumentValues<'_>,
        cwd: &str,
        root: &Path,
    ) -> Result<Vec<ArtefactQuery>, ToolError> {
        let mut all: Vec<Vec<PatternChar>> = vec![Vec::new()];
        for piece in &self.0 {
            match piece {
                PatternPiece::Glob(glob) => {
                    all.iter_mut().for_each(|it| it.extend(glob.chars().map(|c| (c, false))));
                }
                PatternPiece::Insert(index) => {
                    let pointer = given.argument(*index).pointer();
                    let mut values = Vec::new();
                    for value in given.values(*index) {
                        let value = value_text(value, &pointer)?;
                        if !value.is_empty() && value != "-" && !value.contains("://") {
                            values.push(value);
                        }
                    }
                    let append = |chars: &Vec<PatternChar>, value: &str| -> Vec<PatternChar> {
                        chars.iter().copied().chain(value.chars().map(|c| (c, true))).collect()
                    };
                    all = all
                        .iter()
                        .flat_map(|chars| values.iter().map(|value| append(chars, value)))
                        .collect();
                }
            }
        }
        Ok(all.iter().map(|chars| resolve_query(chars, cwd, root)).collect())
    }
}

/// Resolves the pattern `chars` relative to `cwd`.
fn resolve_query(chars: &[PatternChar], cwd: &str, root: &Path) -> ArtefactQuery {
    let written: String = chars.iter().map(|(c, _)| c).collect();
    let outside = || {
        let shown = quoted_path(&written);
        let note = format!("{shown} is outside the workspace, so it is not an artefact");
        ArtefactQuery::Impossible(Some(note))
    };
    let mut parts: Vec<Vec<PatternChar>> = Vec::new();
    let plain = |name: &str| name.chars().map(|c| (c, true)).collect::<Vec<PatternChar>>();
    if written.starts_with('/') {
        let names = chars.split(|(c, _)| *c == '/').filter(|name| !name.is_empty());
        let mut names = names.map(<[PatternChar]>::to_vec);
        let root = root.to_string_lossy();
        for name in root.split('/').filter(|name| !name.is_empty()) {
            let next: String = names.next().unwrap_or_default().iter().map(|(c, _)| c).collect();
            if next != name {
                return outside();
            }
        }
        parts.extend(names);
    } else {
        parts.extend(cwd.split('/').filter(|name| !name.is_empty()).map(plain));
        let names = chars.split(|(c, _)| *c == '/').filter(|name| !name.is_empty());
        parts.extend(names.map(<[PatternChar]>::to_vec));
    }
    let mut names: Vec<Vec<PatternChar>> = Vec::new();
    for part in parts {
        let name: String = part.iter().map(|(c, _)| c).collect();
        match name.as_str() {
            "." => {}
            ".." if names.pop().is_none() => return outside(),
            ".." => {}
            _ => names.push(part),
        }
    }
    let is_plain = |name: &Vec<PatternChar>| {
        let is_syntax = |c: char| matches!(c, '*' | '?' | '[' | ']' | '{' | '}');
        name.iter().all(|(c, is_literal)| *is_literal || !is_syntax(*c))
    };
    let text = |name: &Vec<PatternChar>| name.iter().map(|(c, _)| c).collect::<String>();
    let first = names.iter().position(|name| !is_plain(name)).unwrap_or(names.len());
    let (folder, rest) = names.split_at(first);
    let folder: Vec<String> = folder.iter().map(text).collect();
    let folder = if folder.is_empty() { ".".to_owned() } else { folder.join("/") };
    if rest.is_empty() {
        return if folder == "." {
            ArtefactQuery::Impossible(None)
        } else {
            ArtefactQuery::File(folder)
        };
    }
    let glob = |name: &Vec<PatternChar>| -> String {
        let escaped = |(c, is_literal): &PatternChar| {
            let c = c.to_string();
            if *is_literal { globset::escape(&c) } else { c }
        };
        name.iter().map(escaped).collect()
    };
    let deep = rest.iter().any(|name| text(name).contains("**"));
    let glob: Vec<String> = rest.iter().map(glob).collect();
    ArtefactQuery::Beneath { folder, glob: glob.join("/"), deep, depth: rest.len() }
}

fn compile_glob(glob: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(glob).literal_separator(true).build()
}

impl CollectedArtefacts {
    /// Collects the regular files that match `queries` and changed since `started`.
    pub(super) fn collect(
        root: &Root,
        queries: Vec<ArtefactQuery>,
        started: FileTime,
        watch: &WorkMonitor,
    ) -> Result<Self, ToolError> {
        let mut collected = Self::default();
        for query in queries {
            match query {
                ArtefactQuery::File(path) => {
                    if let Ok(file) = root.open_file(&path) {
                        collected.add(path, file, started);
                    }
                }
                ArtefactQuery::Beneath { folder, glob, deep, depth } => {
                    let Ok(WalkStart::Folder(folder)) = root.walk_start(&folder) else { continue };
                    let Ok(glob) = compile_glob(&glob) else { continue };
                    let depth = if deep { usize::MAX } else { depth };
                    let base = folder.path.clone();
                    let search = ArtefactSearch {
                        root,
                        glob: glob.compile_matcher(),
                        base: &base,
                        started,
                        watch,
                    };
                    search.collect_matches(folder, depth, &mut collected)?;
                }
                ArtefactQuery::Impossible(note) => collected.notes.extend(note),
            }
        }
        if collected.is_full {
            collected.notes.push(format!("only the first {FILES_MAX} artefacts are returned"));
        }
        Ok(collected)
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

/// A search for artefacts below a folder.
struct ArtefactSearch<'s> {
    root: &'s Root,
    glob: GlobMatcher,
    base: &'s Path,
    started: FileTime,
    watch: &'s WorkMonitor,
}

impl ArtefactSearch<'_> {
    /// Adds the matching files in `folder` and up to `depth - 1` levels below it to `collected`.
    fn collect_matches(
        &self,
        mut folder: WalkFolder,
        depth: usize,
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
                    self.collect_matches(folder.child(&name), depth - 1, collected)?;
                }
                EntryKind::File => {
                    let below = path.strip_prefix(self.base).unwrap_or(&path);
                    let (Some(text), true) = (path.to_str(), self.glob.is_match(below)) else {
                        continue;
                    };
                    if let Ok(file) = self.root.open_walked(&path) {
                        collected.add(text.to_owned(), file, self.started);
                    }
                }
                EntryKind::Dir | EntryKind::Symlink | EntryKind::Other => {}
            }
        }
        Ok(())
    }
}
