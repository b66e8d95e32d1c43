//! `search.index_status`: reports the progress of search indexes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::{IndexState, IndexStateReport, SearchService, WORKSPACE};
use crate::counted::counted;

/// The longest time that a call may wait for the index, in milliseconds.
const WAIT_MS_MAX: u64 = 600_000;

/// The tool `search.index_status`.
pub struct GetIndexStatus {
    pub(super) service: Arc<SearchService>,
}

/// Input of `search.index_status`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetIndexStatusInput {
    /// Namespace to show.
    namespace: Option<String>,
    /// Milliseconds to wait for an up-to-date index.
    #[serde(default)]
    #[schemars(range(min = 0, max = 600_000))]
    wait_ms: u64,
}

/// Output of `search.index_status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GetIndexStatusOutput {
    /// Status by namespace.
    namespaces: BTreeMap<String, IndexStateReport>,
    /// The configured embedding model, or null.
    embedding_model: Option<String>,
}

impl Tool for GetIndexStatus {
    const NAME: &'static str = "search.index_status";
    const TITLE: &'static str = "Search index status";
    const DESCRIPTION: &'static str =
        "Show the namespaces that can be searched, with the state of each index.";
    const EFFECTS: Effects = Effects::Reads;
    const RARE_ARGUMENTS: &'static [&'static str] = &["namespace"];
    const IDEMPOTENT: bool = true;
    type Input = GetIndexStatusInput;
    type Output = GetIndexStatusOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let GetIndexStatusInput { namespace, wait_ms } = input;
        if wait_ms > WAIT_MS_MAX {
            let message = format!("it must be at most {WAIT_MS_MAX}");
            return Err(ToolError::invalid("/wait_ms", message));
        }
        let embedding_model = self.service.model_name().await;
        if wait_ms > 0 {
            let name = namespace.as_deref().unwrap_or(WORKSPACE);
            let until = (Instant::now() + Duration::from_millis(wait_ms)).min(ctx.deadline);
            self.service.refresh(ctx, name, until).await?;
        }
        let mut namespaces = self.service.index_reports().await;
        if let Some(name) = namespace {
            namespaces.retain(|known, _| *known == name);
            if namespaces.is_empty() {
                return Err(self.service.unknown_namespace(&name).await);
            }
        }
        Ok(GetIndexStatusOutput { namespaces, embedding_model })
    }

    fn result_text(output: &GetIndexStatusOutput) -> ResultText {
        let mut body = String::new();
        for (name, report) in &output.namespaces {
            body += &format!("{name}: {}\n", status_line(report));
        }
        ResultText::from_body(body)
    }
}

/// Returns the first line of an answer from an index that does not contain all files yet. Returns
/// an empty text for a complete index.
pub(super) fn partial_line(report: &IndexStateReport) -> String {
    let IndexStateReport { files, files_total, .. } = report;
    match report.state {
        IndexState::Absent | IndexState::Building | IndexState::Rebuilding => {
            let total = files_total.map(|total| format!(" of {}", with_commas(total)));
            let files = with_commas(*files);
            format!("partial: {files}{} files indexed\n\n", total.unwrap_or_default())
        }
        IndexState::Ready | IndexState::Following | IndexState::Away => String::new(),
    }
}

/// Returns `number` as text with a comma between thousands.
fn with_commas(number: u64) -> String {
    match number / 1000 {
        0 => number.to_string(),
        thousands => format!("{},{:03}", with_commas(thousands), number % 1000),
    }
}

/// Returns the status of a search index in one line.
pub(super) fn status_line(report: &IndexStateReport) -> String {
    let IndexStateReport { state, files, files_total, chunks, vectors, complete, note } = report;
    let state_text = match state {
        IndexState::Absent => {
            return "not opened yet; the next search opens it".to_owned();
        }
        IndexState::Building => "being built",
        IndexState::Rebuilding => "being rebuilt",
        IndexState::Ready => "ready",
        IndexState::Following => "maintained by another server",
        IndexState::Away => "unavailable",
    };
    let files = match files_total {
        Some(total) => format!("{files} of {}", counted(*total, "file", "files")),
        None => counted(*files, "file", "files"),
    };
    let mut line = format!("{state_text}; {files}, {}", counted(*chunks, "passage", "passages"));
    if let Some(vectors) = vectors {
        line += &format!(", {vectors} with a vector of the model");
    }
    if *state == IndexState::Ready && !complete {
        line += "; some files are left out because a limit was reached or they cannot be read";
    }
    if let Some(note) = note {
        line += &format!("; {note}");
    }
    line
}
