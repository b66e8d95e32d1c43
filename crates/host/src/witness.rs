//! Whoever is told of each call that it began and how it ended, for metrics and traces: of those
//! the host knows nothing.

use std::borrow::Cow;

use toolgate_contract::{Beside, ToolId, Trace};

/// Whoever is told of each call.
pub trait Witness: Send + Sync + 'static {
    /// A call begins. What comes back is told how it ends.
    fn begins(&self, call: &Begins<'_>) -> Box<dyn Seen>;
}

/// A call that was seen to begin.
pub trait Seen: Send + Sync {
    /// Which trace what the call starts belongs to, where that is not the one it came with.
    fn trace(&self) -> Option<Trace>;
    /// The call has ended: told once, however it ends.
    fn ends(self: Box<Self>, how: &Ends<'_>);
}

/// A call as it begins.
#[derive(Debug, Clone, Copy)]
pub struct Begins<'a> {
    /// What is called.
    pub called: Called<'a>,
    /// By which dialect.
    pub dialect: &'a Cow<'static, str>,
    /// What came beside it.
    pub beside: &'a Beside,
    /// Whether it is a job.
    pub is_job: bool,
}

/// What is called. No name in it is the caller's own, but for that of a prompt.
#[derive(Debug, Clone, Copy)]
pub enum Called<'a> {
    /// A tool that the caller sees.
    Tool(&'a ToolId),
    /// A tool that there is not, as far as the caller knows.
    NoTool,
    /// A resource of the source that this guards.
    Resource(&'a ToolId),
    /// A resource that there is not.
    NoResource,
    /// The prompt of this name, if there is one.
    Prompt(&'a str),
}

/// How a call ended.
#[derive(Debug, Clone, Copy)]
pub struct Ends<'a> {
    /// The word that its record has for that.
    pub outcome: &'static str,
    /// What policy decided, in a word, and by which rule, if it came so far.
    pub decided: Option<(&'static str, &'a str)>,
}
