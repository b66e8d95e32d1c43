//! The functions of a package, by tree-sitter: not by our own chunks, so that a change of those
//! never changes the set.

use std::ops::Range;
use std::path::Path;

use anyhow::Context;
use tree_sitter::{Node, Parser};

use super::{Lang, Unit};

/// A function and what its doc comment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    pub unit: Unit,
    /// Its doc comment without marks; empty where there is none.
    pub doc: String,
}

/// Bigger files are made by programs.
const FILE_BYTES_MAX: u64 = 1_000_000;

/// All functions of the package in `folder`, files in the order of the alphabet.
pub fn of_package(folder: &Path, lang: Lang) -> anyhow::Result<Vec<Function>> {
    let mut files = Vec::new();
    files_beneath(folder, "", lang, &mut files)?;
    files.sort();
    let mut functions = Vec::new();
    for path in files {
        let file = folder.join(&path);
        if std::fs::metadata(&file)?.len() > FILE_BYTES_MAX {
            continue;
        }
        // What is not UTF-8 is data for somebody's test.
        let Ok(text) = String::from_utf8(std::fs::read(&file)?) else { continue };
        functions.extend(of_file(&path, &text, lang)?);
    }
    Ok(functions)
}

/// The functions of one file.
pub fn of_file(path: &str, text: &str, lang: Lang) -> anyhow::Result<Vec<Function>> {
    let mut parser = Parser::new();
    let language = match lang {
        Lang::Rust => tree_sitter_rust::LANGUAGE.into(),
        Lang::Python => tree_sitter_python::LANGUAGE.into(),
    };
    parser
        .set_language(&language)
        .map_err(|err| anyhow::anyhow!("cannot load the grammar: {err}"))?;
    let tree = parser.parse(text, None).context("the parser returned no tree")?;
    let mut walk = Walk { path, text, within: Vec::new(), found: Vec::new() };
    match lang {
        Lang::Rust => walk.rust(tree.root_node()),
        Lang::Python => walk.python(tree.root_node()),
    }
    Ok(walk.found)
}

fn files_beneath(
    folder: &Path,
    beneath: &str,
    lang: Lang,
    files: &mut Vec<String>,
) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder.join(beneath))? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if beneath.is_empty() { name.clone() } else { format!("{beneath}/{name}") };
        let is_source = match lang {
            Lang::Rust => name.ends_with(".rs") && name != "build.rs",
            Lang::Python => name.ends_with(".py"),
        };
        let kind = entry.file_type()?;
        if kind.is_dir() && !is_left_out(&name) {
            files_beneath(folder, &path, lang, files)?;
        } else if kind.is_file() && is_source && !is_test(&name) {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether a folder of that name holds tests, examples or other people's code.
fn is_left_out(name: &str) -> bool {
    let other = [
        "test",
        "tests",
        "testsuite",
        "benches",
        "benchmarks",
        "bench",
        "examples",
        "example",
        "vendor",
        "_vendor",
        "vendored",
        "third_party",
        "extern",
        "_extern",
        "externals",
        "fuzz",
        "node_modules",
        "doc",
        "docs",
    ];
    other.contains(&name) || name.starts_with('.') || name.ends_with(".dist-info")
}

/// Whether a file of that name is a test.
fn is_test(name: &str) -> bool {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    ["test", "tests", "conftest"].contains(&stem)
        || ["test_", "tests_"].iter().any(|it| stem.starts_with(it))
        || ["_test", "_tests"].iter().any(|it| stem.ends_with(it))
}

struct Walk<'t> {
    path: &'t str,
    text: &'t str,
    within: Vec<String>,
    found: Vec<Function>,
}

impl<'t> Walk<'t> {
    fn rust(&mut self, list: Node<'_>) {
        let mut doc = String::new();
        let mut is_test = false;
        for child in list.named_children(&mut list.walk()) {
            match child.kind() {
                "line_comment" | "block_comment" => {
                    if let Some(said) = rust_doc(self.of(child)) {
                        doc.push_str(&said);
                    }
                    continue;
                }
                "attribute_item" => {
                    let attribute = self.of(child);
                    is_test |= ["#[test", "#[cfg(test)", "#[bench", "::test]", "::test("]
                        .iter()
                        .any(|it| attribute.contains(it));
                    if let Some(said) = attribute.strip_prefix("#[doc = \"") {
                        doc.push_str(said.trim_end_matches("\"]"));
                        doc.push('\n');
                    }
                    continue;
                }
                "function_item" if !is_test => self.function(child, &doc),
                "impl_item" | "trait_item" | "mod_item" if !is_test => self.rust_within(child),
                _ => {}
            }
            doc.clear();
            is_test = false;
        }
    }

    fn rust_within(&mut self, item: Node<'_>) {
        let Some(body) = item.child_by_field_name("body") else { return };
        let said = |field: &str| {
            let text = item.child_by_field_name(field).map(|it| self.of(it))?;
            let name = text.split('<').next().unwrap_or(text);
            Some(name.rsplit("::").next().unwrap_or(name).trim().to_owned())
        };
        let names: Vec<String> = ["name", "type", "trait"].into_iter().filter_map(said).collect();
        if item.kind() == "mod_item" && ["test", "tests", "bench"].contains(&names[0].as_str()) {
            return;
        }
        let depth = self.within.len();
        self.within.extend(names);
        self.rust(body);
        self.within.truncate(depth);
    }

    fn python(&mut self, list: Node<'_>) {
        for child in list.named_children(&mut list.walk()) {
            let item = match child.kind() {
                "decorated_definition" => child.child_by_field_name("definition").unwrap_or(child),
                _ => child,
            };
            match item.kind() {
                "function_definition" => {
                    let doc = item.child_by_field_name("body").and_then(docstring);
                    let doc = doc.map(|it| python_doc(self.of(it))).unwrap_or_default();
                    self.function(item, &doc);
                }
                "class_definition" => {
                    let name = item.child_by_field_name("name").map_or("", |it| self.of(it));
                    self.within.push(name.to_owned());
                    if let Some(body) = item.child_by_field_name("body") {
                        self.python(body);
                    }
                    self.within.pop();
                }
                "if_statement" | "else_clause" | "elif_clause" | "try_statement"
                | "except_clause" | "finally_clause" | "with_statement" | "block" => {
                    self.python(item);
                }
                _ => {}
            }
        }
    }

    fn function(&mut self, item: Node<'_>, doc: &str) {
        let (Some(name), Some(body)) =
            (item.child_by_field_name("name"), item.child_by_field_name("body"))
        else {
            return;
        };
        let mut comments = Vec::new();
        comments_of(item, &mut comments);
        let head = self.without(item.start_byte()..body.start_byte(), &comments);
        let name = self.of(name);
        // Python's tests stand anywhere.
        if name.starts_with("test_") {
            return;
        }
        let unit = Unit {
            name: name.to_owned(),
            within: self.within.join(" "),
            path: self.path.to_owned(),
            head: head.split_whitespace().collect::<Vec<_>>().join(" "),
            body: self.without(item.byte_range(), &comments),
        };
        self.found.push(Function { unit, doc: doc.trim().to_owned() });
    }

    fn of(&self, node: Node<'_>) -> &'t str {
        &self.text[node.byte_range()]
    }

    /// The text in `range` but for `comments`, which are in order, and the lines that they leave
    /// blank.
    fn without(&self, range: Range<usize>, comments: &[Range<usize>]) -> String {
        let mut kept = String::new();
        let mut at = range.start;
        for comment in comments.iter().filter(|it| it.start >= range.start) {
            if comment.start >= range.end {
                break;
            }
            kept.push_str(&self.text[at..comment.start.max(at)]);
            // A line comment of Rust may take its end of line with it.
            if self.text[comment.clone()].ends_with('\n') {
                kept.push('\n');
            }
            at = comment.end.max(at);
        }
        kept.push_str(&self.text[at.min(range.end)..range.end]);
        let lines = kept.lines().map(str::trim_end).filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Where comments, and strings that nobody uses, stand in `node`.
fn comments_of(node: Node<'_>, comments: &mut Vec<Range<usize>>) {
    let is_comment = match node.kind() {
        "line_comment" | "block_comment" | "comment" => true,
        "expression_statement" => {
            let said = node.named_child(0).map(|it| it.kind());
            node.named_child_count() == 1
                && matches!(said, Some("string" | "concatenated_string"))
                && node.parent().is_some_and(|it| it.kind() == "block")
                && node.child_count() == 1
        }
        _ => false,
    };
    if is_comment {
        comments.push(node.byte_range());
        return;
    }
    for child in node.children(&mut node.walk()) {
        comments_of(child, comments);
    }
}

/// What a comment of Rust says, if it is a doc comment of what follows.
fn rust_doc(comment: &str) -> Option<String> {
    if let Some(line) = comment.strip_prefix("///") {
        return (!line.starts_with('/')).then(|| format!("{}\n", line.trim()));
    }
    let block = comment.strip_prefix("/**")?.strip_suffix("*/")?;
    let lines = block.lines().map(|line| line.trim().trim_start_matches('*').trim());
    (!block.starts_with('*')).then(|| lines.collect::<Vec<_>>().join("\n"))
}

/// The string that documents the function whose body is `block`.
fn docstring(block: Node<'_>) -> Option<Node<'_>> {
    let mut walk = block.walk();
    let first = block.named_children(&mut walk).find(|it| it.kind() != "comment")?;
    let string = (first.kind() == "expression_statement").then(|| first.named_child(0))??;
    (string.kind() == "string").then_some(string)
}

/// What the literal of a docstring says.
fn python_doc(literal: &str) -> String {
    let bare = literal.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let quotes = if bare.starts_with("\"\"\"") || bare.starts_with("'''") { 3 } else { 1 };
    let said = bare.get(quotes..bare.len().saturating_sub(quotes)).unwrap_or_default();
    said.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}
