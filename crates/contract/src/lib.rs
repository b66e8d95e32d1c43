//! The words every room shares: tools, calls, requests, errors and frames.
//!
//! Nothing here does IO and nothing here knows a protocol, so every other crate
//! can depend on this one and none on another.

mod tool;
mod call;
mod error;
mod request;
mod job;
mod frame;

pub use call::{Call, Caller, Ctx, Event, EventSink, LeftFile, Level, Output, Stream, Text};
pub use error::{CallError, Fault, Problem, ToolError};
pub use frame::{Body, Frame, Head, OpenFile, Reply};
pub use job::{
    Artefact, Happened, Job, JobEvent, JobId, JobPage, JobState, JobTerms, NotAJobId, OpenArtefact,
    Watch, Watched, Which,
};
pub use request::{Answer, Request, ToolPage};
pub use tool::{
    AnyTool, BoxFuture, Effects, Ending, Tool, ToolId, ToolSpec, erase, fold, schema_of,
};
