//! Finds tools by a question, and writes them as lines for a model.
//!
//! The index is small, in memory and exact. The crate does no I/O and knows no protocol, so that an
//! evaluation measures the code that serves callers.

mod question;
mod document;
mod memory;
mod index;
mod names;
mod rank;
mod signature;
mod lines;
mod answer;
mod surface;

pub use answer::{FoundTool, ToolQueryResults, write_findings};
pub use document::ToolSearchDocument;
pub use index::{CallerVisibleTools, ToolSearchIndex};
pub use lines::{first_sentence, tool_line};
pub use memory::RememberedToolQueries;
pub use names::{nearest_names, strip_prefix};
pub use question::ToolSearchQuery;
pub use rank::{
    BestToolConfidence, RankedTool, ToolSimilarities, ToolWordScore, rank, word_scores,
};
pub use signature::{ToolSignature, lean_schema, signature, skeleton};
pub use surface::{
    CALL_DESCRIPTION, READ_DESCRIPTION, call_schema, search_description, search_schema,
};
