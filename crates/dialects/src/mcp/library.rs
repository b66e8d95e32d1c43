//! MCP requests for resources, prompts, completion and skills, and their answers.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use toolgate_contract::{
    Answer, Arguments, CallError, Completing, CompletingOf, Completion, Message, PromptArgument,
    PromptSpec, Reply, Request, ResourceMark, Role, Skill, SkillFiles,
};

use super::content::{Block, Face, Holding, Resource, Template};
use super::cursor;
use super::message::{Failure, INVALID_PARAMS, Id, RESOURCE_NOT_FOUND, not_a, success};
use super::revision::{Era, Revision};
use super::ticket::{McpTicket, Stamp, wording};
use crate::Facts;
use crate::json::Params;

/// The name of the skills extension.
pub const SKILLS: &str = "io.modelcontextprotocol/skills";
/// The cache time in milliseconds of lists that change rarely and announce changes.
pub(crate) const SELDOM_TTL_MS: u64 = 300_000;
/// The cache time in milliseconds of data that may change at any time.
const ANY_TIME_TTL_MS: u64 = 0;

/// Declares resources, prompts, completion and skills in the server's `capabilities`.
pub(crate) fn declare(revision: &Revision, facts: &Facts, capabilities: &mut Value) {
    if facts.resources {
        capabilities["resources"] = json!({ "subscribe": true, "listChanged": true });
    }
    if facts.prompts {
        capabilities["prompts"] = json!({ "listChanged": true });
    }
    if completes(facts) && revision.declares_completion {
        capabilities["completions"] = json!({});
    }
    if skilled(revision, facts) {
        capabilities["extensions"][SKILLS] = json!({ "directoryRead": true });
    }
}

fn completes(facts: &Facts) -> bool {
    facts.prompts || facts.resources
}

/// Returns true if the revision and the server support skills. Their files need resources.
fn skilled(revision: &Revision, facts: &Facts) -> bool {
    revision.era == Era::Stateless && facts.skills && facts.resources
}

/// A kind of library request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// A list of resources.
    Resources,
    /// A list of resource templates.
    Templates,
    /// The contents of a resource.
    Contents,
    /// The children of a folder.
    Folder,
    /// A subscription to a resource.
    Watch,
    /// A list of prompts.
    Prompts,
    /// A rendered prompt.
    Prompt,
    /// Candidates for a value.
    Completion,
    /// A list of skills.
    Skills,
    /// A skill.
    Skill,
}

impl Want {
    /// Returns the request kind of `method`, if the revision and the server support it.
    pub(crate) fn named(method: &str, revision: &Revision, facts: &Facts) -> Option<Self> {
        let (want, there) = match method {
            "resources/list" => (Self::Resources, facts.resources),
            "resources/templates/list" => (Self::Templates, facts.resources),
            "resources/read" => (Self::Contents, facts.resources),
            "resources/subscribe" => (Self::Watch, facts.resources && revision.era == Era::Session),
            "resources/directory/read" => (Self::Folder, skilled(revision, facts)),
            "prompts/list" => (Self::Prompts, facts.prompts),
            "prompts/get" => (Self::Prompt, facts.prompts),
            "completion/complete" => (Self::Completion, completes(facts)),
            "skills/list" => (Self::Skills, skilled(revision, facts)),
            "skills/get" => (Self::Skill, skilled(revision, facts)),
            _ => return None,
        };
        there.then_some(want)
    }

    /// Parses the parameters into a host request.
    pub(crate) fn read(self, id: &Id, params: &Params) -> Result<Request, Failure> {
        let uri = || uri_of(id, params);
        let text = |text: &str| Some(text.to_owned());
        Ok(match self {
            Self::Resources => {
                Request::ListResources { after: cursor::after(id, params, "resource", mark)? }
            }
            Self::Templates => {
                // All templates are on one page, so no cursor is valid.
                cursor::of(id, params, |_| None::<()>)?;
                Request::ListTemplates
            }
            Self::Contents => Request::ReadResource { uri: uri()? },
            Self::Folder => {
                let after = cursor::after(id, params, "child", text)?;
                Request::ReadFolder { uri: uri()?, after }
            }
            Self::Watch => Request::WatchResource { uri: uri()? },
            Self::Prompts => {
                let after = cursor::after(id, params, "prompt", text)?;
                Request::ListPrompts { after }
            }
            Self::Prompt => {
                let name = text_of(id, "params.name", params.get("name"))?;
                let arguments = arguments_of(id, "params.arguments", params.get("arguments"))?;
                Request::GetPrompt { name, arguments }
            }
            Self::Completion => Request::Complete(completing(id, params)?),
            Self::Skills => {
                let after = cursor::after(id, params, "skill", text)?;
                Request::ListSkills { after }
            }
            Self::Skill => Request::GetSkill { uri: uri()? },
        })
    }
}

/// Returns the URI that `request` names, if it names one.
pub(crate) fn named(request: &Request) -> Option<&str> {
    match request {
        Request::ReadResource { uri }
        | Request::ReadFolder { uri, .. }
        | Request::WatchResource { uri }
        | Request::GetSkill { uri } => Some(uri),
        _ => None,
    }
}

/// Parses the `uri` parameter.
pub(crate) fn uri_of(id: &Id, params: &Params) -> Result<String, Failure> {
    text_of(id, "params.uri", params.get("uri"))
}

/// Parses the string `value`, which is the parameter `at`.
fn text_of(id: &Id, at: &str, value: Option<&Value>) -> Result<String, Failure> {
    match value {
        Some(Value::String(text)) => Ok(text.clone()),
        other => Err(not_a("a string", id, at, other)),
    }
}

fn object_of<'a>(
    id: &Id,
    params: &'a Params,
    name: &str,
) -> Result<&'a Map<String, Value>, Failure> {
    match params.get(name) {
        Some(Value::Object(inner)) => Ok(inner),
        other => Err(not_a("an object", id, &format!("params.{name}"), other)),
    }
}

fn wrong(id: &Id, why: String) -> Failure {
    Failure::invalid_params(Some(id.clone()), why)
}

/// Parses an object of strings. A missing object is empty.
fn arguments_of(id: &Id, at: &str, value: Option<&Value>) -> Result<Arguments, Failure> {
    let fields = match value {
        None | Some(Value::Null) => return Ok(Arguments::new()),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(wrong(id, format!("`{at}` must be an object"))),
    };
    let text = |(name, value): (&String, &Value)| match value {
        Value::String(text) => Ok((name.clone(), text.clone())),
        _ => Err(wrong(id, format!("`{at}[{name:?}]` must be a string"))),
    };
    fields.iter().map(text).collect()
}

fn completing(id: &Id, params: &Params) -> Result<Completing, Failure> {
    let reference = object_of(id, params, "ref")?;
    let of = match reference.get("type").and_then(Value::as_str) {
        Some("ref/prompt") => {
            CompletingOf::Prompt(text_of(id, "params.ref.name", reference.get("name"))?)
        }
        Some("ref/resource") => {
            CompletingOf::Template(text_of(id, "params.ref.uri", reference.get("uri"))?)
        }
        Some(_) | None => {
            let why = "`params.ref.type` must be \"ref/prompt\" or \"ref/resource\"";
            return Err(wrong(id, why.into()));
        }
    };
    let argument = object_of(id, params, "argument")?;
    let others = match params.get("context") {
        None | Some(Value::Null) => None,
        Some(Value::Object(context)) => context.get("arguments"),
        Some(_) => return Err(wrong(id, "`params.context` must be an object".into())),
    };
    Ok(Completing {
        of,
        argument: text_of(id, "params.argument.name", argument.get("name"))?,
        so_far: text_of(id, "params.argument.value", argument.get("value"))?,
        others: arguments_of(id, "params.context.arguments", others)?,
    })
}

/// Parses the end of a page of resources from a cursor.
fn mark(text: &str) -> Option<ResourceMark> {
    let (source, uri) = text.split_once(' ')?;
    Some(ResourceMark { source: source.to_owned(), uri: uri.to_owned() })
}

impl McpTicket {
    /// Encodes the answer to a request for `want`.
    pub(crate) fn shelved(&self, want: Want, answer: &Answer) -> Reply {
        let revision = self.revision;
        match (want, answer) {
            (Want::Resources, Answer::Resources(page)) => {
                let resources = page.resources.iter().map(|one| Resource::of(one, revision));
                let after = page.next.as_ref().map(next_resource);
                self.page("resources", resources, after, ANY_TIME_TTL_MS)
            }
            (Want::Templates, Answer::Templates(templates)) => {
                let templates = templates.iter().map(|one| Template::of(one, revision));
                self.page("resourceTemplates", templates, None, SELDOM_TTL_MS)
            }
            (Want::Contents, Answer::Contents(contents)) => {
                let contents = contents.iter().map(|one| Holding::of(one, self.revision));
                self.page("contents", contents, None, ANY_TIME_TTL_MS)
            }
            (Want::Folder, Answer::Folder(resources, after)) => {
                let resources = resources.iter().map(|one| Resource::of(one, revision));
                let after = after.as_ref().map(|uri| cursor::next("child", uri));
                self.page("resources", resources, after, ANY_TIME_TTL_MS)
            }
            (Want::Watch, Answer::Watched { .. }) => success(&self.id, &self.stamp(None)),
            (Want::Prompts, Answer::Prompts(page)) => {
                let prompts = page.prompts.iter().map(|one| Prompt::of(one.spec(), revision));
                let after = page.next.as_ref().map(|name| cursor::next("prompt", name));
                self.page("prompts", prompts, after, SELDOM_TTL_MS)
            }
            (Want::Prompt, Answer::Prompt(prompt)) => {
                let messages = prompt.messages.iter().map(|one| Said::of(one, revision)).collect();
                let description = prompt.about.as_deref();
                success(&self.id, &Made { description, messages, stamp: self.stamp(None) })
            }
            (Want::Completion, Answer::Completion(found)) => self.completed(found),
            (Want::Skills, Answer::Skills(page)) => {
                let skills = page.skills.iter().map(skill);
                let after = page.next.as_ref().map(|uri| cursor::next("skill", uri));
                self.page("skills", skills, after, SELDOM_TTL_MS)
            }
            (Want::Skill, Answer::Skill(one)) => {
                let result = One { skill: skill(one), stamp: self.stamp(Some(SELDOM_TTL_MS)) };
                success(&self.id, &result)
            }
            (
                Want::Resources
                | Want::Templates
                | Want::Contents
                | Want::Folder
                | Want::Watch
                | Want::Prompts
                | Want::Prompt
                | Want::Completion
                | Want::Skills
                | Want::Skill,
                _,
            ) => self.astray(),
        }
    }

    /// Encodes a page of the list `name`.
    fn page<T: Serialize>(
        &self,
        name: &'static str,
        items: impl Iterator<Item = T>,
        next_cursor: Option<String>,
        ttl_ms: u64,
    ) -> Reply {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Page<'a, T> {
            #[serde(flatten)]
            list: List<T>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_cursor: Option<String>,
            #[serde(flatten)]
            stamp: Stamp<'a>,
        }
        let list = List { name, items: items.collect() };
        success(&self.id, &Page { list, next_cursor, stamp: self.stamp(Some(ttl_ms)) })
    }

    fn completed(&self, found: &Completion) -> Reply {
        #[derive(Serialize)]
        struct Completed<'a> {
            completion: Values<'a>,
            #[serde(flatten)]
            stamp: Stamp<'a>,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Values<'a> {
            values: &'a [String],
            total: usize,
            has_more: bool,
        }
        let Completion { values, total } = found;
        let completion = Values { values, total: *total, has_more: *total > values.len() };
        success(&self.id, &Completed { completion, stamp: self.stamp(None) })
    }

    /// Encodes the refusal of a library request. `uri` is the URI that the request named.
    pub(crate) fn unshelved(&self, uri: Option<&str>, error: &CallError) -> Reply {
        match (error, uri) {
            (CallError::NotFound { .. }, Some(uri)) => {
                let code = match self.revision.era {
                    Era::Session => RESOURCE_NOT_FOUND,
                    Era::Stateless => INVALID_PARAMS,
                };
                let failure = Failure::new(Some(self.id.clone()), code, wording(error));
                self.failed(failure.with_data(json!({ "uri": uri })))
            }
            (error, _) => self.refused(error),
        }
    }
}

fn next_resource(ResourceMark { source, uri }: &ResourceMark) -> String {
    cursor::next("resource", &format_args!("{source} {uri}"))
}

/// A list as a member of a result.
struct List<T> {
    name: &'static str,
    items: Vec<T>,
}

impl<T: Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.name, &self.items)])
    }
}

/// A prompt in a list.
#[derive(Serialize)]
struct Prompt<'a> {
    #[serde(flatten)]
    face: Face<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    arguments: Vec<Argument<'a>>,
}

/// An argument of a prompt.
#[derive(Serialize)]
struct Argument<'a> {
    #[serde(flatten)]
    face: Face<'a>,
    required: bool,
}

impl<'a> Prompt<'a> {
    fn of(spec: &'a PromptSpec, revision: &Revision) -> Self {
        let PromptSpec { name, title, about, arguments, icons } = spec;
        let argument = |argument: &'a PromptArgument| {
            let PromptArgument { name, title, about, required } = argument;
            let face = Face::of(revision, name, title.as_deref(), about.as_deref(), &[]);
            Argument { face, required: *required }
        };
        Self {
            face: Face::of(revision, name, title.as_deref(), about.as_deref(), icons),
            arguments: arguments.iter().map(argument).collect(),
        }
    }
}

/// A rendered prompt.
#[derive(Serialize)]
struct Made<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    messages: Vec<Said<'a>>,
    #[serde(flatten)]
    stamp: Stamp<'a>,
}

/// A message of a rendered prompt.
#[derive(Serialize)]
struct Said<'a> {
    role: Role,
    content: Block<'a>,
}

impl<'a> Said<'a> {
    fn of(message: &'a Message, revision: &Revision) -> Self {
        Self { role: message.role, content: Block::of(&message.content, revision) }
    }
}

/// The result of `skills/get`.
#[derive(Serialize)]
struct One<'a> {
    skill: Value,
    #[serde(flatten)]
    stamp: Stamp<'a>,
}

/// Converts a skill to the form of the skills extension.
fn skill(skill: &Skill) -> Value {
    let Skill { uri, front_matter, files } = skill;
    let files = match files {
        SkillFiles::All(files) => files
            .iter()
            .map(|file| json!({ "uri": file.uri, "digest": file.digest, "size": file.bytes }))
            .collect(),
        SkillFiles::Dynamic => json!("dynamic"),
    };
    json!({ "uri": uri, "frontmatter": front_matter, "resources": files })
}
