//! `search.names`: finds definitions by name.

mod refresh;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_chunks::{ChunkKind, CodeSymbol};
use toolgate_contract::printable::escape_line;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};
use toolgate_search::index::{NameMatchKind, NamedDefinition};
use toolgate_search::{ChunkSummary, DocumentFilter};

use super::index_status::partial_line;
use super::service::{SearchService, distinct_tags, explain_narrowing, resolve_prefix};
use super::{IndexState, IndexStateReport};
use crate::counted::counted;
use crate::files::cursor;
use refresh::refresh_definitions;

const LIMIT_MAX: usize = 100;
/// The maximum number of definitions to request from a search engine. Engines return fewer.
const DEFINITIONS_MAX: usize = 20_000;
/// The maximum number of definitions that a search engine returns for each kind of match. If an
/// answer has this many, more definitions may exist.
const ENGINE_MATCHES_MAX: usize = 2_000;
/// The longest name to search for, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The tool `search.names`.
pub struct SearchNames {
    pub(super) service: Arc<SearchService>,
}

/// Input of `search.names`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchNamesInput {
    /// E.g. `parse_header` or `Session::new`.
    query: String,
    /// The namespace; default: the whole workspace.
    namespace: Option<String>,
    /// Folder or file to search.
    path: Option<String>,
    /// Only files with all of these tags: a language such as `rust`, or `code`, `docs`, `config`,
    /// `test`, `example`.
    #[serde(default)]
    tags: Vec<String>,
    /// Kinds of definitions to find.
    #[serde(default)]
    kinds: Vec<DefinitionKind>,
    /// Maximum definitions.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = 100))]
    limit: usize,
    /// Cursor from the previous page.
    cursor: Option<String>,
}

/// Kind of definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum DefinitionKind {
    Function,
    Type,
    Code,
    Section,
    Key,
    Text,
}

/// Similarity of a name to the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum NameMatchMode {
    /// Equals the query.
    Exact,
    /// Equal except for upper and lower case.
    Case,
    /// Begins with the query.
    Prefix,
    /// Has all words of the query.
    Words,
    /// Differs from the query by a letter or two.
    Misspelt,
}

/// Output of `search.names`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SearchNamesOutput {
    /// Best match first: exact, different case, prefix, words, misspelt. Functions and types come
    /// first.
    definitions: Vec<FoundDefinition>,
    /// True if there are more definitions. If `cursor` is also null, there are too many definitions
    /// to list: set `path` or `tags`.
    truncated: bool,
    /// The `cursor` of the next page; null at the end.
    cursor: Option<String>,
    /// The reason why nothing was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// State of the searched index.
    index: IndexStateReport,
}

/// A definition that the search found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct FoundDefinition {
    /// The name of the definition.
    name: String,
    /// Similarity to the query.
    likeness: NameMatchMode,
    /// The kind of the definition.
    kind: DefinitionKind,
    /// The enclosing definitions, outermost first.
    container: Vec<String>,
    /// The file, relative to the workspace or to the folder of its namespace; for a document, its
    /// id.
    path: String,
    /// The line of the definition, from 1.
    line: u32,
    /// The first line, comments above included.
    line_start: u32,
    /// The last line of the definition.
    line_end: u32,
    /// The start of the definition, up to its body, if known.
    head: Option<String>,
    /// The language, if known.
    lang: Option<String>,
    /// Tags of the file.
    tags: Vec<String>,
    /// The etag of the file.
    etag: String,
}

impl Tool for SearchNames {
    const NAME: &'static str = "search.names";
    const TITLE: &'static str = "Search names";
    const DESCRIPTION: &'static str = "Find the definition of a function, type, constant, section \
        or key by its name, or a part of it.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = &[
        ("name", "query"),
        ("symbol", "query"),
        ("dir", "path"),
        ("directory", "path"),
        ("folder", "path"),
    ];
    const RARE_ARGUMENTS: &'static [&'static str] = &["namespace", "tags"];
    const IDEMPOTENT: bool = true;
    type Input = SearchNamesInput;
    type Output = SearchNamesOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let cursor_key = input.validate()?;
        let SearchNamesInput { query, namespace, path, tags, kinds, limit, cursor } = input;
        let namespace = namespace.as_deref();
        let after = match cursor::given_cursor(cursor.as_deref()) {
            Some(given) => {
                LastListedDefinition::decode(&cursor::decode_cursor(&cursor_key, given)?)
            }
            None => LastListedDefinition::default(),
        };
        // Documents that callers put have no file.
        let root = self.service.resolve_files(namespace).await.ok().map(|(root, _)| root);
        let prefix = match (path, &root) {
            (Some(prefix), Some(root)) => Some(resolve_prefix(root, &prefix)?),
            (prefix, _) => prefix,
        };
        let tags = distinct_tags(tags, "/tags")?;
        let prefixes = prefix.iter().filter(|it| !it.is_empty()).cloned().collect();
        let filter = DocumentFilter { prefixes, tags: tags.clone() };
        let search = self.service.find_definitions(ctx, namespace, &query, filter, DEFINITIONS_MAX);
        let (found, index) = search.await?;
        let may_be_more = found.len() >= ENGINE_MATCHES_MAX;
        let has_kind = |it: &NamedDefinition| {
            kinds.is_empty() || kinds.contains(&DefinitionKind::from_chunk_kind(it.summary.kind))
        };
        let is_known = !found.is_empty();
        let found: Vec<NamedDefinition> = found.into_iter().filter(has_kind).collect();
        let narrowing = match &root {
            Some(root) if !is_known => explain_narrowing(ctx, root, prefix.as_deref(), &tags).await,
            Some(_) | None => None,
        };
        let is_certain = found.is_empty() && !may_be_more && index.complete;
        let hint = narrowing.or_else(|| is_certain.then(|| explain_no_name(&query, is_known)));
        let begin = after.next_index(&found);
        let page: Vec<NamedDefinition> = found.iter().skip(begin).take(limit).cloned().collect();
        let end = begin + page.len();
        let is_last = end >= found.len();
        let last = page.last().map(|it| LastListedDefinition::from_named(end, it));
        let definitions = match root {
            Some(root) => {
                root.run_blocking(ctx, |root, watch| refresh_definitions(root, page, watch)).await?
            }
            None => page.into_iter().map(FoundDefinition::from_index).collect(),
        };
        let cursor =
            last.filter(|_| !is_last).map(|it| cursor::encode_cursor(&cursor_key, &it.encode()));
        let truncated = !is_last || may_be_more;
        Ok(SearchNamesOutput { definitions, truncated, cursor, hint, index })
    }

    fn result_text(output: &SearchNamesOutput) -> ResultText {
        let SearchNamesOutput { definitions, truncated, cursor, hint, index } = output;
        let mut body = partial_line(index);
        for it in definitions {
            let FoundDefinition { name, container, path, line, line_end, head, .. } = it;
            let container: String = container.iter().map(|it| format!("{it}.")).collect();
            let path = escape_line(path);
            let head = head.as_deref().map(|head| format!("\n  {head}")).unwrap_or_default();
            body += &format!("{path}:{line}-{line_end} {container}{name}{head}\n");
        }
        let mut note = match definitions.len() as u64 {
            0 => "no definition found".to_owned(),
            count => counted(count, "definition", "definitions"),
        };
        if definitions.first().is_some_and(|it| it.likeness == NameMatchMode::Misspelt) {
            note += "; no exact match, only similar names";
        }
        note += &format!("; {} searched", counted(index.files, "file", "files"));
        if !index.complete && index.state == IndexState::Ready {
            note += "; the index does not have all files";
        }
        if let Some(hint) = hint {
            note += &format!("; {hint}");
        }
        match cursor {
            Some(cursor) => note += &format!("; continue with cursor: {cursor}"),
            None if *truncated => {
                note += "; there may be more, but too many to list: set path or tags to find fewer";
            }
            None => {}
        }
        ResultText::from_body(body).with_note(note)
    }
}

/// Explains why a search for `query` found no definition. `is_known` is true if definitions were
/// found, but not of the requested `kinds`.
fn explain_no_name(query: &str, is_known: bool) -> String {
    let query = escape_line(query);
    match is_known {
        true => format!("no definition of these `kinds` has a name like `{query}`"),
        false => format!(
            "no definition in the searched files has a name like `{query}`; find other \
             occurrences with search_text, or describe it with search_semantic"
        ),
    }
}

impl SearchNamesInput {
    /// Checks the input. Returns a text with all inputs that determine the results, to bind the
    /// cursor to them.
    ///
    /// # Errors
    /// Fails if the name or the limit is invalid.
    fn validate(&self) -> Result<String, ToolError> {
        let Self { query, namespace, path, tags, kinds, limit, cursor: _ } = self;
        if query.trim().is_empty() || query.len() > NAME_BYTES_MAX {
            let message = format!("it must have 1 to {NAME_BYTES_MAX} bytes and not be blank");
            return Err(ToolError::invalid("/query", message));
        }
        if !query.chars().any(|c| c.is_alphanumeric() || c == '_') {
            let message =
                format!("`{query}` has no letter or digit; pass a name or the beginning of one");
            return Err(ToolError::invalid("/query", message));
        }
        if *limit == 0 || *limit > LIMIT_MAX {
            return Err(ToolError::invalid("/limit", format!("it must be from 1 to {LIMIT_MAX}")));
        }
        Ok(format!("names {query:?} {namespace:?} {path:?} {tags:?} {kinds:?}"))
    }
}

/// The last definition on the previous page of `search.names`, as stored in the cursor.
#[derive(Debug, Default, PartialEq, Eq)]
struct LastListedDefinition {
    /// The number of definitions on all pages so far, including this page.
    count: usize,
    line: u32,
    name: String,
    path: String,
}

impl LastListedDefinition {
    fn from_named(count: usize, named: &NamedDefinition) -> Self {
        let ChunkSummary { path, first, .. } = &named.summary;
        Self { count, line: *first, name: named.name.clone(), path: path.clone() }
    }

    /// Returns the index in `found` after this definition. If `found` does not contain this
    /// definition, returns the number of definitions on previous pages.
    fn next_index(&self, found: &[NamedDefinition]) -> usize {
        if self.count == 0 {
            return 0;
        }
        let at = found
            .iter()
            .position(|it| Self { count: self.count, ..Self::from_named(0, it) } == *self);
        at.map_or(self.count, |at| at + 1)
    }

    fn encode(&self) -> Vec<u8> {
        let Self { count, line, name, path } = self;
        format!("{count} {line} {name}\n{path}").into_bytes()
    }

    /// Parses the output of [`LastListedDefinition::encode`].
    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, path) = text.split_once('\n').unwrap_or_default();
        let mut words = head.splitn(3, ' ');
        let count = words.next().and_then(|it| it.parse().ok()).unwrap_or_default();
        let line = words.next().and_then(|it| it.parse().ok()).unwrap_or_default();
        let name = words.next().unwrap_or_default().to_owned();
        Self { count, line, name, path: path.to_owned() }
    }
}

impl FoundDefinition {
    /// Converts a definition from the index. If the definition shares a chunk with small
    /// neighbours, its lines are those of the chunk.
    fn from_index(named: NamedDefinition) -> Self {
        let NamedDefinition { summary, name, match_kind } = named;
        let ChunkSummary { path, first, last, kind, names, within, head, lang, tags, etag, .. } =
            summary;
        let is_main = names.first() == Some(&name);
        Self {
            name,
            likeness: NameMatchMode::from_match_kind(match_kind),
            kind: DefinitionKind::from_chunk_kind(kind),
            container: within,
            path,
            line: first,
            line_start: first,
            line_end: last,
            head: Some(head).filter(|head| is_main && !head.is_empty()),
            lang,
            tags,
            etag,
        }
    }

    /// Returns the definition with the lines, kind and container of `symbol`, its current state in
    /// the file.
    fn move_to(self, symbol: &CodeSymbol) -> Self {
        Self {
            kind: DefinitionKind::from_chunk_kind(symbol.kind),
            container: symbol.within.clone(),
            line: symbol.line,
            line_start: symbol.first,
            line_end: symbol.last,
            head: Some(symbol.head.clone()).filter(|head| !head.is_empty()),
            ..self
        }
    }
}

impl DefinitionKind {
    fn from_chunk_kind(kind: ChunkKind) -> Self {
        match kind {
            ChunkKind::Function => Self::Function,
            ChunkKind::Type => Self::Type,
            ChunkKind::Code => Self::Code,
            ChunkKind::Section => Self::Section,
            ChunkKind::Key => Self::Key,
            ChunkKind::Text => Self::Text,
        }
    }
}

impl NameMatchMode {
    fn from_match_kind(kind: NameMatchKind) -> Self {
        match kind {
            NameMatchKind::Exact => Self::Exact,
            NameMatchKind::CaseInsensitive => Self::Case,
            NameMatchKind::Prefix => Self::Prefix,
            NameMatchKind::Words => Self::Words,
            NameMatchKind::Misspelled => Self::Misspelt,
        }
    }
}

fn limit() -> usize {
    20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_the_last_definition() {
        let last = LastListedDefinition {
            count: 20,
            line: 7,
            name: "a b".into(),
            path: "x y/ü.rs".into(),
        };
        assert_eq!(LastListedDefinition::decode(&last.encode()), last);
    }
}
