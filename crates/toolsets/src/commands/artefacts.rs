//! Finds the files that a command creates or changes, by the glob patterns that it declares.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use globset::{Glob, GlobBuilder, GlobMatcher};
use toolgate_contract::ToolError;

use super::argument::{Argument, Given};
use super::template::{Raw, raw_pieces, text};
use crate::world::Root;
use crate::world::root::{File, Folder, Kind, Moment, Sight, Start, Watch, shown};

/// The most artefacts of one call. Each file stays open until it is collected.
const FILES_MAX: usize = 1000;

/// A glob for artefacts of a command, with placeholders for arguments. Argument values are inserted
/// literally.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Glob(String),
    Insert(usize),
}

/// A character of a pattern, and `true` if it is literal instead of glob syntax.
type Sign = (char, bool);

/// A pattern with its arguments filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sought {
    /// A single path.
    File(String),
    /// A glob below a folder. `depth` limits the levels to search, unless `deep` is set.
    Beneath { folder: String, glob: String, deep: bool, depth: usize },
    /// No possible artefact, with a note about the reason if it should be reported.
    Nowhere(Option<String>),
}

/// The artefacts of a finished command.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// The open files, by path relative to the workspace.
    pub(super) files: BTreeMap<String, Arc<std::fs::File>>,
    /// Notes about files that are not included, with the reason.
    pub(super) notes: Vec<String>,
    is_full: bool,
}

impl Pattern {
    /// Parses a pattern. `find` looks up the arguments that it names.
    pub(super) fn parse(
        pattern: &str,
        arguments: &[Argument],
        find: impl Fn(&str) -> Result<usize, String>,
    ) -> Result<Self, String> {
        let mut pieces = Vec::new();
        for raw in raw_pieces(pattern)? {
            pieces.push(match raw {
                Raw::Text(text) => Piece::Glob(text),
                Raw::Insert { name, .. } => {
                    let index = find(name)?;
                    if arguments[index].note.kind == super::note::Kind::Flag {
                        return Err(format!("`{name}` is a flag and names no file"));
                    }
                    Piece::Insert(index)
                }
            });
        }
        let sample = pieces.iter().map(|piece| match piece {
            Piece::Glob(glob) => glob.as_str(),
            Piece::Insert(_) => "x",
        });
        compile(&sample.collect::<String>())
            .map_err(|err| format!("`{pattern}` is no glob: {err}"))?;
        Ok(Self(pieces))
    }

    /// Returns the indexes of the arguments in the pattern.
    pub(super) fn arguments(&self) -> Vec<usize> {
        let insert = |piece: &Piece| match piece {
            Piece::Insert(index) => Some(*index),
            Piece::Glob(_) => None,
        };
        self.0.iter().filter_map(insert).collect()
    }

    /// Fills in the arguments of a call, for a program that starts in `cwd`. Returns one result per
    /// value of a list, and none if an argument is absent or clearly not a file.
    pub(super) fn sought(
        &self,
        given: &Given<'_>,
        cwd: &str,
        root: &Path,
    ) -> Result<Vec<Sought>, ToolError> {
        let mut all: Vec<Vec<Sign>> = vec![Vec::new()];
        for piece in &self.0 {
            match piece {
                Piece::Glob(glob) => {
                    all.iter_mut().for_each(|it| it.extend(glob.chars().map(|c| (c, false))));
                }
                Piece::Insert(index) => {
                    let pointer = given.argument(*index).pointer();
                    let mut values = Vec::new();
                    for value in given.values(*index) {
                        let value = text(value, &pointer)?;
                        if !value.is_empty() && value != "-" && !value.contains("://") {
                            values.push(value);
                        }
                    }
                    let with = |signs: &Vec<Sign>, value: &str| -> Vec<Sign> {
                        signs.iter().copied().chain(value.chars().map(|c| (c, true))).collect()
                    };
                    all = all
                        .iter()
                        .flat_map(|signs| values.iter().map(|value| with(signs, value)))
                        .collect();
                }
            }
        }
        Ok(all.iter().map(|signs| sought(signs, cwd, root)).collect())
    }
}

/// Resolves the pattern `signs` relative to `cwd`.
fn sought(signs: &[Sign], cwd: &str, root: &Path) -> Sought {
    let written: String = signs.iter().map(|(c, _)| c).collect();
    let outside = || {
        let shown = shown(&written);
        Sought::Nowhere(Some(format!("{shown} is outside the workspace and no artefact")))
    };
    let mut parts: Vec<Vec<Sign>> = Vec::new();
    let plain = |name: &str| name.chars().map(|c| (c, true)).collect::<Vec<Sign>>();
    if written.starts_with('/') {
        let names = signs.split(|(c, _)| *c == '/').filter(|name| !name.is_empty());
        let mut names = names.map(<[Sign]>::to_vec);
        let above = root.to_string_lossy();
        for name in above.split('/').filter(|name| !name.is_empty()) {
            let next: String = names.next().unwrap_or_default().iter().map(|(c, _)| c).collect();
            if next != name {
                return outside();
            }
        }
        parts.extend(names);
    } else {
        parts.extend(cwd.split('/').filter(|name| !name.is_empty()).map(plain));
        let names = signs.split(|(c, _)| *c == '/').filter(|name| !name.is_empty());
        parts.extend(names.map(<[Sign]>::to_vec));
    }
    let mut names: Vec<Vec<Sign>> = Vec::new();
    for part in parts {
        let name: String = part.iter().map(|(c, _)| c).collect();
        match name.as_str() {
            "." => {}
            ".." if names.pop().is_none() => return outside(),
            ".." => {}
            _ => names.push(part),
        }
    }
    let is_plain = |name: &Vec<Sign>| {
        name.iter().all(|(c, itself)| *itself || !matches!(c, '*' | '?' | '[' | ']' | '{' | '}'))
    };
    let text = |name: &Vec<Sign>| name.iter().map(|(c, _)| c).collect::<String>();
    let first = names.iter().position(|name| !is_plain(name)).unwrap_or(names.len());
    let (folder, rest) = names.split_at(first);
    let folder: Vec<String> = folder.iter().map(text).collect();
    let folder = if folder.is_empty() { ".".to_owned() } else { folder.join("/") };
    if rest.is_empty() {
        return if folder == "." { Sought::Nowhere(None) } else { Sought::File(folder) };
    }
    let glob = |name: &Vec<Sign>| -> String {
        let sign = |(c, itself): &Sign| {
            let c = c.to_string();
            if *itself { globset::escape(&c) } else { c }
        };
        name.iter().map(sign).collect()
    };
    let deep = rest.iter().any(|name| text(name).contains("**"));
    let glob: Vec<String> = rest.iter().map(glob).collect();
    Sought::Beneath { folder, glob: glob.join("/"), deep, depth: rest.len() }
}

fn compile(glob: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(glob).literal_separator(true).build()
}

impl Left {
    /// Collects the regular files that match `sought` and changed since `started`.
    pub(super) fn gather(
        root: &Root,
        sought: Vec<Sought>,
        started: Moment,
        watch: &Watch,
    ) -> Result<Self, ToolError> {
        let mut left = Self::default();
        for sought in sought {
            match sought {
                Sought::File(path) => {
                    if let Ok(file) = root.open_file(&path) {
                        left.take(path, file, started);
                    }
                }
                Sought::Beneath { folder, glob, deep, depth } => {
                    let Ok(Start::Folder(folder)) = root.start(&folder) else { continue };
                    let Ok(glob) = compile(&glob) else { continue };
                    let depth = if deep { usize::MAX } else { depth };
                    let from = folder.path.clone();
                    let seek =
                        Seek { root, glob: glob.compile_matcher(), from: &from, started, watch };
                    seek.look(folder, depth, &mut left)?;
                }
                Sought::Nowhere(note) => left.notes.extend(note),
            }
        }
        if left.is_full {
            left.notes.push(format!("only the first {FILES_MAX} artefacts are handed over"));
        }
        Ok(left)
    }

    fn take(&mut self, path: String, file: File, started: Moment) {
        if !file.meta().is_changed_since(started) || self.files.contains_key(&path) {
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
struct Seek<'s> {
    root: &'s Root,
    glob: GlobMatcher,
    from: &'s Path,
    started: Moment,
    watch: &'s Watch,
}

impl Seek<'_> {
    /// Adds the matching files in `folder` and up to `depth - 1` levels below it to `left`.
    fn look(&self, mut folder: Folder, depth: usize, left: &mut Left) -> Result<(), ToolError> {
        let sight = Sight { ignored: true, hidden: true };
        self.watch.check()?;
        // A folder that vanished or is unreadable has no artefacts.
        let Ok(entries) = folder.look(self.root, sight, self.watch) else { return Ok(()) };
        for (name, kind) in entries {
            let path = folder.path.join(&name);
            match kind {
                Kind::Dir if depth > 1 => self.look(folder.enter(&name), depth - 1, left)?,
                Kind::File => {
                    let below = path.strip_prefix(self.from).unwrap_or(&path);
                    let (Some(text), true) = (path.to_str(), self.glob.is_match(below)) else {
                        continue;
                    };
                    if let Ok(file) = self.root.open_walked(&path) {
                        left.take(text.to_owned(), file, self.started);
                    }
                }
                Kind::Dir | Kind::Symlink | Kind::Other => {}
            }
        }
        Ok(())
    }
}
