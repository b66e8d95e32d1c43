//! Shared types of all crates: tools, calls, requests, errors and frames.
//!
//! This crate does no IO and knows no protocol. Every other crate may depend on it.

mod schema;
mod kept;
mod tool;
mod content;
mod resource;
mod prompt;
mod skill;
mod asking;
mod caller;
mod spent;
mod ran;
mod call;
mod error;
mod envelope;
mod request;
mod change;
mod job;
mod frame;

pub use asking::{
    AskNow, Askable, Asker, Choice, ClientRoot, Given, Kind, Question, Questions, Said, Sampled,
    Sampling, Spend, Told,
};
pub use call::{
    Ahead, Beside, Call, Ctx, Event, EventSink, LeftFile, Level, Output, Stream, Text, Trace,
    line_of,
};
pub use caller::{Bearer, Caller, CallerKind};
pub use change::{Change, Changes, Interest};
pub use content::{Blob, Content, Icon, Meant, Media, MetaFields, Role, Shape};
pub use envelope::{
    Canonical, Envelope, EnvelopeError, Meta, Via, canonical_bytes, canonical_json,
};
pub use error::{CallError, Fault, Problem, ToolError};
pub use frame::{Body, Frame, Head, OpenFile, Reply};
pub use job::{
    Artefact, Happened, Job, JobEvent, JobId, JobPage, JobState, JobTerms, NotAJobId, OpenArtefact,
    Watch, Watched, Which,
};
pub use kept::Kept;
pub use prompt::{
    AnyPrompt, Arguments, Message, Prompt, PromptArgument, PromptSpec, PromptText, Prompts,
    erase_prompt,
};
pub use ran::Ran;
pub use request::{Answer, PromptPage, Request, ResourceMark, ResourcePage, SkillPage, ToolPage};
pub use resource::{
    COMPLETIONS_MAX, Claim, Completing, CompletingOf, Completion, Contents, Held, Hold,
    ResourceSpec, ResourceTemplate, Resources,
};
pub use schema::{Schema, schema_of};
pub use skill::{Skill, SkillFile, SkillFiles, Skills};
pub use spent::{Purse, Spent};
pub use tool::{
    Among, AnyTool, AsJob, BoxFuture, Effects, Ending, NoInput, Outcome, Shown, Tool, ToolId,
    ToolSpec, erase, fold, odd_glob, with_icons,
};
