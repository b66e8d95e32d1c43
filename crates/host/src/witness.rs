//! Defines the observer of calls, by which the server collects metrics and traces.

use std::borrow::Cow;

use toolgate_contract::{Beside, ToolId, Trace};

/// An observer that is notified of each call.
pub trait Witness: Send + Sync + 'static {
    /// Starts observing a call. The returned span receives its end.
    fn begins(&self, call: &Begins<'_>) -> Box<dyn Seen>;
}

/// A call whose start was observed.
pub trait Seen: Send + Sync {
    /// Returns the trace context of work that the call starts, if it differs from the caller's.
    fn trace(&self) -> Option<Trace>;
    /// Ends the span. It is called once, however the call ends.
    fn ends(self: Box<Self>, how: &Ends<'_>);
}

/// A call at its start.
#[derive(Debug, Clone, Copy)]
pub struct Begins<'a> {
    /// Target of the call.
    pub called: Called<'a>,
    /// Name of the dialect that the call came by.
    pub dialect: &'a Cow<'static, str>,
    /// Metadata that came with the call.
    pub beside: &'a Beside,
    /// True if the call runs as a job.
    pub is_job: bool,
}

/// Target of a call. Only the name of a prompt may be text of the caller.
#[derive(Debug, Clone, Copy)]
pub enum Called<'a> {
    /// A tool that the caller may see.
    Tool(&'a ToolId),
    /// A tool that is unknown to the caller.
    NoTool,
    /// A resource, named by the guard tool of its source.
    Resource(&'a ToolId),
    /// An unknown resource.
    NoResource,
    /// A prompt by its name, which may be unknown.
    Prompt(&'a str),
}

/// Outcome of a call.
#[derive(Debug, Clone, Copy)]
pub struct Ends<'a> {
    /// Outcome word as in the audit record.
    pub outcome: &'static str,
    /// Policy decision as a word and its rule, if the call came that far.
    pub decided: Option<(&'static str, &'a str)>,
}
