//! Requests from a dialect to the host, and the host's answers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::{
    AnyPrompt, AnyTool, ArtefactSelection, CallError, ClientAnswers, ClientQuestions,
    CompletionCandidates, CompletionRequest, JobId, JobOptions, JobPage, JobSnapshot,
    KeepActiveGuard, OpenArtefact, PromptArguments, RenderedPrompt, ResourceContents, ResourceSpec,
    ResourceTemplate, Skill, ToolId, ToolOutput,
};

/// A client's request to the host, independent of the client's dialect.
#[derive(Debug, Clone, PartialEq)]
pub enum HostRequest {
    /// Request for a page of the list of available tools.
    ListTools {
        /// The id of the last tool of the previous page. `None` for the first page.
        after: Option<ToolId>,
    },
    /// Request for all available tools and prompts.
    Discover,
    /// A request that the dialect could not read. The host refuses it and records it like any other
    /// request.
    Refuse(CallError),
    /// A tool call that the dialect rejects. The host refuses it and records it like any other
    /// call.
    RefuseCall {
        /// The called tool's name.
        tool: String,
        /// The reason why the call is refused.
        why: CallError,
    },
    /// Request to run one tool.
    CallTool {
        /// The tool's name as the dialect spells it.
        tool: String,
        /// The arguments of the tool.
        input: Value,
    },
    /// Request to run one tool as a job.
    StartJob {
        /// The tool's name as the dialect spells it.
        tool: String,
        /// The arguments of the tool.
        input: Value,
        /// The options for the new job.
        terms: JobOptions,
    },
    /// Request for the current state of one of the caller's jobs.
    GetJob {
        /// The job's id as the client sent it.
        id: String,
    },
    /// Request that waits until one of the caller's jobs has ended, and returns the job.
    AwaitJob {
        /// The job's id as the client sent it.
        id: String,
    },
    /// Request for a page of the list of the caller's jobs.
    ListJobs {
        /// The id of the last job of the previous page. `None` for the first page.
        after: Option<JobId>,
    },
    /// Request to cancel one of the caller's jobs.
    CancelJob {
        /// The job's id as the client sent it.
        id: String,
        /// The answer if the job has ended already.
        if_ended: EndedJobCancelReply,
    },
    /// Request to open a file that one of the caller's jobs produced.
    OpenArtefact {
        /// The job's id as the client sent it.
        id: String,
        /// The selected file of the job.
        which: ArtefactSelection,
    },
    /// Answers to the questions of one of the caller's jobs.
    AnswerJob {
        /// The job's id as the client sent it.
        id: String,
        /// The answers to the job's questions. Answers to questions that the job does not ask are
        /// ignored.
        given: ClientAnswers,
    },
    /// Request for a page of the list of available resources.
    ListResources {
        /// The last resource of the previous page. `None` for the first page.
        after: Option<ResourceCursor>,
    },
    /// Request for the list of resource templates.
    ListTemplates,
    /// Request for the contents of a resource.
    ReadResource {
        /// The URI of the resource to read.
        uri: String,
    },
    /// Request for the resources that are direct children of a folder.
    ReadFolder {
        /// The URI of the folder, which is a resource.
        uri: String,
        /// The URI of the last resource of the previous page. `None` for the first page.
        after: Option<String>,
    },
    /// Subscription to the changes of a resource.
    WatchResource {
        /// The URI of the resource to watch.
        uri: String,
    },
    /// Request for a page of the list of available prompts.
    ListPrompts {
        /// The name of the last prompt of the previous page. `None` for the first page.
        after: Option<String>,
    },
    /// Request to render a prompt into messages.
    GetPrompt {
        /// The name of the prompt to render.
        name: String,
        /// The arguments of the prompt.
        arguments: PromptArguments,
    },
    /// Request to complete a value that a person is typing.
    Complete(CompletionRequest),
    /// Request for a page of the list of available skills.
    ListSkills {
        /// The URI of the last skill of the previous page. `None` for the first page.
        after: Option<String>,
    },
    /// Request for one skill with the list of its files.
    GetSkill {
        /// The URI of the skill's `SKILL.md`.
        uri: String,
    },
}

/// The answer to a request that cancels a job which has already ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedJobCancelReply {
    /// The ended job, whose state shows how it ended. A repeated cancellation has the same result.
    Job,
    /// An error: [`CallError::Conflict`](crate::CallError::Conflict).
    Refusal,
}

/// The last resource of a page, after which the next page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceCursor {
    /// The name of the source that has the last resource.
    pub source: String,
    /// The URI of the last resource.
    pub uri: String,
}

/// Answer of the host to a request of a client.
#[derive(Clone)]
pub enum HostAnswer {
    /// A page of tools.
    Tools(ToolPage),
    /// All available tools and prompts.
    Everything {
        /// The available tools, ordered by id.
        tools: Vec<Arc<dyn AnyTool>>,
        /// The available prompts, ordered by name.
        prompts: Vec<Arc<dyn AnyPrompt>>,
    },
    /// The output of a tool.
    Output(ToolOutput),
    /// One of the caller's jobs.
    Job(Box<JobSnapshot>),
    /// A page of the caller's jobs.
    Jobs(JobPage),
    /// An open file of one of the caller's jobs.
    Artefact(OpenArtefact),
    /// A page of resources.
    Resources(ResourcePage),
    /// All resource templates.
    Templates(Vec<ResourceTemplate>),
    /// The contents of one resource.
    Contents(Vec<ResourceContents>),
    /// A page of the children of a folder. The second value is the URI of the last child of this
    /// page, if another page follows.
    Folder(Vec<ResourceSpec>, Option<String>),
    /// A subscription to changes of a resource, active until `hold` is dropped.
    Watched {
        /// The URI of the watched resource.
        uri: String,
        /// The guard that keeps the subscription active.
        hold: KeepActiveGuard,
    },
    /// A page of prompts.
    Prompts(PromptPage),
    /// A rendered prompt.
    Prompt(RenderedPrompt),
    /// Candidates for a value that a person is typing.
    Completion(CompletionCandidates),
    /// A page of skills.
    Skills(SkillPage),
    /// One skill, with the list of its files.
    Skill(Box<Skill>),
    /// Questions to the client, which must make the request again with the answers and the state.
    Questions {
        /// The questions to the client.
        questions: ClientQuestions,
        /// The host's state of the request, sealed so that only the host can create it. The client
        /// returns it unchanged.
        state: String,
    },
}

/// A page of the list of resources.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourcePage {
    /// The resources of this page.
    pub resources: Vec<ResourceSpec>,
    /// The last resource of this page, if another page follows.
    pub next: Option<ResourceCursor>,
}

/// A page of the list of prompts, ordered by name.
#[derive(Clone)]
pub struct PromptPage {
    /// The prompts of this page.
    pub prompts: Vec<Arc<dyn AnyPrompt>>,
    /// The name of the last prompt of this page, if another page follows.
    pub next: Option<String>,
}

/// A page of the list of skills, ordered by URI.
#[derive(Debug, Clone, PartialEq)]
pub struct SkillPage {
    /// The skills of this page.
    pub skills: Vec<Skill>,
    /// The URI of the last skill of this page, if another page follows.
    pub next: Option<String>,
}

/// A page of the list of tools, ordered by id.
#[derive(Clone)]
pub struct ToolPage {
    /// The tools of this page.
    pub tools: Vec<Arc<dyn AnyTool>>,
    /// The id of the last tool of this page, if another page follows.
    pub next: Option<ToolId>,
    /// Time for which the list of tools certainly stays the same, if that is known.
    pub unchanged_for: Option<Duration>,
}
