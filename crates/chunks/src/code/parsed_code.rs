//! Holds the definitions that a parse finds in a text, and encodes them to send them between
//! processes.

use std::ops::Range;

use crate::lines::LineIndexedText;
use crate::outline::{OutlinePart, OutlinePartKind, TextOutline, limit_names};

/// Maximum total length, in bytes, of the enclosing names that a definition has itself and those
/// that it adds. The names are copied to all definitions inside it.
const SCOPE_BYTES_MAX: usize = 64 << 10;

/// Definitions that a parse found in a text.
#[derive(Debug)]
pub(super) struct ParsedDefinitions {
    /// The definitions in the text, in any order and not yet nested.
    pub(super) parts: Vec<OutlinePart>,
    /// Nesting depth of each line, see [`TextOutline::line_depths`].
    pub(super) line_depths: Vec<u8>,
    /// A namespace or package declaration that applies to the rest of the file: its line and its
    /// names.
    pub(super) package: Option<(usize, Vec<String>)>,
}

impl ParsedDefinitions {
    /// Nests the definitions and returns them as an outline.
    pub(super) fn into_outline(self) -> TextOutline {
        let Self { parts, line_depths, package } = self;
        let mut outline = TextOutline::new(parts, line_depths);
        for &at in &outline.top_level {
            let part = &mut outline.parts[at];
            if let Some((line, names)) = &package
                && part.start > *line
            {
                part.outer_names = [&names[..], &part.outer_names[..]].concat();
            }
        }
        outline
    }

    /// Appends the encoded definitions to `bytes`.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let Self { parts, line_depths, package } = self;
        put_number(bytes, parts.len());
        for part in parts {
            put_part(bytes, part);
        }
        put_bytes(bytes, line_depths);
        bytes.push(u8::from(package.is_some()));
        if let Some((line, names)) = package {
            put_number(bytes, *line);
            put_strings(bytes, names);
        }
    }

    /// Decodes definitions of the text in `lines`. Returns `None` if `bytes` is not exactly one
    /// list of definitions with all positions inside the text. The process that sent `bytes` is not
    /// trusted.
    pub(super) fn decode(bytes: &[u8], lines: &LineIndexedText<'_>) -> Option<Self> {
        let mut reader = EncodedDefinitionsReader(bytes);
        let mut parts = Vec::new();
        for _ in 0..reader.read_number()? {
            parts.push(reader.read_part(lines)?);
        }
        let line_depths = reader.read_bytes()?.to_vec();
        let package = match reader.read_byte()? {
            0 => None,
            1 => Some((reader.read_number()?, limit_names(reader.read_strings()?))),
            _ => return None,
        };
        let is_whole = reader.0.is_empty() && line_depths.len() == lines.len();
        is_whole.then_some(Self { parts, line_depths, package })
    }
}

fn put_part(bytes: &mut Vec<u8>, part: &OutlinePart) {
    let OutlinePart {
        first,
        start,
        last,
        kind,
        names,
        outer_names,
        scope,
        head,
        doc,
        doc_bytes,
        // Parts are nested later.
        inner: _,
        outer: _,
    } = part;
    for line in [first, start, last] {
        put_number(bytes, *line);
    }
    bytes.push(kind_number(*kind));
    for names in [names, outer_names, scope] {
        put_strings(bytes, names);
    }
    for text in [head, doc] {
        put_bytes(bytes, text.as_bytes());
    }
    put_number(bytes, doc_bytes.len());
    for range in doc_bytes {
        put_number(bytes, range.start);
        put_number(bytes, range.end);
    }
}

/// Appends `number` to `bytes` as four bytes. Texts are so short that every number fits.
fn put_number(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_bytes(bytes: &mut Vec<u8>, text: &[u8]) {
    put_number(bytes, text.len());
    bytes.extend_from_slice(text);
}

fn put_strings(bytes: &mut Vec<u8>, texts: &[String]) {
    put_number(bytes, texts.len());
    for text in texts {
        put_bytes(bytes, text.as_bytes());
    }
}

fn kind_number(kind: OutlinePartKind) -> u8 {
    match kind {
        OutlinePartKind::Function => 0,
        OutlinePartKind::Type => 1,
        OutlinePartKind::Scope => 2,
        OutlinePartKind::Value => 3,
        OutlinePartKind::Section => 4,
        OutlinePartKind::Key => 5,
    }
}

fn kind_with_number(number: u8) -> Option<OutlinePartKind> {
    Some(match number {
        0 => OutlinePartKind::Function,
        1 => OutlinePartKind::Type,
        2 => OutlinePartKind::Scope,
        3 => OutlinePartKind::Value,
        4 => OutlinePartKind::Section,
        5 => OutlinePartKind::Key,
        _ => return None,
    })
}

/// Reader of an encoded list of definitions. Allocates only what the bytes contain.
struct EncodedDefinitionsReader<'b>(&'b [u8]);

impl<'b> EncodedDefinitionsReader<'b> {
    fn read_byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn read_number(&mut self) -> Option<usize> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        usize::try_from(u32::from_le_bytes(*number)).ok()
    }

    fn read_bytes(&mut self) -> Option<&'b [u8]> {
        let length = self.read_number()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn read_string(&mut self) -> Option<String> {
        Some(str::from_utf8(self.read_bytes()?).ok()?.to_owned())
    }

    fn read_strings(&mut self) -> Option<Vec<String>> {
        let mut texts = Vec::new();
        for _ in 0..self.read_number()? {
            texts.push(self.read_string()?);
        }
        Some(texts)
    }

    fn read_range(&mut self) -> Option<Range<usize>> {
        Some(self.read_number()?..self.read_number()?)
    }

    /// Reads one definition in the text of `lines`, and checks all its positions. Returns `None` if
    /// the bytes are not a valid definition.
    fn read_part(&mut self, lines: &LineIndexedText<'_>) -> Option<OutlinePart> {
        let [first, start, last] = [self.read_number()?, self.read_number()?, self.read_number()?];
        let kind = kind_with_number(self.read_byte()?)?;
        let names = self.read_strings()?;
        let outer_names = self.read_strings()?;
        let scope = self.read_strings()?;
        let head = self.read_string()?;
        let doc = self.read_string()?;
        let mut doc_bytes = Vec::new();
        for _ in 0..self.read_number()? {
            doc_bytes.push(self.read_range()?);
        }
        let is_in_text = first <= start
            && start <= last
            && last < lines.len()
            && doc_bytes.iter().all(|range| lines.text.get(range.clone()).is_some())
            && doc_bytes.is_sorted_by(|before, after| before.end <= after.start);
        let scope_bytes: usize = outer_names.iter().chain(&scope).map(String::len).sum();
        (is_in_text && scope_bytes <= SCOPE_BYTES_MAX).then(|| OutlinePart {
            start,
            outer_names,
            scope,
            head,
            doc,
            doc_bytes,
            ..OutlinePart::new(kind, first, last, names)
        })
    }
}
