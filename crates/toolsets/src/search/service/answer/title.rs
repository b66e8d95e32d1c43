//! Finds the title of a document: from its front matter, or its first heading.

use serde_json::{Map, Value};
use toolgate_chunks::{ChunkKind, FileClass, FilePurpose, SymbolPrecision, list_symbols};

use crate::front_matter;

/// The part of a document that is searched for a heading, in bytes.
const HEADING_BYTES_MAX: usize = 64 << 10;

/// Returns the title of the document at `path` with the text `read`.
pub(super) fn document_title(path: &str, read: &str) -> Option<String> {
    if FileClass::for_path(path).kind != FilePurpose::Docs {
        return None;
    }
    let head = front_matter::split_if_any(read).map(|parts| parts.head).unwrap_or_default();
    let said: Option<Map<String, Value>> = front_matter::parse(head, &[]).ok();
    let said = said.as_ref().and_then(|it| it.get("title")?.as_str()).map(str::to_owned);
    let heading = || {
        let near = &read[..read.floor_char_boundary(HEADING_BYTES_MAX)];
        let headings = list_symbols(path, near, SymbolPrecision::LineByLine).into_iter();
        headings.filter(|it| it.kind == ChunkKind::Section).map(|it| it.name).next()
    };
    said.or_else(heading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: Option<&str>) {
        assert_eq!(document_title(path, text).as_deref(), expected, "{path}");
    }

    #[test]
    fn a_document_is_called_as_it_says_first() {
        check("a.md", "---\ntitle: Said\n---\n# First\n", Some("Said"));
        check("a.md", "Before.\n\n# First\n\n## Second\n\nText.\n", Some("First"));
        check("a.md", "## Deep\n\n# High\n", Some("Deep"));
        check("a.rst", "First\n=====\n\nText.\n", Some("First"));
        check("a.md", "No heading.\n", None);
        check("a.rs", "# First\n", None);
    }

    #[test]
    fn the_title_of_a_long_document_is_told_by_its_beginning() {
        let text = "Some words of it.\n".repeat(1 << 16);
        check("a.md", &format!("# First\n\n{text}"), Some("First"));
        check("a.md", &format!("{text}\n# Last\n"), None);
    }
}
