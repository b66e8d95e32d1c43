//! Answers searches for tools: by queries, by names, or by server.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use toolgate_contract::{Caller, ToolContext, ToolError, ToolId, ToolSpec, fold_name, lock_mutex};
use toolgate_tool_search::{
    BestToolConfidence, CallerVisibleTools, FoundTool, RememberedToolQueries, ToolQueryResults,
    ToolSearchIndex, ToolSearchQuery, ToolSimilarities, lean_schema, nearest_names, rank,
    tool_line, word_scores, write_findings,
};

use super::ExplainedToolMatch;
use super::shown::ShownToolVersion;
use super::tools::SearchToolsInput;
use crate::Gate;
use crate::catalog::{Catalog, CatalogSearchIndex, CatalogToolEntry};

/// Default number of tools that a query finds.
const LIMIT: usize = 10;
/// Maximum number of tools that a query finds.
const LIMIT_MAX: usize = 20;
/// Maximum number of queries or names in one search.
const QUERIES_MAX: usize = 20;
/// Number of tools in a page of the list of one server's tools.
const PAGE: usize = 50;

/// A search of one caller for tools of the catalog.
pub(super) struct CallerToolSearch<'g> {
    gate: &'g Gate,
    caller: &'g Caller,
    session: Option<&'g Arc<str>>,
    catalog: Arc<Catalog>,
    view: Arc<CallerVisibleTools>,
}

impl<'g> CallerToolSearch<'g> {
    /// Creates the search of the caller of `ctx` for tools.
    pub(super) fn new(gate: &'g Gate, ctx: &'g ToolContext) -> Self {
        Self::of_caller(gate, &ctx.caller, ctx.session.as_ref())
    }

    /// Creates the search of `caller` for tools.
    pub(super) fn of_caller(
        gate: &'g Gate,
        caller: &'g Caller,
        session: Option<&'g Arc<str>>,
    ) -> Self {
        let catalog = gate.catalog.snapshot();
        let index = catalog.search_index(|| gate.server_descriptions());
        let is_searchable = |spec: &ToolSpec| gate.is_searchable(caller, spec);
        let view = index.view(catalog.entries(), caller, is_searchable);
        Self { gate, caller, session, catalog, view }
    }

    /// Returns the answer of `tools.search` to `input` as text.
    pub(super) async fn answer(&self, input: &SearchToolsInput) -> Result<String, ToolError> {
        let queries: Vec<&str> = input.all_queries().collect();
        if queries.len() > QUERIES_MAX || input.names.len() > QUERIES_MAX {
            let message = format!("at most {QUERIES_MAX} queries and names; split the search");
            return Err(ToolError::invalid("/queries", message));
        }
        let server = input.server.as_deref().map(|name| self.find_server(name)).transpose()?;
        let mut text = self.describe_all(&input.names);
        if !queries.is_empty() {
            let limit = input.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
            let meanings = self.meanings(&queries).await;
            text.push_str(&self.find(&queries, &meanings, server.as_deref(), limit));
        } else if input.names.is_empty() {
            text.push_str(&match &server {
                Some(server) => self.list_server(server, input.page.unwrap_or(1)),
                None => self.list_servers(),
            });
        }
        Ok(text)
    }

    /// Returns up to `count` tools whose names are nearest to `name`, one line for each.
    pub(super) fn nearest(&self, name: &str, count: usize) -> Vec<String> {
        let mut places = nearest_names(self.index(), &self.view, name, count);
        if places.is_empty() {
            let words = name.replace(['_', '.', '-', ':'], " ");
            places = self.rank(&ToolSearchQuery::new(&words), None, None, count).0;
        }
        places.into_iter().map(|at| line_of(&self.catalog.entries()[at])).collect()
    }

    /// Returns up to `count` tools that match words of `question`, best first, each with the
    /// matched words.
    pub(super) fn explain(&self, question: &str, count: usize) -> Vec<ExplainedToolMatch> {
        let question = ToolSearchQuery::new(question);
        let memory = RememberedToolQueries::default();
        let (ranked, _) = rank(self.index(), &self.view, &question, &memory, None);
        let explained = ranked.into_iter().take(count).map(|tool| ExplainedToolMatch {
            name: fold_name(self.catalog.entries()[tool.at].spec().id.as_str()).into_owned(),
            score: tool.score,
            words: word_scores(self.index(), &self.view, &question, tool.at),
        });
        explained.collect()
    }

    /// Returns the similarity (cosine) of each tool with each query, if a sentence model is
    /// configured.
    async fn meanings(&self, queries: &[&str]) -> Vec<Option<Vec<Option<f32>>>> {
        let mut meanings = Vec::new();
        for query in queries {
            meanings.push(match &self.gate.tool_search.vectors {
                Some(vectors) => vectors.cosines(self.built_index().sentences(), query).await,
                None => None,
            });
        }
        meanings
    }

    fn find(
        &self,
        queries: &[&str],
        meanings: &[Option<Vec<Option<f32>>>],
        server: Option<&str>,
        limit: usize,
    ) -> String {
        let mut searched = Vec::new();
        let mut findings = Vec::new();
        let mut answered = HashSet::new();
        for (&query, meaning) in queries.iter().zip(meanings) {
            let question = ToolSearchQuery::new(query);
            let (places, coverage) = self.rank(&question, meaning.as_deref(), server, limit);
            let entries = || places.iter().map(|at| &self.catalog.entries()[*at]);
            let ids = entries().map(|entry| entry.spec().id.as_str().to_owned()).collect();
            searched.push((question, ids));
            let notes: Vec<_> = entries().map(|entry| ShownToolVersion::new(entry)).collect();
            let mut shown = lock_mutex(&self.gate.tool_search.shown);
            let is_repeated = shown.note_query(self.caller, self.session, query);
            let tools = places.iter().zip(notes).map(|(at, note)| {
                let was_sent = shown.note_line(self.caller, self.session, note);
                let was_shown = !answered.insert(*at) || (was_sent && !is_repeated);
                FoundTool { was_shown, ..found_tool(&self.catalog.entries()[*at]) }
            });
            let tools = tools.collect();
            drop(shown);
            findings.push(ToolQueryResults { query, tools, coverage });
        }
        let scope = self.gate.tool_search.settings.memory;
        let is_known =
            |id: &str| ToolId::new(id).is_some_and(|id| self.catalog.entry(&id).is_some());
        let mut memory = lock_mutex(&self.gate.tool_search.memory);
        memory.note_search(scope, self.caller, self.session, searched, is_known);
        drop(memory);
        let left_out = server.map_or(0, |server| self.view.count() - self.count_of(server));
        write_findings(&findings, left_out)
    }

    fn rank(
        &self,
        question: &ToolSearchQuery,
        meaning: Option<&ToolSimilarities>,
        server: Option<&str>,
        limit: usize,
    ) -> (Vec<usize>, BestToolConfidence) {
        let tool_search = &self.gate.tool_search;
        let scope = tool_search.settings.memory;
        let memory = lock_mutex(&tool_search.memory).learned(scope, self.caller, self.session);
        let (ranked, coverage) = rank(self.index(), &self.view, question, &memory, meaning);
        let is_wanted =
            |at: &usize| server.is_none_or(|server| self.catalog.entries()[*at].server() == server);
        let places = ranked.into_iter().map(|tool| tool.at).filter(is_wanted).take(limit);
        (places.collect(), coverage)
    }

    /// Returns the descriptions and complete schemas of the tools `names`.
    fn describe_all(&self, names: &[String]) -> String {
        let mut text = String::new();
        for name in names {
            let found = self.gate.find(self.caller, name);
            match found.ok().filter(|it| self.gate.is_searchable(self.caller, it.spec())) {
                Some(entry) => {
                    let note = ShownToolVersion::new(&entry);
                    let mut shown = lock_mutex(&self.gate.tool_search.shown);
                    shown.note_line(self.caller, self.session, note.clone());
                    shown.note_schema(self.caller, self.session, note);
                    drop(shown);
                    describe(&entry, &mut text);
                }
                None => {
                    let name_shown = shorten(name);
                    _ = writeln!(text, "no tool is named `{name_shown}`; the most similar are:");
                    for line in self.nearest(name, 3) {
                        _ = writeln!(text, "{line}");
                    }
                }
            }
        }
        text
    }

    fn built_index(&self) -> &CatalogSearchIndex {
        self.catalog.search_index(|| self.gate.server_descriptions())
    }

    fn index(&self) -> &ToolSearchIndex {
        self.built_index().index()
    }

    fn seen(&self) -> impl Iterator<Item = &Arc<CatalogToolEntry>> {
        let entries = self.catalog.entries().iter().enumerate();
        entries.filter(|(at, _)| self.view.shows(*at)).map(|(_, entry)| entry)
    }

    fn count_of(&self, server: &str) -> usize {
        self.seen().filter(|entry| entry.server() == server).count()
    }

    /// Returns the servers whose tools the caller may see, in order of name, each with the number
    /// of these tools.
    fn servers(&self) -> Vec<(&str, usize)> {
        let mut servers: Vec<(&str, usize)> = Vec::new();
        for entry in self.seen() {
            match servers.iter_mut().find(|(name, _)| *name == entry.server()) {
                Some((_, count)) => *count += 1,
                None => servers.push((entry.server(), 1)),
            }
        }
        servers.sort_unstable();
        servers
    }

    /// Returns the name of the server that the caller means by `name`.
    ///
    /// # Errors
    /// No server with visible tools has a name like this.
    fn find_server(&self, name: &str) -> Result<String, ToolError> {
        let servers = self.servers();
        let same = |known: &str| fold_name(known).eq_ignore_ascii_case(&fold_name(name));
        if let Some((known, _)) = servers.iter().find(|(known, _)| same(known)) {
            return Ok((*known).to_owned());
        }
        let names: Vec<&str> = servers.iter().map(|(name, _)| *name).collect();
        let message = format!(
            "no server is named `{}`; the servers are: {}",
            shorten(name),
            names.join(", ")
        );
        Err(ToolError::invalid("/server", message))
    }

    fn list_servers(&self) -> String {
        let descriptions = self.gate.server_descriptions();
        let mut text = String::new();
        for (name, count) in self.servers() {
            let about = descriptions.get(name).filter(|about| !about.is_empty());
            let about = about.map(|about| format!(": {about}")).unwrap_or_default();
            _ = writeln!(text, "{name}, {count} tools{about}");
        }
        text.push_str("Search with `queries`, or list the tools of one `server`.");
        text
    }

    fn list_server(&self, server: &str, page: usize) -> String {
        let all: Vec<_> = self.seen().filter(|entry| entry.server() == server).collect();
        let start = page.saturating_sub(1).saturating_mul(PAGE);
        let mut text = String::new();
        for entry in all.iter().skip(start).take(PAGE) {
            let note = ShownToolVersion::new(entry);
            lock_mutex(&self.gate.tool_search.shown).note_line(self.caller, self.session, note);
            _ = writeln!(text, "{}", line_of(entry));
        }
        let end = start.saturating_add(PAGE);
        if end < all.len() {
            let rest = all.len() - end;
            _ = writeln!(text, "{rest} more: use \"page\": {}.", page.max(1) + 1);
        }
        text.push_str("Call one with tools_call.");
        text
    }
}

/// Returns the line that describes a tool in the answer of a search.
pub(super) fn line_of(entry: &CatalogToolEntry) -> String {
    let FoundTool { name, effects, description, input_schema, was_shown: _ } = found_tool(entry);
    tool_line(&name, effects, description, input_schema)
}

fn found_tool(entry: &CatalogToolEntry) -> FoundTool<'_> {
    let spec = entry.spec();
    FoundTool {
        name: fold_name(spec.id.as_str()),
        effects: spec.effects.as_str(),
        description: &spec.description,
        input_schema: &spec.input_schema,
        was_shown: false,
    }
}

fn describe(entry: &CatalogToolEntry, text: &mut String) {
    let spec = entry.spec();
    let name = fold_name(spec.id.as_str());
    _ = writeln!(text, "{name}  {}", spec.effects.as_str());
    _ = writeln!(text, "  {}", spec.description.trim());
    _ = writeln!(text, "  {}", lean_schema(&spec.input_schema));
}

/// Returns the beginning of an unknown name that an error message repeats.
pub(super) fn shorten(name: &str) -> String {
    name.chars().take(100).collect()
}
