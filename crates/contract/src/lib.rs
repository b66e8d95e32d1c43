//! Shared types of all crates: tools, calls, requests, errors and frames.
//!
//! This crate does no IO and knows no protocol. Every other crate may depend on it.

mod schema;
mod json_cache;
mod tool;
mod content;
mod resource;
mod prompt;
mod skill;
mod questions;
mod caller;
mod write_budget;
mod sandbox_report;
mod call;
mod error;
mod envelope;
mod request;
mod change;
mod job;
mod frame;

pub use call::{
    CallEvent, CallMetadata, EventSink, LogLevel, OutputStream, ProducedFile, ResultText,
    StartedWork, ToolCall, ToolContext, ToolOutput, TraceContext, log_text,
};
pub use caller::{BearerToken, Caller, CallerKind};
pub use change::{ChangeFeed, ChangeFilter, ServerChange};
pub use content::{
    Base64Bytes, ContentAnnotations, ContentBlock, ContentBody, Icon, MediaData, MessageRole,
    MetaFields,
};
pub use envelope::{
    CallEnvelope, CallOrigin, CanonicalCode, EnvelopeError, EnvelopeMeta, canonical_json,
    canonical_json_len,
};
pub use error::{CallError, ToolError, ToolFault, ValidationProblem};
pub use frame::{FrameHead, MessageFrame, OpenFile, Reply, ReplyBody};
pub use job::{
    ArtefactSelection, JobArtefact, JobEvent, JobEventKind, JobEventStream, JobId, JobIdError,
    JobOptions, JobPage, JobSnapshot, JobState, JobStreamItem, OpenArtefact,
};
pub use json_cache::JsonCache;
pub use prompt::{
    AnyPrompt, Prompt, PromptArgument, PromptArguments, PromptMessage, PromptSource, PromptSpec,
    PromptText, erase_prompt,
};
pub use questions::{
    Asker, ClientAnswer, ClientAnswers, ClientQuestion, ClientQuestions, ClientRoot,
    ConsentRedeemer, PersonChoice, QuestionKind, QuestionSender, QuestionSupport, SamplingAnswer,
    SamplingMessage, SamplingRequest,
};
pub use request::{
    HostAnswer, HostRequest, PromptPage, ResourceCursor, ResourcePage, SkillPage, ToolPage,
};
pub use resource::{
    COMPLETIONS_MAX, Completion, CompletionRequest, CompletionTarget, ResourceContents,
    ResourceData, ResourceSource, ResourceSpec, ResourceTemplate, UriClaim, WatchGuard,
};
pub use sandbox_report::SandboxReport;
pub use schema::{LazySchema, schema_of};
pub use skill::{Skill, SkillFile, SkillFiles, SkillSource};
pub use tool::{
    AnyTool, BoxFuture, CallEnding, ConcurrencyGroup, ContentOnly, Effects, JobSupport, NoInput,
    Tool, ToolId, ToolOutcome, ToolSpec, erase_tool, fold_name, glob_problem, with_icons,
};
pub use write_budget::{RateBudget, WriteBudget};
