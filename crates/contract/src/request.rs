//! What a dialect can ask of the host, and what the host answers.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    AnyPrompt, AnyTool, Arguments, CallError, Completing, Completion, Contents, Given, Hold, Job,
    JobId, JobPage, JobTerms, OpenArtefact, Output, PromptText, Questions, ResourceSpec,
    ResourceTemplate, Skill, ToolId, Which,
};

/// What a dialect read in a frame, with the wire's spelling gone.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// The tools on offer, from after the one named.
    ListTools {
        /// The last tool of the page before, or the start.
        after: Option<ToolId>,
    },
    /// Everything on offer: tools and prompts.
    Discover,
    /// What no request could be made of, and why: so that it is told as any refusal is.
    Refuse(CallError),
    /// A call of one tool that its wire does not let through, and why: told as any refusal is.
    RefuseCall {
        /// The tool's name.
        tool: String,
        /// Why.
        why: CallError,
    },
    /// One tool, run.
    CallTool {
        /// Its name as the wire spells it.
        tool: String,
        /// Its arguments.
        input: Value,
    },
    /// One tool, run as a job.
    StartJob {
        /// Its name as the wire spells it.
        tool: String,
        /// Its arguments.
        input: Value,
        /// What is said of the job.
        terms: JobTerms,
    },
    /// One of the caller's jobs, as it is.
    GetJob {
        /// Its id as the wire has it.
        id: String,
    },
    /// One of the caller's jobs, once it has ended.
    AwaitJob {
        /// Its id as the wire has it.
        id: String,
    },
    /// The caller's jobs, newest first.
    ListJobs {
        /// The last job of the page before, or the start.
        after: Option<JobId>,
    },
    /// One of the caller's jobs, told to stop.
    CancelJob {
        /// Its id as the wire has it.
        id: String,
    },
    /// A file that one of the caller's jobs left.
    OpenArtefact {
        /// The job's id as the wire has it.
        id: String,
        /// Which file.
        which: Which,
    },
    /// Answers to what one of the caller's jobs asks.
    TellJob {
        /// The job's id as the wire has it.
        id: String,
        /// The answers; those to questions it does not ask are ignored.
        given: Given,
    },
    /// The resources there are.
    ListResources {
        /// The end of the page before, or the start.
        after: Option<ResourceMark>,
    },
    /// The resource templates there are.
    ListTemplates,
    /// What a resource holds.
    ReadResource {
        /// What it is read by.
        uri: String,
    },
    /// What is in a folder that is a resource.
    ReadFolder {
        /// What it is read by.
        uri: String,
        /// The last resource of the page before, or the start.
        after: Option<String>,
    },
    /// That changes of a resource be told.
    WatchResource {
        /// What it is read by.
        uri: String,
    },
    /// The prompts there are.
    ListPrompts {
        /// The last prompt of the page before, or the start.
        after: Option<String>,
    },
    /// A prompt, made.
    GetPrompt {
        /// Its name.
        name: String,
        /// What it is told.
        arguments: Arguments,
    },
    /// What a value may be that somebody types.
    Complete(Completing),
    /// The skills there are.
    ListSkills {
        /// The last skill of the page before, or the start.
        after: Option<String>,
    },
    /// One skill.
    GetSkill {
        /// Its `SKILL.md`.
        uri: String,
    },
}

/// Where a page of resources ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceMark {
    /// In which source.
    pub source: String,
    /// After which URI of it.
    pub uri: String,
}

/// What the host answers.
#[derive(Clone)]
pub enum Answer {
    /// A page of tools.
    Tools(ToolPage),
    /// All tools and prompts on offer.
    Everything {
        /// The tools, in order of id.
        tools: Vec<Arc<dyn AnyTool>>,
        /// The prompts, in order of name.
        prompts: Vec<Arc<dyn AnyPrompt>>,
    },
    /// What the tool gave back.
    Output(Output),
    /// A job.
    Job(Box<Job>),
    /// A page of jobs.
    Jobs(JobPage),
    /// A job's file.
    Artefact(OpenArtefact),
    /// A page of resources.
    Resources(ResourcePage),
    /// The resource templates.
    Templates(Vec<ResourceTemplate>),
    /// What a resource holds.
    Contents(Vec<Contents>),
    /// What is in a folder: its resources, and where the next page starts after, if there is one.
    Folder(Vec<ResourceSpec>, Option<String>),
    /// Changes of the resource `uri` are told for as long as this is held.
    Watched {
        /// What it is read by.
        uri: String,
        /// To be kept.
        hold: Hold,
    },
    /// A page of prompts.
    Prompts(PromptPage),
    /// A prompt, made.
    Prompt(PromptText),
    /// What a value may be.
    Completion(Completion),
    /// A page of skills.
    Skills(SkillPage),
    /// A skill.
    Skill(Box<Skill>),
    /// The request is to be made again with answers to these, and with the state as it is.
    Asks {
        /// What is asked.
        questions: Questions,
        /// What the host wants to be told again. Sealed: nobody else can make one.
        state: String,
    },
}

/// A page of resources.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourcePage {
    /// The resources.
    pub resources: Vec<ResourceSpec>,
    /// Where the next page starts after, if there is one.
    pub next: Option<ResourceMark>,
}

/// A page of prompts, in order of name.
#[derive(Clone)]
pub struct PromptPage {
    /// The prompts.
    pub prompts: Vec<Arc<dyn AnyPrompt>>,
    /// Where the next page starts after, if there is one.
    pub next: Option<String>,
}

/// A page of skills, in order of URI.
#[derive(Debug, Clone, PartialEq)]
pub struct SkillPage {
    /// The skills.
    pub skills: Vec<Skill>,
    /// Where the next page starts after, if there is one.
    pub next: Option<String>,
}

/// A page of the catalog, in order of id.
#[derive(Clone)]
pub struct ToolPage {
    /// The tools.
    pub tools: Vec<Arc<dyn AnyTool>>,
    /// Where the next page starts after, if there is one.
    pub next: Option<ToolId>,
}
