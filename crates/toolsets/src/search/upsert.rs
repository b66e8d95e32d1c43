//! `search.upsert`: stores documents in a namespace of their own, for search.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError, exact_json};

use super::service::{NewDocument, UpsertSummary};
use super::{SearchService, distinct_tags};
use crate::counted::counted;

/// Largest number of documents in one call of `search.upsert`.
const DOCUMENTS_MAX: usize = 1_000;
/// Largest number of ids to remove in one call of `search.upsert`.
const REMOVE_MAX: usize = 10_000;
/// Largest size of a document's text, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Largest size of a document's metadata, in bytes of JSON.
const METADATA_BYTES_MAX: usize = 16 << 10;
/// Longest id of a document, in bytes.
const ID_BYTES_MAX: usize = 512;

/// The tool `search.upsert`.
pub struct UpsertDocuments {
    pub(super) service: Arc<SearchService>,
}

/// Input of `search.upsert`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpsertDocumentsInput {
    /// Namespace: lower-case letters, digits, `_` and `-`.
    namespace: String,
    /// Documents to store or replace.
    #[serde(default)]
    documents: Vec<DocumentInput>,
    /// Ids to remove.
    #[serde(default)]
    remove: Vec<String>,
}

/// A document: `text` or `json`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DocumentInput {
    /// Id, whose file extension sets the format, e.g. `.md`.
    id: String,
    /// Content as text.
    text: Option<String>,
    /// Content as JSON.
    #[serde(default, deserialize_with = "exact_json::deserialize_option")]
    #[schemars(!default)]
    json: Option<Value>,
    /// Tags to filter by.
    #[serde(default)]
    tags: Vec<String>,
    /// Data that searches return.
    #[serde(default, deserialize_with = "exact_json::deserialize_object")]
    metadata: Map<String, Value>,
}

/// Output of `search.upsert`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UpsertDocumentsOutput {
    /// New documents.
    added: u64,
    /// Replaced documents.
    replaced: u64,
    /// Removed documents.
    removed: u64,
    /// Number of documents in the namespace.
    documents: u64,
}

impl Tool for UpsertDocuments {
    const NAME: &'static str = "search.upsert";
    const TITLE: &'static str = "Store documents for search";
    const DESCRIPTION: &'static str =
        "Store texts in a namespace, where search_semantic finds them, or remove them.";
    const EFFECTS: Effects = Effects::Changes;
    const IDEMPOTENT: bool = true;
    type Input = UpsertDocumentsInput;
    type Output = UpsertDocumentsOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let UpsertDocumentsInput { namespace, documents, remove } = input;
        if documents.is_empty() && remove.is_empty() {
            let message = "pass `documents` to store, or ids to `remove`";
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
        // Repeated ids count once.
        let remove: BTreeSet<String> = remove.into_iter().collect();
        let mut ids = BTreeSet::new();
        let mut put = Vec::with_capacity(documents.len());
        for (at, input) in documents.into_iter().enumerate() {
            let document = input.parse(&format!("/documents/{at}"))?;
            if remove.contains(&document.id) || !ids.insert(document.id.clone()) {
                let message = format!("`{}` occurs twice; pass each id once", document.id);
                return Err(ToolError::invalid(format!("/documents/{at}/id"), message));
            }
            put.push(document);
        }
        let upserted = ctx
            .run_unless_canceled(self.service.upsert(&namespace, put, remove.into_iter().collect()))
            .await??;
        let UpsertSummary { added, replaced, removed, documents } = upserted;
        Ok(UpsertDocumentsOutput { added, replaced, removed, documents })
    }

    fn result_text(output: &UpsertDocumentsOutput) -> ResultText {
        let UpsertDocumentsOutput { added, replaced, removed, documents } = output;
        let done = format!("{added} added, {replaced} replaced, {removed} removed");
        let documents = counted(*documents, "document", "documents");
        ResultText::from_body(format!("{done}; {documents} in the namespace\n"))
    }
}

impl DocumentInput {
    fn parse(self, pointer: &str) -> Result<NewDocument, ToolError> {
        let Self { id, text, json, tags, metadata } = self;
        let invalid =
            |field: &str, why: String| ToolError::invalid(format!("{pointer}{field}"), why);
        if id.trim().is_empty() || id.len() > ID_BYTES_MAX || id.contains(['\0', '\n']) {
            let why = format!("an id is one line of 1 to {ID_BYTES_MAX} bytes");
            return Err(invalid("/id", why));
        }
        let (text, sort) = match (text, json) {
            (Some(text), None) => (text, id.clone()),
            (None, Some(json)) => {
                let text = serde_json::to_string_pretty(&json)
                    .map_err(|err| invalid("/json", format!("it cannot be written: {err}")))?;
                (text, format!("{id}.json"))
            }
            (Some(_), Some(_)) => {
                return Err(invalid("", "it has `text` and `json`; pass one".to_owned()));
            }
            (None, None) => {
                return Err(invalid("", "it has no `text` and no `json`; pass one".to_owned()));
            }
        };
        if text.len() > TEXT_BYTES_MAX {
            let why = format!(
                "it has {} bytes; at most {TEXT_BYTES_MAX} are allowed: split it",
                text.len()
            );
            return Err(invalid("", why));
        }
        let bytes = serde_json::to_string(&metadata).map_or(usize::MAX, |text| text.len());
        if bytes > METADATA_BYTES_MAX {
            let why = format!("it has {bytes} bytes; at most {METADATA_BYTES_MAX} are allowed");
            return Err(invalid("/metadata", why));
        }
        let tags = distinct_tags(tags, &format!("{pointer}/tags"))?;
        Ok(NewDocument { id, text, sort, tags, metadata })
    }
}
