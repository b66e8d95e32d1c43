//! The listing of an upstream: its tools, resources, prompts and skills. It is stored, so that
//! lists for clients need not wait for the upstream.

pub(crate) mod skill_index;
pub(crate) mod fetched_skills;
pub(crate) mod uri_ownership;

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_contract::{exact_json, json_len};
use toolgate_dialects::mcp::upstream::{McpRevision, SKILLS, SessionModel, TASKS_EXTENSION};

use crate::connection::{LISTING_LIFETIME, UpstreamConnection, UpstreamRequest};
use crate::definition_texts::remove_hidden_texts;
use crate::instructions;
use crate::message::UpstreamRpcError;
use crate::transport::UpstreamRequestFailure;

/// Maximum number of items (such as tools) of one kind that an upstream may list.
const ITEMS_MAX: usize = 10_000;
/// Maximum number of skills that an upstream may list. The limit is lower than for other items,
/// because entries of skills are larger.
const SKILLS_MAX: usize = 1_000;
/// Maximum number of pages in which an upstream may list items of one kind.
const PAGES_MAX: usize = 1_000;
/// Maximum number of bytes of all items that an upstream lists.
const BYTES_MAX: usize = 64 << 20;

/// JSON-RPC error code of an unknown method.
const METHOD_NOT_FOUND: i64 = -32601;

/// Shortest lifetime of a listing if the upstream sends no notifications of changes. A shorter
/// `ttlMs` of the upstream has no effect.
const LIFETIME_MIN: Duration = Duration::from_secs(60);
/// Longest lifetime of a listing if the upstream sends no notifications of changes.
const LIFETIME_MAX: Duration = Duration::from_secs(3600);

/// The items that an upstream lists: its tools, resources, prompts and skills.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct UpstreamListing {
    /// Entries of the upstream's `tools/list`.
    #[serde(deserialize_with = "exact_json::deserialize_list")]
    pub tools: Vec<Value>,
    /// Entries of the upstream's `resources/list`.
    #[serde(deserialize_with = "exact_json::deserialize_list")]
    pub resources: Vec<Value>,
    /// Entries of the upstream's `resources/templates/list`.
    #[serde(deserialize_with = "exact_json::deserialize_list")]
    pub templates: Vec<Value>,
    /// Entries of the upstream's `prompts/list`.
    #[serde(deserialize_with = "exact_json::deserialize_list")]
    pub prompts: Vec<Value>,
    /// Entries of the upstream's `skills/list`.
    #[serde(default, deserialize_with = "exact_json::deserialize_list")]
    pub skills: Vec<Value>,
    /// True if the upstream has skills, even if it does not list them.
    #[serde(default)]
    pub has_skills: bool,
    /// True if the upstream can list folders (`resources/directory/read`).
    #[serde(default)]
    pub has_folders: bool,
    /// The upstream's instructions for its tools.
    #[serde(default)]
    pub instructions: Option<String>,
    /// True if the upstream may turn calls into tasks.
    #[serde(default)]
    pub tasks: bool,
    /// Protocol revision of the upstream.
    #[serde(default)]
    pub revision: String,
}

/// Properties of the upstream that apply to the calls of all its tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UpstreamCallProperties {
    /// True if the upstream may turn calls into tasks.
    pub(crate) tasks: bool,
    /// True if the upstream's calls run in a session.
    pub(crate) in_session: bool,
}

impl UpstreamListing {
    /// Returns a listing of the tools alone, with the properties of their calls.
    pub(crate) fn tools_only(&self) -> Self {
        let Self { tools, tasks, revision, .. } = self;
        let (tools, tasks, revision) = (tools.clone(), *tasks, revision.clone());
        Self { tools, tasks, revision, ..Self::default() }
    }

    /// Returns true if the upstream lists nothing.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { tools, resources, templates, prompts, skills, .. } = self;
        [tools, resources, templates, prompts, skills].iter().all(|all| all.is_empty())
    }

    /// Returns the properties that apply to all calls of the upstream's tools.
    pub(crate) fn call_properties(&self) -> UpstreamCallProperties {
        let in_session = McpRevision::find(&self.revision, SessionModel::Session).is_some();
        UpstreamCallProperties { tasks: self.tasks, in_session }
    }

    /// Lists the tools, resources, prompts and skills of the upstream `name`. The second value is
    /// the listing's lifetime, or `None` if the upstream notifies of changes.
    pub(crate) async fn list_all(
        name: &str,
        link: &UpstreamConnection,
    ) -> Result<(Self, Option<Duration>), UpstreamRequestFailure> {
        let mut budget = ListingBudget { name, bytes: BYTES_MAX, ttl_ms: None };
        let extensions = &link.server_info["capabilities"]["extensions"];
        let skills = extensions.get(SKILLS);
        let text = link.server_info["instructions"].as_str();
        let mut all = Self {
            instructions: text.and_then(|text| instructions::truncate_instructions(name, text)),
            tasks: extensions.get(TASKS_EXTENSION).is_some(),
            has_skills: skills.is_some(),
            has_folders: skills.is_some_and(|skills| skills["directoryRead"] == true),
            revision: link.revision.name.to_owned(),
            ..Self::default()
        };
        if link.has("tools") {
            all.tools = list_pages(link, &mut budget, "tools/list", "tools").await?;
        }
        if link.has("resources") {
            all.resources = budget.list_or_none(link, "resources/list", "resources").await?;
            let method = "resources/templates/list";
            all.templates = budget.list_or_none(link, method, "resourceTemplates").await?;
        }
        if all.has_skills {
            all.skills = budget.list_or_none(link, "skills/list", "skills").await?;
        }
        if link.has("prompts") {
            all.prompts = budget.list_or_none(link, "prompts/list", "prompts").await?;
        }
        // Changes of skills are announced as changes of resources.
        let has = |kind| link.has(kind) || (kind == "resources" && all.has_skills);
        let notifies = |kind| !has(kind) || link.has_option(kind, "listChanged");
        let good_for = match ["tools", "resources", "prompts"].into_iter().all(notifies) {
            true => None,
            false => Some(budget.lifetime()),
        };
        Ok((all, good_for))
    }
}

/// Budget for the listed items of one upstream: the number of bytes that remain.
struct ListingBudget<'a> {
    name: &'a str,
    bytes: usize,
    /// Shortest `ttlMs` (lifetime) of the upstream's lists, in milliseconds.
    ttl_ms: Option<u64>,
}

impl ListingBudget<'_> {
    /// Moves `items` to `all`. Returns false if `all` was full before all items were moved. `kind`
    /// names the items, such as `tools`, in the log.
    fn take(&mut self, all: &mut Vec<Value>, items: Vec<Value>, kind: &str) -> bool {
        for item in items {
            let Some(left) = self.bytes.checked_sub(json_len(&item)) else {
                self.warn_full(all, kind, &format!("its lists have more than {BYTES_MAX} bytes"));
                return false;
            };
            let most = if kind == "skills" { SKILLS_MAX } else { ITEMS_MAX };
            if all.len() == most {
                self.warn_full(all, kind, &format!("it has more than {most}"));
                return false;
            }
            self.bytes = left;
            all.push(item);
        }
        true
    }

    /// Lists all items that the list method `method` returns, or none if the server refuses the
    /// method.
    ///
    /// Some servers declare a capability, but do not implement its methods.
    async fn list_or_none(
        &mut self,
        link: &UpstreamConnection,
        method: &'static str,
        kind: &str,
    ) -> Result<Vec<Value>, UpstreamRequestFailure> {
        match list_pages(link, self, method, kind).await {
            Err(UpstreamRequestFailure::Refused(why)) => {
                // Templates are requested from every server with resources, so an unknown method is
                // expected there.
                if why.code != METHOD_NOT_FOUND || method != "resources/templates/list" {
                    let (name, UpstreamRpcError { message, code, .. }) = (self.name, why);
                    tracing::warn!(
                        "the upstream `{name}` refused `{method}`, so none of its {kind} are \
                         available: {message} ({code})"
                    );
                }
                Ok(Vec::new())
            }
            listed => {
                let mut listed = listed?;
                // The index of skills checks each skill.
                if kind != "skills" {
                    remove_hidden_texts(self.name, kind, &mut listed);
                }
                Ok(listed)
            }
        }
    }

    fn lifetime(&self) -> Duration {
        let lifetime = self.ttl_ms.map(Duration::from_millis);
        lifetime.map_or(LISTING_LIFETIME, |lifetime| lifetime.clamp(LIFETIME_MIN, LIFETIME_MAX))
    }

    fn warn_full(&self, all: &[Value], kind: &str, why: &str) {
        let name = self.name;
        let count = all.len();
        tracing::warn!("only {count} {kind} of the upstream `{name}` are used: {why}");
    }
}

/// Lists the tools of the upstream `name` over the connection `link`.
pub(crate) async fn list_tools(
    name: &str,
    link: &UpstreamConnection,
) -> Result<Vec<Value>, UpstreamRequestFailure> {
    let mut budget = ListingBudget { name, bytes: BYTES_MAX, ttl_ms: None };
    list_pages(link, &mut budget, "tools/list", "tools").await
}

async fn list_pages(
    link: &UpstreamConnection,
    budget: &mut ListingBudget<'_>,
    method: &'static str,
    kind: &str,
) -> Result<Vec<Value>, UpstreamRequestFailure> {
    let mut all = Vec::new();
    let mut before = None;
    let mut has_followed_empty = false;
    let mut cursor = None::<Value>;
    for _ in 0..PAGES_MAX {
        let is_after_empty = cursor.as_ref().is_some_and(is_empty_cursor);
        let params = cursor.take().map(|cursor| ("cursor".to_owned(), cursor));
        let request = UpstreamRequest::new(method, Map::from_iter(params)).without_use();
        let mut page = match link.request(request, link.receiver.clone()).await {
            // The empty cursor was the end of the list.
            Err(
                UpstreamRequestFailure::Refused(_)
                | UpstreamRequestFailure::NotSent(_)
                | UpstreamRequestFailure::SessionGone(_),
            ) if is_after_empty => return Ok(all),
            page => page?,
        };
        let ttl_ms = page.get("ttlMs").and_then(Value::as_u64);
        budget.ttl_ms = budget.ttl_ms.into_iter().chain(ttl_ms).min();
        let next = page.get_mut("nextCursor").map(Value::take);
        // Some servers count their pages, and expect the number.
        let next = next.filter(|next| next.is_string() || next.is_number());
        let is_repeated = next.is_some() && next == before;
        // Some servers write an empty cursor for the end, and others for a page. It is followed
        // once.
        let is_empty = next.as_ref().is_some_and(is_empty_cursor);
        let mut is_over = next.is_none() || (is_empty && has_followed_empty);
        has_followed_empty |= is_empty;
        if let Some(Value::Array(mut items)) = page.get_mut(kind).map(Value::take) {
            if is_repeated || is_after_empty {
                // A server that ignores the cursor sends the first page again.
                let known: HashSet<_> = all.iter().map(Value::to_string).collect();
                items.retain(|item| !known.contains(&item.to_string()));
            }
            is_over |= is_after_empty && items.is_empty();
            if !budget.take(&mut all, items, kind) {
                return Ok(all);
            }
        }
        if is_over {
            return Ok(all);
        }
        if is_repeated {
            budget.warn_full(&all, kind, &format!("`{method}` returned the same page again"));
            return Ok(all);
        }
        (before, cursor) = (next.clone(), next);
    }
    budget.warn_full(&all, kind, &format!("`{method}` has more than {PAGES_MAX} pages"));
    Ok(all)
}

/// Returns true if `cursor` is a value that some servers send instead of no cursor with the last
/// page: an empty text, or a number that is not positive.
fn is_empty_cursor(cursor: &Value) -> bool {
    cursor == "" || cursor.as_i64().is_some_and(|number| number <= 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cursor_is_empty_if_it_is_an_empty_text_or_not_positive() {
        for (cursor, expected) in
            [(json!(""), true), (json!(0), true), (json!(-1), true), (json!(1), false)]
        {
            assert_eq!(is_empty_cursor(&cursor), expected, "{cursor}");
        }
        assert!(!is_empty_cursor(&json!("0")));
    }

    #[test]
    fn items_beyond_the_limit_of_bytes_or_of_their_number_are_left_out() {
        let item = json!({ "name": "x".repeat(91) });
        assert_eq!(json_len(&item), 102);
        let mut budget = ListingBudget { name: "up", bytes: 250, ttl_ms: None };
        let mut tools = Vec::new();
        assert!(budget.take(&mut tools, vec![item.clone()], "tools"));
        assert!(!budget.take(&mut tools, vec![item.clone(), item], "tools"));
        // The remaining bytes are for later items.
        assert_eq!((tools.len(), budget.bytes), (2, 46));
        let mut budget = ListingBudget { name: "up", bytes: BYTES_MAX, ttl_ms: None };
        let mut many = Vec::new();
        assert!(!budget.take(&mut many, vec![json!({}); ITEMS_MAX + 1], "tools"));
        assert_eq!(many.len(), ITEMS_MAX);
    }
}
