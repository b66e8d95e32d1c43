//! `search.upsert`: documents put into a namespace of their own, to be found.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::service::{Document, Upserted};
use super::{Service, distinct_tags};

/// How many documents one call puts.
const DOCUMENTS_MAX: usize = 1_000;
/// How many one call takes out.
const REMOVE_MAX: usize = 10_000;
/// How large a document can be.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// And what is put beside it.
const METADATA_BYTES_MAX: usize = 16 << 10;
/// How long an id can be.
const ID_BYTES_MAX: usize = 512;

/// Puts documents.
pub struct Upsert {
    service: Arc<Service>,
}

/// What to put where.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The namespace, which is made where there is none: small letters, digits, `_` and `-`.
    namespace: String,
    /// What is put, each in place of the document that has its id.
    #[serde(default)]
    documents: Vec<Given>,
    /// The ids of documents to be taken out; one that is not there, or is named twice, is no
    /// failure.
    #[serde(default)]
    remove: Vec<String>,
}

/// A document: `text` or `json`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Given {
    /// By what it is known, e.g. `notes/2024-05.md`; what it ends in says what it is: `.md` is cut
    /// at headings, `.rs` at functions.
    id: String,
    /// What it says, as text.
    text: Option<String>,
    /// What it says, as any JSON.
    json: Option<Value>,
    /// What it is found by, beside its words.
    #[serde(default)]
    tags: Vec<String>,
    /// What is told with it when it is found.
    #[serde(default)]
    metadata: Map<String, Value>,
}

/// What became of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// Documents that are new.
    added: u64,
    /// Documents in place of others.
    replaced: u64,
    /// Documents taken out.
    removed: u64,
    /// How many there are in the namespace by now.
    documents: u64,
}

impl Upsert {
    /// The tool that asks `service`.
    pub fn new(service: &Arc<Service>) -> Self {
        Self { service: service.clone() }
    }
}

impl Tool for Upsert {
    const NAME: &'static str = "search.upsert";
    const TITLE: &'static str = "Put documents to be found";
    const ABOUT: &'static str = "Puts texts or JSON documents into a namespace of their own, where \
        search_semantic finds them by meaning (pass the same namespace), and takes others out. They \
        are kept beside the server, not in the workspace.";
    const EFFECTS: Effects = Effects::Changes;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let Input { namespace, documents, remove } = input;
        if documents.is_empty() && remove.is_empty() {
            let message = "there is nothing to do; pass `documents`, or ids to `remove`";
            return Err(ToolError::invalid("/documents", message));
        }
        if documents.len() > DOCUMENTS_MAX {
            let message = format!("there are more than {DOCUMENTS_MAX}; pass fewer at a time");
            return Err(ToolError::invalid("/documents", message));
        }
        if remove.len() > REMOVE_MAX {
            let message = format!("there are more than {REMOVE_MAX}; pass fewer at a time");
            return Err(ToolError::invalid("/remove", message));
        }
        // One that is named again is counted once.
        let remove: BTreeSet<String> = remove.into_iter().collect();
        let mut ids = BTreeSet::new();
        let mut put = Vec::with_capacity(documents.len());
        for (at, given) in documents.into_iter().enumerate() {
            let document = given.document(&format!("/documents/{at}"))?;
            if remove.contains(&document.id) || !ids.insert(document.id.clone()) {
                let message = format!("`{}` is named twice; name each id once", document.id);
                return Err(ToolError::invalid(format!("/documents/{at}/id"), message));
            }
            put.push(document);
        }
        let upserted = tokio::select! {
            upserted = self.service.upsert(&namespace, put, remove.into_iter().collect()) => upserted?,
            () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
        };
        let Upserted { added, replaced, removed, documents } = upserted;
        Ok(Output { added, replaced, removed, documents })
    }

    fn text(output: &Output) -> Text {
        let Output { added, replaced, removed, documents } = output;
        let done = format!("{added} added, {replaced} replaced, {removed} removed");
        Text::body(format!("{done}; {documents} documents in the namespace\n"))
    }
}

impl Given {
    fn document(self, pointer: &str) -> Result<Document, ToolError> {
        let Self { id, text, json, tags, metadata } = self;
        let wrong = |field: &str, why: String| ToolError::invalid(format!("{pointer}{field}"), why);
        if id.trim().is_empty() || id.len() > ID_BYTES_MAX || id.contains(['\0', '\n']) {
            let why = format!("an id is one line of 1 to {ID_BYTES_MAX} bytes");
            return Err(wrong("/id", why));
        }
        let (text, sort) = match (text, json) {
            (Some(text), None) => (text, id.clone()),
            (None, Some(json)) => {
                let text = serde_json::to_string_pretty(&json)
                    .map_err(|err| wrong("/json", format!("it cannot be written: {err}")))?;
                (text, format!("{id}.json"))
            }
            (Some(_), Some(_)) => {
                return Err(wrong("", "it has `text` and `json`; give one".to_owned()));
            }
            (None, None) => return Err(wrong("", "it has no `text` and no `json`".to_owned())),
        };
        if text.len() > TEXT_BYTES_MAX {
            let (len, most) = (text.len(), TEXT_BYTES_MAX);
            return Err(wrong("", format!("it has {len} bytes; at most {most} are taken: cut it")));
        }
        let beside = serde_json::to_string(&metadata).map_or(usize::MAX, |text| text.len());
        if beside > METADATA_BYTES_MAX {
            let why = format!("it has {beside} bytes; at most {METADATA_BYTES_MAX} are taken");
            return Err(wrong("/metadata", why));
        }
        let tags = distinct_tags(tags, &format!("{pointer}/tags"))?;
        Ok(Document { id, text, sort, tags, metadata })
    }
}
