//! Finds the title of a document: from its front matter, or its first heading.

use serde_json::{Map, Value};
use toolgate_chunks::{
    ChunkKind, FileClassification, FilePurpose, SymbolDetectionMethod, list_symbols,
};

use crate::front_matter;

/// The number of bytes at the start of a document that are searched for a heading.
const HEADING_BYTES_MAX: usize = 64 << 10;

/// Returns the title of the document at `path` with the content `text`. `None` if the document has
/// no title, or the file is not documentation.
pub(super) fn document_title(path: &str, text: &str) -> Option<String> {
    if FileClassification::for_path(path).kind != FilePurpose::Docs {
        return None;
    }
    let head = front_matter::split_if_any(text).map(|parts| parts.head).unwrap_or_default();
    let fields: Option<Map<String, Value>> = front_matter::parse(head, &[]).ok();
    let title = fields.as_ref().and_then(|it| it.get("title")?.as_str()).map(str::to_owned);
    let heading = || {
        let beginning = &text[..text.floor_char_boundary(HEADING_BYTES_MAX)];
        let headings = list_symbols(path, beginning, SymbolDetectionMethod::LineByLine).into_iter();
        headings.filter(|it| it.kind == ChunkKind::Section).map(|it| it.name).next()
    };
    title.or_else(heading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: Option<&str>) {
        assert_eq!(document_title(path, text).as_deref(), expected, "{path}");
    }

    #[test]
    fn the_title_is_from_the_front_matter_or_the_first_heading() {
        check("a.md", "---\ntitle: Said\n---\n# First\n", Some("Said"));
        check("a.md", "Before.\n\n# First\n\n## Second\n\nText.\n", Some("First"));
        check("a.md", "## Deep\n\n# High\n", Some("Deep"));
        check("a.rst", "First\n=====\n\nText.\n", Some("First"));
        check("a.md", "No heading.\n", None);
        check("a.rs", "# First\n", None);
    }

    #[test]
    fn the_title_of_a_long_document_is_from_its_beginning() {
        let text = "Some words of it.\n".repeat(1 << 16);
        check("a.md", &format!("# First\n\n{text}"), Some("First"));
        check("a.md", &format!("{text}\n# Last\n"), None);
    }
}
