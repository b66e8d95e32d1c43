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

pub use answer::{FoundTool, QueryResults, write_findings};
pub use document::ToolDocument;
pub use index::{ToolIndex, VisibleTools};
pub use lines::{first_sentence, tool_line};
pub use memory::RememberedQuestions;
pub use names::{nearest_names, strip_prefix};
pub use question::Question;
pub use rank::{BestToolFit, RankedTool, ToolSimilarities, WordScore, rank, word_scores};
pub use signature::{ToolSignature, lean_schema, signature, skeleton};
pub use surface::{
    CALL_DESCRIPTION, READ_DESCRIPTION, call_schema, search_description, search_schema,
};
