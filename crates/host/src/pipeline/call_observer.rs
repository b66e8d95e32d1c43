//! Defines the observer of calls, with which the server collects metrics and traces.

use std::borrow::Cow;

use toolgate_contract::{CallMetadata, Caller, ToolId, TraceContext};

/// An observer that is notified of the start and end of each call, such as a tracer.
pub trait CallObserver: Send + Sync + 'static {
    /// Starts observing a call. The returned span receives the end of the call.
    fn begin_call(&self, call: &ObservedCallStart<'_>) -> Box<dyn CallSpan>;
}

/// Observation of one call, from its start to its end.
pub trait CallSpan: Send + Sync {
    /// Returns the trace context for programs and requests that the call starts, if it differs from
    /// the caller's.
    fn trace(&self) -> Option<TraceContext>;
    /// Ends the span of the call. The host calls this exactly once, however the call ends.
    fn end(self: Box<Self>, how: &ObservedCallEnd<'_>);
}

/// A call at its start, as an observer sees it.
#[derive(Debug, Clone, Copy)]
pub struct ObservedCallStart<'a> {
    /// The caller who made the call.
    pub caller: &'a Caller,
    /// Target of the call, such as a tool.
    pub target: CallTarget<'a>,
    /// Name of the dialect of the call.
    pub dialect: &'a Cow<'static, str>,
    /// Metadata that came with the call.
    pub metadata: &'a CallMetadata,
    /// True if the call runs as a job.
    pub is_job: bool,
}

/// Target of a call. Only the name of a prompt may be arbitrary text of the caller.
#[derive(Debug, Clone, Copy)]
pub enum CallTarget<'a> {
    /// Id of a tool that the caller may see.
    Tool(&'a ToolId),
    /// A tool that does not exist or that is hidden from the caller.
    UnknownTool,
    /// A resource, with the tool id whose policy rules apply to the resource's source.
    Resource(&'a ToolId),
    /// A resource that does not exist or that is hidden from the caller.
    UnknownResource,
    /// A prompt by its name, which may be unknown.
    Prompt(&'a str),
}

/// Outcome of a call, as an observer sees it.
#[derive(Debug, Clone, Copy)]
pub struct ObservedCallEnd<'a> {
    /// Outcome of the call in one word, as in the audit record.
    pub outcome: &'static str,
    /// Policy decision as a word and the name of its rule, if the call reached the policy.
    pub decision: Option<(&'static str, &'a str)>,
}
