//! `search.names`: where what is called so is defined.

mod now;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_chunks::{ChunkKind, Symbol};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};
use toolgate_search::index::{How, Named};
use toolgate_search::{Filter, Shown};

use super::Indexed;
use super::service::{Service, beneath, distinct_tags};
use crate::files::cursor;
use now::now;

const LIMIT_MAX: usize = 100;
/// More than engines look at, whatever the name.
const FOUND_MAX: usize = 20_000;
/// Engines look at this many by each way and do not say that there are more, so from here on there
/// may be.
const MORE_FROM: usize = 2_000;
const NAME_BYTES_MAX: usize = 256;

/// Searches for definitions.
pub struct Names {
    service: Arc<Service>,
}

/// What to look for, and where.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// What it is called, e.g. `parse_header`, `ParseHeader` or `Session::new`; the beginning of a
    /// name, words of it, or a name with a letter wrong will do.
    name: String,
    /// Which of the configured namespaces to search; without one, the whole workspace.
    namespace: Option<String>,
    /// Only files whose path begins with this, e.g. `src/auth`.
    path_prefix: Option<String>,
    /// Only files that have all of these: a language such as `rust`, and `code`, `docs`, `config`,
    /// `test` or `example`.
    #[serde(default)]
    tags: Vec<String>,
    /// Only these: functions, types, other code (constants, variables), sections of documents, or
    /// keys of configurations.
    #[serde(default)]
    kinds: Vec<Sort>,
    /// Give at most this many.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = 100))]
    limit: usize,
    /// The `cursor` of an answer to the same search, to go on after it.
    cursor: Option<String>,
}

/// What is defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Sort {
    Function,
    Type,
    Code,
    Section,
    Key,
    Text,
}

/// How a name is like what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Likeness {
    /// It is the same.
    Exact,
    /// It is the same but for capitals.
    Case,
    /// It begins so.
    Prefix,
    /// It has all the words.
    Words,
    /// It differs by a letter or two.
    Misspelt,
}

/// What was found.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// The likeliest first: the very name, another case, names that begin so, that have the words,
    /// and last those that are spelt almost so; functions and types before others.
    definitions: Vec<Definition>,
    /// Whether there are more. Where they are too many to be looked through, it is true with a
    /// `cursor` of null: narrow the search by `path_prefix` or `tags`.
    truncated: bool,
    /// To be passed as `cursor` to go on; null at the end.
    cursor: Option<String>,
    /// How much of the workspace was searched.
    index: Indexed,
}

/// Something that is defined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct Definition {
    /// What it is called.
    name: String,
    /// How that is like what was asked for.
    likeness: Likeness,
    /// What it is.
    kind: Sort,
    /// What it stands in, the outermost first.
    container: Vec<String>,
    /// The file, relative to the workspace, or to the root of its namespace, where only the search
    /// tools read; of a document its id.
    path: String,
    /// The line it begins in, from 1.
    line: u32,
    /// The first line, comments above it among them.
    line_start: u32,
    /// The last line.
    line_end: u32,
    /// How it reads up to its body, where that is known.
    head: Option<String>,
    /// The language, if it is one we know.
    lang: Option<String>,
    /// What kind of file it is in.
    tags: Vec<String>,
    /// The etag of the file.
    etag: String,
}

impl Names {
    /// The tool that asks `service`.
    pub fn new(service: &Arc<Service>) -> Self {
        Self { service: service.clone() }
    }
}

impl Tool for Names {
    const NAME: &'static str = "search.names";
    const TITLE: &'static str = "Search names";
    const ABOUT: &'static str = "Finds where a function, type, constant, section or key is defined \
        by its name: exact, in other capitals, its beginning, words of it, or misspelt. Gives its \
        head, its lines and what it stands in. For where it is used, search_text.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let question = input.check()?;
        let Input { name, namespace, path_prefix, tags, kinds, limit, cursor } = input;
        let namespace = namespace.as_deref();
        let after = match &cursor {
            Some(given) => Last::read(&cursor::read(&question, given)?),
            None => Last::default(),
        };
        // Documents that callers put are in no file.
        let root = self.service.place(namespace).await.ok().map(|(root, _)| root);
        let prefix = match (path_prefix, &root) {
            (Some(prefix), Some(root)) => Some(beneath(root, &prefix)?),
            (prefix, _) => prefix,
        };
        let prefixes = prefix.into_iter().filter(|it| !it.is_empty()).collect();
        let filter = Filter { prefixes, tags: distinct_tags(tags, "/tags")? };
        let named = self.service.named(ctx, namespace, &name, filter, FOUND_MAX);
        let (found, index) = named.await?;
        let may_be_more = found.len() >= MORE_FROM;
        let is_meant = |it: &Named| kinds.is_empty() || kinds.contains(&Sort::of(it.shown.kind));
        let found: Vec<Named> = found.into_iter().filter(is_meant).collect();
        let begin = after.position(&found);
        let page: Vec<Named> = found.iter().skip(begin).take(limit).cloned().collect();
        let end = begin + page.len();
        let is_last = end >= found.len();
        let last = page.last().map(|it| Last::of(end, it));
        let definitions = match root {
            Some(root) => root.work(ctx, |root, watch| now(root, page, watch)).await?,
            None => page.into_iter().map(Definition::of).collect(),
        };
        let cursor = last.filter(|_| !is_last).map(|it| cursor::after(&question, &it.bytes()));
        Ok(Output { definitions, truncated: !is_last || may_be_more, cursor, index })
    }

    fn text(output: &Output) -> Text {
        let Output { definitions, truncated, cursor, index } = output;
        let mut body = String::new();
        for it in definitions {
            let Definition { name, container, path, line, line_end, head, .. } = it;
            let above: String = container.iter().map(|it| format!("{it}.")).collect();
            let head = head.as_deref().map(|head| format!("\n  {head}")).unwrap_or_default();
            body += &format!("{path}:{line}-{line_end} {above}{name}{head}\n");
        }
        let mut note = match definitions.len() {
            0 => "nothing is called so".to_owned(),
            1 => "1 definition".to_owned(),
            many => format!("{many} definitions"),
        };
        if definitions.first().is_some_and(|it| it.likeness == Likeness::Misspelt) {
            note += "; none is called so, these almost are";
        }
        note += &format!("; {} files searched", index.files);
        if !index.complete {
            note += "; not every file is in the index yet";
        }
        match cursor {
            Some(cursor) => note += &format!("; go on with cursor: {cursor}"),
            None if *truncated => {
                note += "; there may be more, too many to look through: narrow it by path_prefix or \
                    tags";
            }
            None => {}
        }
        Text::body(body).with_note(note)
    }
}

impl Input {
    /// Refuses what cannot be meant; else what makes one search another.
    fn check(&self) -> Result<String, ToolError> {
        let Self { name, namespace, path_prefix, tags, kinds, limit, cursor: _ } = self;
        if name.trim().is_empty() || name.len() > NAME_BYTES_MAX {
            let message = format!("it must have from 1 to {NAME_BYTES_MAX} bytes, not all blank");
            return Err(ToolError::invalid("/name", message));
        }
        if *limit == 0 || *limit > LIMIT_MAX {
            return Err(ToolError::invalid("/limit", format!("it must be from 1 to {LIMIT_MAX}")));
        }
        Ok(format!("names {name:?} {namespace:?} {path_prefix:?} {tags:?} {kinds:?}"))
    }
}

/// The definition given last.
#[derive(Debug, Default, PartialEq, Eq)]
struct Last {
    /// How many were given up to it.
    given: usize,
    line: u32,
    name: String,
    path: String,
}

impl Last {
    fn of(given: usize, named: &Named) -> Self {
        let Shown { path, first, .. } = &named.shown;
        Self { given, line: *first, name: named.name.clone(), path: path.clone() }
    }

    /// Where what comes after it begins in `found`; if it is gone, as many as were given.
    fn position(&self, found: &[Named]) -> usize {
        if self.given == 0 {
            return 0;
        }
        let at = found.iter().position(|it| Self { given: self.given, ..Self::of(0, it) } == *self);
        at.map_or(self.given, |at| at + 1)
    }

    fn bytes(&self) -> Vec<u8> {
        let Self { given, line, name, path } = self;
        format!("{given} {line} {name}\n{path}").into_bytes()
    }

    /// What [`Last::bytes`] wrote.
    fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, path) = text.split_once('\n').unwrap_or_default();
        let mut words = head.splitn(3, ' ');
        let given = words.next().and_then(|it| it.parse().ok()).unwrap_or_default();
        let line = words.next().and_then(|it| it.parse().ok()).unwrap_or_default();
        let name = words.next().unwrap_or_default().to_owned();
        Self { given, line, name, path: path.to_owned() }
    }
}

impl Definition {
    /// As the index knows it: of small neighbours that share a passage, the passage.
    fn of(named: Named) -> Self {
        let Named { shown, name, how } = named;
        let Shown { path, first, last, kind, names, within, head, lang, tags, etag, .. } = shown;
        let is_main = names.first() == Some(&name);
        Self {
            name,
            likeness: Likeness::of(how),
            kind: Sort::of(kind),
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

    /// The same, where `symbol` is.
    fn at(self, symbol: &Symbol) -> Self {
        Self {
            kind: Sort::of(symbol.kind),
            container: symbol.within.clone(),
            line: symbol.line,
            line_start: symbol.first,
            line_end: symbol.last,
            head: Some(symbol.head.clone()).filter(|head| !head.is_empty()),
            ..self
        }
    }
}

impl Sort {
    fn of(kind: ChunkKind) -> Self {
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

impl Likeness {
    fn of(how: How) -> Self {
        match how {
            How::Exact => Self::Exact,
            How::Case => Self::Case,
            How::Prefix => Self::Prefix,
            How::Words => Self::Words,
            How::Misspelt => Self::Misspelt,
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
    fn a_cursor_tells_what_was_given_last() {
        let last = Last { given: 20, line: 7, name: "a b".into(), path: "x y/ü.rs".into() };
        assert_eq!(Last::read(&last.bytes()), last);
    }
}
