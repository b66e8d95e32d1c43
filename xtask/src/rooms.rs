//! Checks the order of top-level modules, the rooms, in each crate: a room may use only those
//! declared before it.
//!
//! The order of the `mod` lines in `lib.rs` is the order of the rooms. Test code is not checked,
//! and neither is `lib.rs`, which may use every room.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::shell::checkout;

/// Returns a message for each use of a top-level module (a room) that is declared later.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mut crates: Vec<_> = std::fs::read_dir(checkout().join("crates"))?
        .map(|entry| Ok(entry?.path().join("src")))
        .collect::<std::io::Result<_>>()?;
    crates.sort();
    for src in crates {
        wrong.extend(check_crate(&src)?);
    }
    Ok(wrong)
}

/// Top-level modules (rooms) of one crate, in order of declaration, and the module of each item
/// that `lib.rs` re-exports.
struct CrateModuleOrder {
    order: Vec<String>,
    reexports: BTreeMap<String, String>,
}

impl CrateModuleOrder {
    fn parse(lib: &TokenStream) -> Self {
        let mut rooms = Self { order: Vec::new(), reexports: BTreeMap::new() };
        let tokens: Vec<_> = lib.clone().into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if *word == "mod" => {
                    if let Some(TokenTree::Ident(name)) = tokens.get(at + 1)
                        && !is_test_only(&tokens[..at])
                    {
                        rooms.order.push(name.to_string());
                    }
                }
                TokenTree::Ident(word) if *word == "use" => {
                    let mut path = &tokens[at + 1..];
                    // `use self::room::Item` names the same room as `use room::Item`.
                    if path.first().is_some_and(|first| first.to_string() == "self") {
                        path = &path[3..];
                    }
                    if let Some(TokenTree::Ident(room)) = path.first() {
                        rooms.record_uses(&room.to_string(), path);
                    }
                }
                _ => {}
            }
        }
        rooms
    }

    /// Records each name that a `use` of the top-level module `room` brings into the crate root.
    fn record_uses(&mut self, room: &str, tokens: &[TokenTree]) {
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Punct(end) if end.as_char() == ';' => break,
                TokenTree::Group(names) => {
                    let names: Vec<_> = names.stream().into_iter().collect();
                    self.record_uses(room, &names);
                }
                TokenTree::Ident(name) => {
                    // Only the last part of a path is a name in the root.
                    let is_last = tokens.get(at + 1).is_none_or(
                        |next| matches!(next, TokenTree::Punct(next) if next.as_char() != ':'),
                    );
                    if is_last {
                        self.reexports.insert(name.to_string(), room.to_owned());
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// Returns the name of the top-level module (room) that defines the item `name` of the crate
    /// root.
    fn room_of(&self, name: &str) -> Option<&str> {
        match self.order.iter().find(|room| *room == name) {
            Some(room) => Some(room),
            None => self.reexports.get(name).map(String::as_str),
        }
    }

    fn position(&self, room: &str) -> Option<usize> {
        self.order.iter().position(|one| one == room)
    }
}

fn check_crate(src: &Path) -> anyhow::Result<Vec<String>> {
    let rooms = CrateModuleOrder::parse(&parse_file(&src.join("lib.rs"))?);
    let mut files = Vec::new();
    collect_files(src, &mut files)?;
    files.sort();
    let mut sources = Vec::new();
    let mut test_modules = BTreeSet::new();
    for file in files {
        let module = module_path(src, &file);
        let tokens = parse_file(&file)?;
        collect_test_modules(&tokens, &module, &mut test_modules);
        sources.push((file, module, tokens));
    }
    let mut wrong = Vec::new();
    for (file, module, tokens) in &sources {
        let Some(room) = module.first() else { continue };
        let is_test = (1..=module.len()).any(|end| test_modules.contains(&module[..end]));
        let Some(own) = rooms.position(room).filter(|_| !is_test) else { continue };
        let mut names = BTreeSet::new();
        collect_root_names(tokens, module.len(), &mut names);
        for used in names.iter().filter_map(|name| rooms.room_of(name)).collect::<BTreeSet<_>>() {
            if rooms.position(used).is_some_and(|used| used > own) {
                let file = file.strip_prefix(checkout()).unwrap_or(file).display();
                wrong.push(format!(
                    "{file} uses the module `{used}`, which lib.rs declares after `{room}`"
                ));
            }
        }
    }
    Ok(wrong)
}

pub(crate) fn parse_file(file: &Path) -> anyhow::Result<TokenStream> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    // Doc comments and other comments are not code.
    text.parse().map_err(|err| anyhow::anyhow!("{}: {err}", file.display()))
}

pub(crate) fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_files(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the module path of the source file `file`. The path is empty for `lib.rs` and `main.rs`.
pub(crate) fn module_path(src: &Path, file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(src).unwrap_or(file).with_extension("");
    let mut parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod" || last == "lib" || last == "main") {
        parts.pop();
    }
    parts
}

/// Adds to `found` the modules that are declared for tests only in `tokens`, the code of `module`.
pub(crate) fn collect_test_modules(
    tokens: &TokenStream,
    module: &[String],
    found: &mut BTreeSet<Vec<String>>,
) {
    let tokens: Vec<_> = tokens.clone().into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        if matches!(token, TokenTree::Ident(word) if *word == "mod")
            && let Some(TokenTree::Ident(name)) = tokens.get(at + 1)
            && is_test_only(&tokens[..at])
        {
            found.insert([module, &[name.to_string()]].concat());
        }
    }
}

/// Returns true if the tokens `before` an item end with a `cfg` attribute that mentions `test` or
/// `fuzzing`.
pub(crate) fn is_test_only(before: &[TokenTree]) -> bool {
    let mut before = before.iter().rev().peekable();
    // Skips `pub`, `pub(crate)`.
    while before.next_if(|token| is_visibility(token)).is_some() {}
    while let Some(TokenTree::Group(attribute)) = before.next() {
        if attribute.delimiter() != Delimiter::Bracket
            || !matches!(before.next(), Some(TokenTree::Punct(hash)) if hash.as_char() == '#')
        {
            return false;
        }
        let text = attribute.stream().to_string();
        if text.starts_with("cfg") && (text.contains("test") || text.contains("fuzzing")) {
            return true;
        }
    }
    false
}

fn is_visibility(token: &TokenTree) -> bool {
    match token {
        TokenTree::Ident(word) => *word == "pub",
        TokenTree::Group(group) => group.delimiter() == Delimiter::Parenthesis,
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    }
}

/// Adds to `names` the names of the crate root that `tokens` use. `depth` is the number of modules
/// between the code and the root.
fn collect_root_names(tokens: &TokenStream, depth: usize, names: &mut BTreeSet<String>) {
    let tokens: Vec<_> = tokens.clone().into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if *word == "mod" => {
                if let Some(TokenTree::Group(body)) = tokens.get(at + 2) {
                    if !is_test_only(&tokens[..at]) {
                        collect_root_names(&body.stream(), depth + 1, names);
                    }
                    at += 2;
                }
            }
            TokenTree::Ident(word) if *word == "crate" => {
                record_names(&tokens[at + 1..], names);
            }
            TokenTree::Ident(word) if *word == "super" => {
                let mut levels = 1;
                while is_path_separator(&tokens[at + 1..])
                    && matches!(tokens.get(at + 3), Some(TokenTree::Ident(word)) if *word == "super")
                {
                    levels += 1;
                    at += 3;
                }
                if levels == depth {
                    record_names(&tokens[at + 1..], names);
                }
            }
            TokenTree::Group(group) => collect_root_names(&group.stream(), depth, names),
            TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        at += 1;
    }
}

/// Adds to `names` the name, or the names in braces, after the `::` at the start of `after`.
fn record_names(after: &[TokenTree], names: &mut BTreeSet<String>) {
    if !is_path_separator(after) {
        return;
    }
    match after.get(2) {
        Some(TokenTree::Ident(name)) => _ = names.insert(name.to_string()),
        Some(TokenTree::Group(group)) => {
            let mut starts = true;
            for token in group.stream() {
                if let TokenTree::Ident(name) = &token
                    && starts
                {
                    names.insert(name.to_string());
                }
                starts = matches!(&token, TokenTree::Punct(comma) if comma.as_char() == ',');
            }
        }
        Some(TokenTree::Punct(_) | TokenTree::Literal(_)) | None => {}
    }
}

fn is_path_separator(tokens: &[TokenTree]) -> bool {
    let is_colon = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(colon)) if colon.as_char() == ':');
    is_colon(tokens.first()) && is_colon(tokens.get(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &str, depth: usize) -> Vec<String> {
        let mut names = BTreeSet::new();
        collect_root_names(&code.parse().expect("tokens"), depth, &mut names);
        names.into_iter().collect()
    }

    #[test]
    fn uses_of_the_crate_root_are_found_in_paths_groups_and_macros() {
        let code = "use crate::{a::X, b}; fn f() { json!({ crate::c::y() }) } // crate::d\n";
        assert_eq!(names(code, 1), ["a", "b", "c"]);
        assert_eq!(names("use super::a::X; mod m { use super::super::b; }", 1), ["a", "b"]);
        assert_eq!(names("use super::a::X; use super::super::b;", 2), ["b"]);
        assert_eq!(names("#[cfg(test)] mod tests { use crate::late; }", 1), [""; 0]);
    }

    #[test]
    fn rooms_are_the_modules_of_lib_rs_and_reexports_belong_to_them() {
        let lib = "mod a; #[cfg(test)] mod t; pub(crate) mod b; pub use b::{c::D, E as F};";
        let rooms = CrateModuleOrder::parse(&lib.parse().expect("tokens"));
        assert_eq!(rooms.order, ["a", "b"]);
        assert_eq!((rooms.room_of("D"), rooms.room_of("F")), (Some("b"), Some("b")));
        assert_eq!(rooms.room_of("a"), Some("a"));
    }
}
