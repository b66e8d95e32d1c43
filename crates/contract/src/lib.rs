//! Shared types of all crates: tools, calls, requests, errors and frames.
//!
//! This crate does no I/O and knows no protocol. Every other crate may depend on it.

pub mod printable;
mod sync;
mod byte_order_mark;
mod variables;
mod future;
pub mod exact_json;
mod schema;
mod json_cache;
mod json_size;
mod line_diff;
mod sandbox_report;
mod caller;
mod client_profile;
mod change;
mod content;
mod questions;
mod error;
mod write_budget;
mod asker;
mod tool_spec;
mod argument_names;
mod job_id;
mod trace_context;
mod call;
mod result_form;
mod tool;
mod resource;
mod prompt;
mod skill;
mod frame;
mod job;
mod envelope;
mod request;

pub use argument_names::{RenamedArguments, accepted_names};
pub use asker::{ConsumeRequestStateFn, QuestionAsker, QuestionSender};
pub use byte_order_mark::{strip_byte_order_mark, strip_byte_order_mark_bytes};
pub use call::{
    CallEvent, CallEventSink, CallMetadata, LogLevel, OUTPUT_TOOL, OutputStreamKind,
    PreparedCallValue, ProducedFile, ResultText, ToolCall, ToolContext, ToolOutput, log_text,
};
pub use caller::{BearerToken, Caller, CallerKind};
pub use change::{ChangeFeed, ChangeFilter, ServerChange};
pub use client_profile::ClientProfile;
pub use content::{
    Base64Bytes, ContentAnnotations, ContentBlock, ContentBody, Icon, MediaData, MessageRole,
    MetaFields, PromptMessage, ResourceContents, ResourceData, ResourceSpec, ResourceTemplate,
};
pub use envelope::{
    CallEnvelope, EnvelopeError, EnvelopeErrorCode, EnvelopeMetadata, EnvelopeRequestInfo,
    canonical_json, canonical_json_len,
};
pub use error::{CallError, ToolError, ToolErrorKind, ToolFuture, ValidationProblem};
pub use frame::{FrameMetadata, MessageFrame, OutgoingFile, Reply, ReplyBody};
pub use future::BoxFuture;
pub use job::{
    ArtefactSelection, JobArtefact, JobEvent, JobEventKind, JobEventStream, JobOptions,
    JobOutputText, JobPage, JobSnapshot, JobState, JobStreamItem, OpenArtefact,
};
pub use job_id::{JobId, JobIdError};
pub use json_cache::EncodedJsonCache;
pub use json_size::{count_json_values, has_json_values_at_most, json_len, skip_json_string};
pub use line_diff::{diff_lines, unified_diff, write_hunk_lines};
pub use prompt::{
    AnyPrompt, Prompt, PromptArgument, PromptArguments, PromptSource, PromptSpec, RenderedPrompt,
    erase_prompt,
};
pub use questions::{
    ClientAnswer, ClientAnswers, ClientQuestion, ClientQuestions, ClientRoot, ElicitationAnswer,
    QuestionKind, QuestionSupport, SamplingAnswer, SamplingMessage, SamplingRequest,
};
pub use request::{
    EndedJobCancelReply, HostAnswer, HostRequest, PromptPage, ResourceCursor, ResourcePage,
    SkillPage, ToolPage,
};
pub use resource::{
    COMPLETIONS_MAX, CompletionCandidates, CompletionRequest, CompletionTarget, KeepActiveGuard,
    ResourceSource, SharedLongResult, SharedResultStore, UriClaimStrength,
};
pub use result_form::ToolResultFormat;
pub use sandbox_report::SandboxReport;
pub use schema::{LazySchema, schema_of};
pub use skill::{Skill, SkillFile, SkillFileList, SkillSource};
pub use sync::{lock_mutex, lock_read, lock_write, try_lock_mutex};
pub use tool::{
    AnyTool, NoInput, Tool, TypedToolResult, UnstructuredResult, erase_tool, with_spec,
};
pub use tool_spec::{
    ConcurrencyGroup, Effects, JobSupport, ToolId, ToolRunStatus, ToolSpec, fold_name, glob_problem,
};
pub use trace_context::TraceContext;
pub use variables::{fill_variables, variable_names};
pub use write_budget::{WriteBudget, WriteRateBudget};
