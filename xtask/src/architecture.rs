//! Checks that each file and name in ARCHITECTURE.md exists. That page explains how it names them.

use std::path::Path;

use anyhow::Context;

use crate::shell::checkout;

/// Rust keywords that declare the name after them.
const KEYWORDS: [&str; 9] =
    ["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "macro_rules!"];

/// Returns a sentence for each file or name in ARCHITECTURE.md that does not exist.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = checkout();
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md"));
    Ok(find_missing(&page.context("cannot read ARCHITECTURE.md")?, &root))
}

fn find_missing(page: &str, root: &Path) -> Vec<String> {
    let source_of =
        |name: &str| Some(root.join("crates").join(name).join("src")).filter(|src| src.is_dir());
    let mut heading = None;
    let mut is_code = false;
    let mut missing = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        is_code ^= line.starts_with("```");
        if is_code {
            continue;
        }
        if let Some(title) = line.strip_prefix("### ").or_else(|| line.strip_prefix("## ")) {
            heading = title.split(':').next().and_then(source_of);
        }
        let mut parts = line.split('`');
        while let (Some(before), Some(span)) = (parts.next(), parts.next()) {
            let (path, names) = span.split_once(": ").unwrap_or((span, ""));
            let is_path = path.ends_with(".rs") || path.ends_with('/');
            let is_bare = names.is_empty() && !path.contains('/');
            if !is_path || is_bare || path.contains([' ', ':']) {
                continue;
            }
            let word = before.split_whitespace().next_back().unwrap_or_default();
            let folder = source_of(word.trim_start_matches('(')).or_else(|| heading.clone());
            let file = folder.unwrap_or_else(|| root.to_owned()).join(path);
            let shown = file.strip_prefix(root).unwrap_or(&file).display();
            if !file.exists() {
                missing.push(format!("ARCHITECTURE.md:{number}: {shown} does not exist"));
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let names = names.split(", ").filter(|name| !name.is_empty());
            let absent = names.filter(|name| !declares(&text, name));
            let report = |name| format!("ARCHITECTURE.md:{number}: {shown} declares no `{name}`");
            missing.extend(absent.map(report));
        }
    }
    missing
}

fn declares(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let declarations = KEYWORDS.map(|keyword| format!("{keyword} {name}"));
    let mut places = declarations.iter().flat_map(|declaration| text.match_indices(declaration));
    places.any(|(at, it)| {
        !text[..at].ends_with(is_word) && !text[at + it.len()..].starts_with(is_word)
    })
}

#[cfg(test)]
#[test]
fn missing_files_and_names_are_reported() {
    let page = "(xtask) `xtask/src/rooms.rs: CrateModuleOrder`, host `pipeline.rs: pass_gate`\n### host: gate\n\
                `pipeline.rs: look, pass`, `lost.rs: f`, `lib.rs`, `jobs/tools/`\n```\n`lost/`\n```\n";
    let pass = "ARCHITECTURE.md:3: crates/host/src/pipeline.rs declares no `pass`";
    let lost = "ARCHITECTURE.md:3: crates/host/src/lost.rs does not exist";
    assert_eq!(find_missing(page, &checkout()), [pass, lost]);
}
