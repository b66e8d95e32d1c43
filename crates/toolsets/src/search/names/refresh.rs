//! Updates definitions from the index to the current content of their files.

use std::collections::BTreeMap;
use std::path::Path;

use toolgate_chunks::{CodeSymbol, SymbolDetectionMethod, list_symbols};
use toolgate_contract::{ToolError, ToolErrorKind};
use toolgate_search::index::NamedDefinition;

use super::FoundDefinition;
use toolgate_world::Root;
use toolgate_world::root::DiskWorkMonitor;

/// The maximum total size of files that are parsed for one page of definitions, in bytes. In
/// further files, definitions are guessed line by line.
const PARSED_BYTES_MAX: usize = 512 << 10;

/// Returns the definitions of `page` as in the current files, without definitions that no longer
/// exist.
///
/// # Errors
/// Fails if the call is canceled.
pub(super) fn refresh_definitions(
    root: &Root,
    page: Vec<NamedDefinition>,
    watch: &DiskWorkMonitor,
) -> Result<Vec<FoundDefinition>, ToolError> {
    let mut files: BTreeMap<String, Option<FileDefinitions>> = BTreeMap::new();
    let mut left = PARSED_BYTES_MAX;
    let mut definitions: Vec<FoundDefinition> = Vec::new();
    for named in page {
        watch.check_cancelled()?;
        let path = named.summary.path.clone();
        let read = match files.get(&path) {
            Some(known) => known,
            None => {
                let read = FileDefinitions::read(root, &path, &mut left, watch)?;
                files.entry(path).or_insert(read)
            }
        };
        let Some(definition) = read.as_ref().and_then(|it| it.find(named)) else { continue };
        // If one of two definitions with the same name is gone, both lead to the other.
        if !definitions.contains(&definition) {
            definitions.push(definition);
        }
    }
    Ok(definitions)
}

/// Current definitions in a file, which may differ from the index.
struct FileDefinitions {
    symbols: Vec<CodeSymbol>,
    etag: String,
}

impl FileDefinitions {
    /// Reads the definitions in the file at `path`. Returns `None` if the file cannot be read.
    /// Subtracts the parsed bytes from `left`. Fails if the call is canceled.
    fn read(
        root: &Root,
        path: &str,
        left: &mut usize,
        watch: &DiskWorkMonitor,
    ) -> Result<Option<Self>, ToolError> {
        let Ok(file) = root.open_walked(Path::new(path)) else { return Ok(None) };
        let content = match file.read(0, file.meta().size(), watch) {
            Ok(content) => content,
            Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
            Err(_) => return Ok(None),
        };
        let etag = root.etag_of_content(&content, file.meta()).to_string();
        let Ok(text) = String::from_utf8(content) else { return Ok(None) };
        let precision = if text.len() <= *left {
            SymbolDetectionMethod::Grammar
        } else {
            SymbolDetectionMethod::LineByLine
        };
        *left = left.saturating_sub(text.len());
        Ok(Some(Self { symbols: list_symbols(path, &text, precision), etag }))
    }

    /// Returns the current state of the definition `named`. Returns `None` if the definition no
    /// longer exists.
    fn find(&self, named: NamedDefinition) -> Option<FoundDefinition> {
        let is_unchanged = named.summary.etag == self.etag;
        let indexed = FoundDefinition::from_index(named);
        let same_name = self.symbols.iter().filter(|it| it.name == indexed.name);
        if is_unchanged {
            let first = indexed.line_start;
            let last = indexed.line_end;
            let mut overlapping = same_name.filter(|it| it.first <= last && first <= it.last);
            // The index is right about an unchanged file, even if a guess finds nothing here.
            return Some(match overlapping.next() {
                Some(symbol) => indexed.move_to(symbol),
                None => indexed,
            });
        }
        let is_elsewhere = |it: &&CodeSymbol| it.within != indexed.container;
        let symbol =
            same_name.min_by_key(|it| (is_elsewhere(it), it.first.abs_diff(indexed.line_start)))?;
        Some(FoundDefinition { etag: self.etag.clone(), ..indexed.move_to(symbol) })
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use toolgate_chunks::ChunkKind;
    use toolgate_search::ChunkSummary;
    use toolgate_search::index::NameMatchKind;

    use super::*;

    /// Returns a definition that an index of an earlier version of the file has. `within` is the
    /// name of the definition that contains it.
    fn indexed(name: &str, first: u32, within: &str) -> NamedDefinition {
        let summary = ChunkSummary {
            path: "a.py".into(),
            first,
            last: first + 3,
            kind: ChunkKind::Function,
            names: vec![name.into()],
            within: vec![within.into()],
            head: String::new(),
            lang: None,
            tags: Vec::new(),
            etag: "another".into(),
            commit: None,
        };
        NamedDefinition { summary, name: name.into(), match_kind: NameMatchKind::Exact }
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
    fn in_a_changed_file_moved_definitions_are_found_and_removed_ones_left_out() {
        let folder = TempDir::new().unwrap();
        let text = "import os\n\n\nclass A:\n    def go(self):\n        return 1\n\n\n\
            class B:\n    def go(self):\n        return 2\n";
        std::fs::write(folder.path().join("a.py"), text).unwrap();
        let root = Root::open(folder.path()).unwrap();
        let page = vec![indexed("go", 2, "B"), indexed("gone", 4, "A"), indexed("go", 90, "C")];
        let definitions = refresh_definitions(&root, page, &DiskWorkMonitor::default()).unwrap();
        let file = root.open_file("a.py").unwrap();
        let etag = root.etag_of_content(text.as_bytes(), file.meta()).to_string();
        let summaries: Vec<_> = definitions
            .iter()
            .map(|it| (it.name.as_str(), it.container.join("."), it.line, it.etag == etag))
            .collect();
        assert_eq!(summaries, [("go", "B".to_owned(), 10, true)]);
    }
}
