//! Finds the functions of a package with tree-sitter, without toolgate's own chunks, so that a
//! change of those never changes the evaluation set.

mod commented;

use std::ops::Range;
use std::path::Path;

use anyhow::Context;
use tree_sitter::{Node, Parser, Tree};

use super::{PackageFunction, PackageLanguage};

/// Function with the text of its doc comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentedFunction {
    pub unit: PackageFunction,
    /// Doc comment of the function, without comment marks, or an empty string.
    pub doc: String,
    /// First and last line of the function, from 1.
    pub lines: (u32, u32),
}

/// File whose comments and docstrings are blanked out. Line numbers are those of the original file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWithoutComments {
    pub path: String,
    pub text: String,
    /// First and last line of each function, from 1, in the order of [`parse_package`].
    pub functions: Vec<(u32, u32)>,
}

/// Largest size of a source file in bytes. Larger files are skipped as generated code.
const FILE_BYTES_MAX: u64 = 1_000_000;

/// Returns all functions of the package in `folder`. Their files are sorted by path.
pub fn parse_package(
    folder: &Path,
    lang: PackageLanguage,
) -> anyhow::Result<Vec<DocumentedFunction>> {
    let mut functions = Vec::new();
    for (path, text) in source_files(folder, lang)? {
        functions.extend(parse_file(&path, &text, lang)?);
    }
    Ok(functions)
}

/// Returns the source files of the package in `folder` without comments, sorted by path.
pub fn strip_package(
    folder: &Path,
    lang: PackageLanguage,
) -> anyhow::Result<Vec<FileWithoutComments>> {
    let mut files = Vec::new();
    for (path, text) in source_files(folder, lang)? {
        let functions = parse_file(&path, &text, lang)?.into_iter().map(|it| it.lines).collect();
        let text = blank_comments(&text, lang)?;
        files.push(FileWithoutComments { path, text, functions });
    }
    Ok(files)
}

/// Returns the path and text of each source file of the language `lang` below `folder`, sorted by
/// path.
fn source_files(folder: &Path, lang: PackageLanguage) -> anyhow::Result<Vec<(String, String)>> {
    let mut paths = Vec::new();
    collect_files(folder, "", lang, &mut paths)?;
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let file = folder.join(&path);
        if std::fs::metadata(&file)?.len() > FILE_BYTES_MAX {
            continue;
        }
        // Files that are not UTF-8 are test data.
        let Ok(text) = String::from_utf8(std::fs::read(&file)?) else { continue };
        files.push((path, text));
    }
    Ok(files)
}

/// Replaces comments and docstrings in `text` by nothing, except for their line breaks.
fn blank_comments(text: &str, lang: PackageLanguage) -> anyhow::Result<String> {
    let mut comments = Vec::new();
    collect_comments(parse_tree(text, lang)?.root_node(), &mut comments);
    let mut blanked = String::with_capacity(text.len());
    let mut position = 0;
    for comment in comments {
        blanked.push_str(&text[position..comment.start.max(position)]);
        blanked.extend(text[comment.clone()].chars().filter(|c| *c == '\n'));
        position = comment.end.max(position);
    }
    blanked.push_str(&text[position..]);
    Ok(blanked)
}

/// Returns the functions in `text`, the content of the file at `path`.
pub fn parse_file(
    path: &str,
    text: &str,
    lang: PackageLanguage,
) -> anyhow::Result<Vec<DocumentedFunction>> {
    let tree = parse_tree(text, lang)?;
    let mut walk = FunctionSyntaxWalk { path, text, within: Vec::new(), found: Vec::new() };
    match lang {
        PackageLanguage::Rust => walk.rust(tree.root_node()),
        PackageLanguage::Python => walk.python(tree.root_node()),
        PackageLanguage::JavaScript | PackageLanguage::Go | PackageLanguage::Ruby => {
            walk.collect_commented(tree.root_node(), lang);
        }
    }
    Ok(walk.found)
}

fn parse_tree(text: &str, lang: PackageLanguage) -> anyhow::Result<Tree> {
    let mut parser = Parser::new();
    let language = match lang {
        PackageLanguage::Rust => tree_sitter_rust::LANGUAGE.into(),
        PackageLanguage::Python => tree_sitter_python::LANGUAGE.into(),
        PackageLanguage::JavaScript => tree_sitter_javascript::LANGUAGE.into(),
        PackageLanguage::Go => tree_sitter_go::LANGUAGE.into(),
        PackageLanguage::Ruby => tree_sitter_ruby::LANGUAGE.into(),
    };
    parser
        .set_language(&language)
        .map_err(|err| anyhow::anyhow!("cannot load the grammar: {err}"))?;
    parser.parse(text, None).context("the parser returned no tree")
}

/// Adds the paths of the source files in the subfolder `beneath` of `folder` to `files`,
/// recursively.
fn collect_files(
    folder: &Path,
    beneath: &str,
    lang: PackageLanguage,
    files: &mut Vec<String>,
) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder.join(beneath))? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if beneath.is_empty() { name.clone() } else { format!("{beneath}/{name}") };
        let is_source = match lang {
            PackageLanguage::Rust => name.ends_with(".rs") && name != "build.rs",
            PackageLanguage::Python => name.ends_with(".py"),
            PackageLanguage::JavaScript => {
                let ends = [".js", ".mjs", ".cjs"];
                ends.iter().any(|it| name.ends_with(it)) && !name.contains(".min.")
            }
            PackageLanguage::Go => name.ends_with(".go") && !name.ends_with(".pb.go"),
            PackageLanguage::Ruby => name.ends_with(".rb"),
        };
        let kind = entry.file_type()?;
        let is_spec = commented::is_spec(&name, lang);
        if kind.is_dir() && !is_left_out(&name) && !is_spec {
            collect_files(folder, &path, lang, files)?;
        } else if kind.is_file() && is_source && !is_test(&name) && !is_spec {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns true if a folder called `name` contains tests, examples or vendored code.
fn is_left_out(name: &str) -> bool {
    let names = [
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
    names.contains(&name) || name.starts_with('.') || name.ends_with(".dist-info")
}

/// Returns true if a file called `name` is a test.
fn is_test(name: &str) -> bool {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    ["test", "tests", "conftest"].contains(&stem)
        || ["test_", "tests_"].iter().any(|it| stem.starts_with(it))
        || ["_test", "_tests"].iter().any(|it| stem.ends_with(it))
}

/// Walk through the syntax tree of a file that collects its functions with their comments.
struct FunctionSyntaxWalk<'t> {
    path: &'t str,
    text: &'t str,
    within: Vec<String>,
    found: Vec<DocumentedFunction>,
}

impl<'t> FunctionSyntaxWalk<'t> {
    fn rust(&mut self, list: Node<'_>) {
        let mut doc = String::new();
        let mut is_test = false;
        for child in list.named_children(&mut list.walk()) {
            match child.kind() {
                "line_comment" | "block_comment" => {
                    if let Some(text) = rust_doc(self.text_of(child)) {
                        doc.push_str(&text);
                    }
                    continue;
                }
                "attribute_item" => {
                    let attribute = self.text_of(child);
                    is_test |= ["#[test", "#[cfg(test)", "#[bench", "::test]", "::test("]
                        .iter()
                        .any(|it| attribute.contains(it));
                    if let Some(text) = attribute.strip_prefix("#[doc = \"") {
                        doc.push_str(text.trim_end_matches("\"]"));
                        doc.push('\n');
                    }
                    continue;
                }
                "function_item" if !is_test => self.function(child, &doc),
                "impl_item" | "trait_item" | "mod_item" if !is_test => self.enter_rust_item(child),
                _ => {}
            }
            doc.clear();
            is_test = false;
        }
    }

    fn enter_rust_item(&mut self, item: Node<'_>) {
        let Some(body) = item.child_by_field_name("body") else { return };
        let name_of = |field: &str| {
            let text = item.child_by_field_name(field).map(|it| self.text_of(it))?;
            let name = text.split('<').next().unwrap_or(text);
            Some(name.rsplit("::").next().unwrap_or(name).trim().to_owned())
        };
        let names: Vec<String> =
            ["name", "type", "trait"].into_iter().filter_map(name_of).collect();
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
                    let doc = doc.map(|it| python_doc(self.text_of(it))).unwrap_or_default();
                    self.function(item, &doc);
                }
                "class_definition" => {
                    let name = item.child_by_field_name("name").map_or("", |it| self.text_of(it));
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
        self.named_function(item, name, body, doc);
    }

    /// Adds the function `item`, whose syntax nodes `name` and `body` are its name and body. Skips
    /// tests.
    fn named_function(&mut self, item: Node<'_>, name: Node<'_>, body: Node<'_>, doc: &str) {
        let mut comments = Vec::new();
        collect_comments(item, &mut comments);
        let head = self.text_without(item.start_byte()..body.start_byte(), &comments);
        let name = self.text_of(name);
        // Tests of Python may be in any file.
        if name.starts_with("test_") {
            return;
        }
        let unit = PackageFunction {
            name: name.to_owned(),
            within: self.within.join(" "),
            path: self.path.to_owned(),
            head: head.split_whitespace().collect::<Vec<_>>().join(" "),
            body: self.text_without(item.byte_range(), &comments),
        };
        let row = |row: usize| u32::try_from(row + 1).unwrap_or(u32::MAX);
        let lines = (row(item.start_position().row), row(item.end_position().row));
        self.found.push(DocumentedFunction { unit, doc: doc.trim().to_owned(), lines });
    }

    fn text_of(&self, node: Node<'_>) -> &'t str {
        &self.text[node.byte_range()]
    }

    /// Returns the text of `range` without the ranges in `comments`, which must be sorted, and
    /// without blank lines.
    fn text_without(&self, range: Range<usize>, comments: &[Range<usize>]) -> String {
        let mut text = String::new();
        let mut position = range.start;
        for comment in comments.iter().filter(|it| it.start >= range.start) {
            if comment.start >= range.end {
                break;
            }
            text.push_str(&self.text[position..comment.start.max(position)]);
            // A line comment of Rust may include its line break.
            if self.text[comment.clone()].ends_with('\n') {
                text.push('\n');
            }
            position = comment.end.max(position);
        }
        text.push_str(&self.text[position.min(range.end)..range.end]);
        let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Adds the ranges of comments and of strings that are statements below `node` to `comments`.
fn collect_comments(node: Node<'_>, comments: &mut Vec<Range<usize>>) {
    let is_comment = match node.kind() {
        "line_comment" | "block_comment" | "comment" => true,
        "expression_statement" => {
            let kind = node.named_child(0).map(|it| it.kind());
            node.named_child_count() == 1
                && matches!(kind, Some("string" | "concatenated_string"))
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
        collect_comments(child, comments);
    }
}

/// Returns the text of a Rust comment if it is a doc comment for the next item.
fn rust_doc(comment: &str) -> Option<String> {
    if let Some(line) = comment.strip_prefix("///") {
        return (!line.starts_with('/')).then(|| format!("{}\n", line.trim()));
    }
    let block = comment.strip_prefix("/**")?.strip_suffix("*/")?;
    let lines = block.lines().map(|line| line.trim().trim_start_matches('*').trim());
    (!block.starts_with('*')).then(|| lines.collect::<Vec<_>>().join("\n"))
}

/// Returns the syntax node of the docstring of the function whose body is `block`.
fn docstring(block: Node<'_>) -> Option<Node<'_>> {
    let mut walk = block.walk();
    let first = block.named_children(&mut walk).find(|it| it.kind() != "comment")?;
    let string = (first.kind() == "expression_statement").then(|| first.named_child(0))??;
    (string.kind() == "string").then_some(string)
}

/// Returns the text of a Python docstring without its quotes and indentation.
fn python_doc(literal: &str) -> String {
    let literal_start = literal.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let quotes =
        if literal_start.starts_with("\"\"\"") || literal_start.starts_with("'''") { 3 } else { 1 };
    let text =
        literal_start.get(quotes..literal_start.len().saturating_sub(quotes)).unwrap_or_default();
    text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanked_comments_keep_the_lines_of_functions() {
        let rust = "/// Heats\n/// it.\nfn heat() {\n    on(); // now\n}\n";
        assert_eq!(
            blank_comments(rust, PackageLanguage::Rust).unwrap(),
            "\n\nfn heat() {\n    on(); \n}\n"
        );
        let functions = parse_file("a.rs", rust, PackageLanguage::Rust).unwrap();
        assert_eq!(functions[0].lines, (3, 5));
    }
}
