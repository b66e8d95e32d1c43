//! Cuts a file into chunks that follow its structure.

use crate::chunk::{ChunkKind, TextChunk};
use crate::cut::cut_chunks;
use crate::language::{FileClassification, FilePurpose, is_parsed_language};
use crate::lines::LineIndexedText;
use crate::outline::TextOutline;
use crate::{code, config_outline, guess, sections};

/// Splits `text`, the content of the file at `path`, into chunks.
pub fn chunks(path: &str, text: &str) -> Vec<TextChunk> {
    let lines = LineIndexedText::new(text);
    let (outline, loose) = outline_of(path, &lines);
    cut_chunks(&lines, &outline, loose)
}

/// Returns the outline of the file at `path` (its definitions or sections), and the kind of the
/// text that is outside of the outline.
pub(crate) fn outline_of(path: &str, lines: &LineIndexedText<'_>) -> (TextOutline, ChunkKind) {
    let text = lines.text;
    let sort = FileClassification::for_path(path);
    let lang = sort.lang.or_else(|| interpreter(text)).unwrap_or_default();
    let kind = if sort.lang.is_none() && !lang.is_empty() { FilePurpose::Code } else { sort.kind };
    match kind {
        FilePurpose::Code => {
            let lang = dialect(path, lang, text);
            let outline =
                is_parsed_language(lang).then(|| code::outline(path, lines, lang)).flatten();
            (outline.unwrap_or_else(|| guess::outline(lines)), ChunkKind::Code)
        }
        FilePurpose::Docs => (sections::outline(lines, lang), ChunkKind::Text),
        FilePurpose::Config => (config_outline::outline(lines, lang), ChunkKind::Key),
        FilePurpose::Other => (TextOutline::default(), ChunkKind::Text),
    }
}

/// Returns the language whose grammar parses the file at `path` with the content `text` in the
/// language `lang`. A `.tsx` file in `typescript`, for example, is parsed as `tsx`.
fn dialect<'l>(path: &str, lang: &'l str, text: &str) -> &'l str {
    let is_cpp = |line: &str| {
        let marks = ["class ", "namespace ", "template", "public:", "private:", "using "];
        marks.iter().any(|mark| line.trim_start().starts_with(mark))
    };
    match lang {
        "typescript" if path.ends_with(".tsx") => "tsx",
        "c" if path.ends_with(".h") && text.lines().any(is_cpp) => "cpp",
        _same => lang,
    }
}

/// Returns the language of the interpreter in the `#!` line of `text`. `None` if the line is
/// missing or the interpreter is unknown.
fn interpreter(text: &str) -> Option<&'static str> {
    let first = text.strip_prefix("#!")?.lines().next()?;
    let program = first.rsplit(['/', ' ']).find(|word| !word.starts_with('-'))?;
    ["sh", "python", "ruby", "node"]
        .into_iter()
        .zip(["shell", "python", "ruby", "javascript"])
        .find(|(name, _)| {
            program.trim_end_matches(|c: char| c == '.' || c.is_numeric()).ends_with(name)
        })
        .map(|(_, lang)| lang)
}
