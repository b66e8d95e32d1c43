//! What an upstream has, as it said: kept, so that a list need not wait for it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use toolgate_dialects::mcp::upstream::{Era, Revision, TASKS};

use crate::link::{Asks, Link};
use crate::wire::Trouble;

/// The most of one kind that are taken in.
const ITEMS_MAX: usize = 10_000;
/// The most pages of one kind.
const PAGES_MAX: usize = 1_000;

/// What an upstream has.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Listing {
    /// The entries of `tools/list`.
    pub tools: Vec<Value>,
    /// The entries of `resources/list`.
    pub resources: Vec<Value>,
    /// The entries of `resources/templates/list`.
    pub templates: Vec<Value>,
    /// The entries of `prompts/list`.
    pub prompts: Vec<Value>,
    /// What it says of how to use it.
    #[serde(default)]
    pub instructions: String,
    /// Whether its calls may become tasks, as it decides.
    #[serde(default)]
    pub tasks: bool,
    /// Which revision it speaks.
    #[serde(default)]
    pub revision: String,
}

/// How an upstream is called, whatever the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Whether its calls may become tasks, as it decides.
    pub(crate) tasks: bool,
    /// Whether it is called in a session.
    pub(crate) in_session: bool,
}

impl Listing {
    /// How it is called.
    pub(crate) fn manner(&self) -> Manner {
        let in_session = Revision::named(&self.revision, Era::Session).is_some();
        Manner { tasks: self.tasks, in_session }
    }

    /// All that the upstream at the other end of `link` has.
    pub(crate) async fn of(link: &Link) -> Result<Self, Trouble> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut all = Self {
            instructions: text(&link.said["instructions"]),
            tasks: link.said["capabilities"]["extensions"].get(TASKS).is_some(),
            revision: link.revision.name.to_owned(),
            ..Self::default()
        };
        if link.has("tools") {
            all.tools = pages(link, "tools/list", "tools").await?;
        }
        if link.has("resources") {
            all.resources = pages(link, "resources/list", "resources").await?;
            // Servers that have none need not know the word.
            let templates = pages(link, "resources/templates/list", "resourceTemplates").await;
            all.templates = match templates {
                Err(Trouble::Refused(_)) => Vec::new(),
                templates => templates?,
            };
        }
        if link.has("prompts") {
            all.prompts = pages(link, "prompts/list", "prompts").await?;
        }
        Ok(all)
    }
}

async fn pages(link: &Link, method: &'static str, of: &str) -> Result<Vec<Value>, Trouble> {
    let mut all = Vec::new();
    let mut cursor: Option<Value> = None;
    for _ in 0..PAGES_MAX {
        let params = cursor.take().map(|cursor| ("cursor".to_owned(), cursor));
        let asks = Asks::of(method, Map::from_iter(params)).unused();
        let mut page = link.ask(asks, link.hears.clone()).await?;
        if let Some(Value::Array(items)) = page.get_mut(of).map(Value::take) {
            all.extend(items);
        }
        cursor = page.get_mut("nextCursor").map(Value::take).filter(Value::is_string);
        if all.len() > ITEMS_MAX {
            tracing::warn!("an upstream has more than {ITEMS_MAX} {of}; the rest is left out");
            all.truncate(ITEMS_MAX);
            break;
        }
        if cursor.is_none() || cursor == Some(json!("")) {
            break;
        }
    }
    Ok(all)
}
