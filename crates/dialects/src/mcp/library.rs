//! MCP requests for resources, prompts, completions and skills (together: library requests), and
//! their answers.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use toolgate_contract::{
    CallError, CompletionCandidates, CompletionRequest, CompletionTarget, HostAnswer, HostRequest,
    MessageRole, PromptArgument, PromptArguments, PromptMessage, PromptSpec, Reply, ResourceCursor,
    Skill, SkillFileList, exact_json,
};

use super::content::{
    EmbeddedResource, ItemDisplayInfo, McpContentBlock, McpResourceEntry, ResourceTemplateEntry,
};
use super::cursor;
use super::encoder::{CommonResultMembers, McpEncoder, error_message};
use super::message::{
    INVALID_PARAMS, McpError, RESOURCE_NOT_FOUND, RequestId, success, wrong_type,
};
use super::revision::{McpRevision, SessionModel};
use crate::ServerInfo;
use crate::json::RpcParams;

/// The name of MCP's skills extension.
pub const SKILLS: &str = "io.modelcontextprotocol/skills";
/// The cache time of lists that change rarely and announce changes, in milliseconds.
pub(crate) const RARE_CHANGE_TTL_MS: u64 = 300_000;
/// The cache time of data that may change at any time, in milliseconds.
const UNCACHED_TTL_MS: u64 = 0;

/// Adds resources, prompts, completion and skills to the server's `capabilities`, as far as the
/// server and the protocol revision support them.
pub(crate) fn declare_capabilities(
    revision: &McpRevision,
    facts: &ServerInfo,
    capabilities: &mut Value,
) {
    if facts.resources {
        capabilities["resources"] = json!({ "subscribe": true, "listChanged": true });
    }
    if facts.prompts {
        capabilities["prompts"] = json!({ "listChanged": true });
    }
    if supports_completion(facts) && revision.declares_completion {
        capabilities["completions"] = json!({});
    }
    if supports_skills(revision, facts) {
        capabilities["extensions"][SKILLS] = json!({ "directoryRead": true });
    }
}

fn supports_completion(facts: &ServerInfo) -> bool {
    facts.prompts || facts.resources
}

/// Returns true if the protocol revision and the server support skills. Skills need resources, too,
/// because their files are resources.
fn supports_skills(revision: &McpRevision, facts: &ServerInfo) -> bool {
    revision.era == SessionModel::Stateless && facts.skills && facts.resources
}

/// The kind of a library request: an MCP request for resources, prompts, completions or skills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LibraryRequestKind {
    /// A request for the list of resources.
    Resources,
    /// A request for the list of resource templates.
    Templates,
    /// A request for the contents of a resource.
    Contents,
    /// A request for the children of a folder of resources.
    Folder,
    /// A subscription to changes of a resource.
    Watch,
    /// A request for the list of prompts.
    Prompts,
    /// A request for a rendered prompt.
    Prompt,
    /// A request for completions of a value that a person is typing.
    Completion,
    /// A request for the list of skills.
    Skills,
    /// A request for one skill.
    Skill,
}

impl LibraryRequestKind {
    /// Returns the kind of library request that `method` makes, if the revision and the server
    /// support it.
    pub(crate) fn from_method(
        method: &str,
        revision: &McpRevision,
        facts: &ServerInfo,
    ) -> Option<Self> {
        let (want, there) = match method {
            "resources/list" => (Self::Resources, facts.resources),
            "resources/templates/list" => (Self::Templates, facts.resources),
            "resources/read" => (Self::Contents, facts.resources),
            "resources/subscribe" => {
                (Self::Watch, facts.resources && revision.era == SessionModel::Session)
            }
            "resources/directory/read" => (Self::Folder, supports_skills(revision, facts)),
            "prompts/list" => (Self::Prompts, facts.prompts),
            "prompts/get" => (Self::Prompt, facts.prompts),
            "completion/complete" => (Self::Completion, supports_completion(facts)),
            "skills/list" => (Self::Skills, supports_skills(revision, facts)),
            "skills/get" => (Self::Skill, supports_skills(revision, facts)),
            _ => return None,
        };
        there.then_some(want)
    }

    /// Parses the parameters of a library request into a host request.
    pub(crate) fn parse(self, id: &RequestId, params: &RpcParams) -> Result<HostRequest, McpError> {
        let uri = || parse_uri(id, params);
        let text = |text: &str| Some(text.to_owned());
        Ok(match self {
            Self::Resources => HostRequest::ListResources {
                after: cursor::parse_after(id, params, "resource", parse_resource_cursor)?,
            },
            Self::Templates => {
                // All templates are on one page, so no cursor is valid.
                cursor::parse(id, params, |_| None::<()>)?;
                HostRequest::ListTemplates
            }
            Self::Contents => HostRequest::ReadResource { uri: uri()? },
            Self::Folder => {
                let after = cursor::parse_after(id, params, "child", text)?;
                HostRequest::ReadFolder { uri: uri()?, after }
            }
            Self::Watch => HostRequest::WatchResource { uri: uri()? },
            Self::Prompts => {
                let after = cursor::parse_after(id, params, "prompt", text)?;
                HostRequest::ListPrompts { after }
            }
            Self::Prompt => {
                let name = parse_string(id, "params.name", params.get("name"))?;
                let arguments = parse_arguments(id, "params.arguments", params.get("arguments"))?;
                HostRequest::GetPrompt { name, arguments }
            }
            Self::Completion => HostRequest::Complete(parse_completion(id, params)?),
            Self::Skills => {
                let after = cursor::parse_after(id, params, "skill", text)?;
                HostRequest::ListSkills { after }
            }
            Self::Skill => HostRequest::GetSkill { uri: uri()? },
        })
    }
}

/// Returns the URI that a library request names, if it names one.
pub(crate) fn request_uri(request: &HostRequest) -> Option<&str> {
    match request {
        HostRequest::ReadResource { uri }
        | HostRequest::ReadFolder { uri, .. }
        | HostRequest::WatchResource { uri }
        | HostRequest::GetSkill { uri } => Some(uri),
        _ => None,
    }
}

/// Parses the parameter `uri` of a request.
pub(crate) fn parse_uri(id: &RequestId, params: &RpcParams) -> Result<String, McpError> {
    parse_string(id, "params.uri", params.get("uri"))
}

/// Parses the string `value`, which is the parameter `at` of a request.
fn parse_string(id: &RequestId, at: &str, value: Option<&Value>) -> Result<String, McpError> {
    match value {
        Some(Value::String(text)) => Ok(text.clone()),
        other => Err(wrong_type("a string", id, at, other)),
    }
}

fn parse_object<'a>(
    id: &RequestId,
    params: &'a RpcParams,
    name: &str,
) -> Result<&'a Map<String, Value>, McpError> {
    match params.get(name) {
        Some(Value::Object(inner)) => Ok(inner),
        other => Err(wrong_type("an object", id, &format!("params.{name}"), other)),
    }
}

fn invalid_params(id: &RequestId, why: String) -> McpError {
    McpError::invalid_params(Some(id.clone()), why)
}

/// Parses a parameter that is an object of strings. A missing object is empty.
fn parse_arguments(
    id: &RequestId,
    at: &str,
    value: Option<&Value>,
) -> Result<PromptArguments, McpError> {
    let fields = match value {
        None | Some(Value::Null) => return Ok(PromptArguments::new()),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(invalid_params(id, format!("`{at}` must be an object"))),
    };
    let text = |(name, value): (&String, &Value)| match value {
        Value::String(text) => Ok((name.clone(), text.clone())),
        _ => Err(invalid_params(id, format!("`{at}[{name:?}]` must be a string"))),
    };
    fields.iter().map(text).collect()
}

fn parse_completion(id: &RequestId, params: &RpcParams) -> Result<CompletionRequest, McpError> {
    let reference = parse_object(id, params, "ref")?;
    let of = match reference.get("type").and_then(Value::as_str) {
        Some("ref/prompt") => {
            CompletionTarget::Prompt(parse_string(id, "params.ref.name", reference.get("name"))?)
        }
        Some("ref/resource") => {
            CompletionTarget::Template(parse_string(id, "params.ref.uri", reference.get("uri"))?)
        }
        Some(_) | None => {
            let why = "`params.ref.type` must be \"ref/prompt\" or \"ref/resource\"";
            return Err(invalid_params(id, why.into()));
        }
    };
    let argument = parse_object(id, params, "argument")?;
    let others = match params.get("context") {
        None | Some(Value::Null) => None,
        Some(Value::Object(context)) => context.get("arguments"),
        Some(_) => return Err(invalid_params(id, "`params.context` must be an object".into())),
    };
    Ok(CompletionRequest {
        target: of,
        argument: parse_string(id, "params.argument.name", argument.get("name"))?,
        prefix: parse_string(id, "params.argument.value", argument.get("value"))?,
        other_arguments: parse_arguments(id, "params.context.arguments", others)?,
    })
}

/// Parses the decoded text of a cursor as the last resource of a page.
fn parse_resource_cursor(text: &str) -> Option<ResourceCursor> {
    let (source, uri) = text.split_once(' ')?;
    Some(ResourceCursor { source: source.to_owned(), uri: uri.to_owned() })
}

impl McpEncoder {
    /// Encodes the answer to the library request `want`.
    pub(crate) fn library_reply(&self, want: LibraryRequestKind, answer: &HostAnswer) -> Reply {
        let revision = self.revision;
        match (want, answer) {
            (LibraryRequestKind::Resources, HostAnswer::Resources(page)) => {
                let resources =
                    page.resources.iter().map(|one| McpResourceEntry::from_spec(one, revision));
                let after = page.next.as_ref().map(encode_resource_cursor);
                self.list_reply("resources", resources, after, UNCACHED_TTL_MS)
            }
            (LibraryRequestKind::Templates, HostAnswer::Templates(templates)) => {
                let templates =
                    templates.iter().map(|one| ResourceTemplateEntry::from_template(one, revision));
                self.list_reply("resourceTemplates", templates, None, RARE_CHANGE_TTL_MS)
            }
            (LibraryRequestKind::Contents, HostAnswer::Contents(contents)) => {
                let contents =
                    contents.iter().map(|one| EmbeddedResource::from_contents(one, self.revision));
                self.list_reply("contents", contents, None, UNCACHED_TTL_MS)
            }
            (LibraryRequestKind::Folder, HostAnswer::Folder(resources, after)) => {
                let resources =
                    resources.iter().map(|one| McpResourceEntry::from_spec(one, revision));
                let after = after.as_ref().map(|uri| cursor::encode_next("child", uri));
                self.list_reply("resources", resources, after, UNCACHED_TTL_MS)
            }
            (LibraryRequestKind::Watch, HostAnswer::Watched { .. }) => {
                success(&self.id, &self.stamp(None))
            }
            (LibraryRequestKind::Prompts, HostAnswer::Prompts(page)) => {
                let prompts =
                    page.prompts.iter().map(|one| PromptListEntry::from_spec(one.spec(), revision));
                let after = page.next.as_ref().map(|name| cursor::encode_next("prompt", name));
                self.list_reply("prompts", prompts, after, RARE_CHANGE_TTL_MS)
            }
            (LibraryRequestKind::Prompt, HostAnswer::Prompt(prompt)) => {
                let messages = prompt
                    .messages
                    .iter()
                    .map(|one| PromptResultMessage::from_message(one, revision))
                    .collect();
                let description = prompt.description.as_deref();
                success(&self.id, &PromptResult { description, messages, stamp: self.stamp(None) })
            }
            (LibraryRequestKind::Completion, HostAnswer::Completion(found)) => {
                self.completion_reply(found)
            }
            (LibraryRequestKind::Skills, HostAnswer::Skills(page)) => {
                let skills = page.skills.iter().map(skill_entry);
                let after = page.next.as_ref().map(|uri| cursor::encode_next("skill", uri));
                self.list_reply("skills", skills, after, RARE_CHANGE_TTL_MS)
            }
            (LibraryRequestKind::Skill, HostAnswer::Skill(one)) => {
                let result = SkillResult {
                    skill: skill_entry(one),
                    stamp: self.stamp(Some(RARE_CHANGE_TTL_MS)),
                };
                success(&self.id, &result)
            }
            (
                LibraryRequestKind::Resources
                | LibraryRequestKind::Templates
                | LibraryRequestKind::Contents
                | LibraryRequestKind::Folder
                | LibraryRequestKind::Watch
                | LibraryRequestKind::Prompts
                | LibraryRequestKind::Prompt
                | LibraryRequestKind::Completion
                | LibraryRequestKind::Skills
                | LibraryRequestKind::Skill,
                _,
            ) => self.mismatched_answer_reply(),
        }
    }

    /// Encodes a page of a list as the member `name` of a result.
    fn list_reply<T: Serialize>(
        &self,
        name: &'static str,
        items: impl Iterator<Item = T>,
        next_cursor: Option<String>,
        ttl_ms: u64,
    ) -> Reply {
        /// Result with one page of a list of resources, prompts or skills.
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct ListPageResult<'a, T> {
            #[serde(flatten)]
            list: NamedResultList<T>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_cursor: Option<String>,
            #[serde(flatten)]
            stamp: CommonResultMembers<'a>,
        }
        let list = NamedResultList { name, items: items.collect() };
        success(&self.id, &ListPageResult { list, next_cursor, stamp: self.stamp(Some(ttl_ms)) })
    }

    fn completion_reply(&self, found: &CompletionCandidates) -> Reply {
        /// Result of `completion/complete`.
        #[derive(Serialize)]
        struct CompletionResult<'a> {
            completion: CompletionList<'a>,
            #[serde(flatten)]
            stamp: CommonResultMembers<'a>,
        }
        /// MCP's JSON for the possible completions of a value.
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct CompletionList<'a> {
            values: &'a [String],
            total: usize,
            has_more: bool,
        }
        let CompletionCandidates { values, total } = found;
        let completion = CompletionList { values, total: *total, has_more: *total > values.len() };
        success(&self.id, &CompletionResult { completion, stamp: self.stamp(None) })
    }

    /// Encodes the refusal of a library request. `uri` is the URI that the request named.
    pub(crate) fn library_refusal(&self, uri: Option<&str>, error: &CallError) -> Reply {
        match (error, uri) {
            (CallError::NotFound { .. }, Some(uri)) => {
                let code = match self.revision.era {
                    SessionModel::Session => RESOURCE_NOT_FOUND,
                    SessionModel::Stateless => INVALID_PARAMS,
                };
                let failure = McpError::new(Some(self.id.clone()), code, error_message(error));
                self.failure_reply(failure.with_data(json!({ "uri": uri })))
            }
            (error, _) => self.protocol_error_reply(error),
        }
    }
}

fn encode_resource_cursor(ResourceCursor { source, uri }: &ResourceCursor) -> String {
    cursor::encode_next("resource", &format_args!("{source} {uri}"))
}

/// List that is serialized under a given member name of a result.
struct NamedResultList<T> {
    name: &'static str,
    items: Vec<T>,
}

impl<T: Serialize> Serialize for NamedResultList<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.name, &self.items)])
    }
}

/// MCP's JSON for a prompt in a list.
#[derive(Serialize)]
struct PromptListEntry<'a> {
    #[serde(flatten)]
    face: ItemDisplayInfo<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    arguments: Vec<PromptListArgument<'a>>,
}

/// MCP's JSON for an argument of a listed prompt.
#[derive(Serialize)]
struct PromptListArgument<'a> {
    #[serde(flatten)]
    face: ItemDisplayInfo<'a>,
    required: bool,
}

impl<'a> PromptListEntry<'a> {
    fn from_spec(spec: &'a PromptSpec, revision: &McpRevision) -> Self {
        let PromptSpec { name, title, description: about, arguments, icons } = spec;
        let argument = |argument: &'a PromptArgument| {
            let PromptArgument { name, title, description: about, required } = argument;
            let face =
                ItemDisplayInfo::new(revision, name, title.as_deref(), about.as_deref(), &[]);
            PromptListArgument { face, required: *required }
        };
        Self {
            face: ItemDisplayInfo::new(revision, name, title.as_deref(), about.as_deref(), icons),
            arguments: arguments.iter().map(argument).collect(),
        }
    }
}

/// MCP's JSON for a rendered prompt.
#[derive(Serialize)]
struct PromptResult<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    messages: Vec<PromptResultMessage<'a>>,
    #[serde(flatten)]
    stamp: CommonResultMembers<'a>,
}

/// MCP's JSON for a message of a rendered prompt.
#[derive(Serialize)]
struct PromptResultMessage<'a> {
    role: MessageRole,
    content: McpContentBlock<'a>,
}

impl<'a> PromptResultMessage<'a> {
    fn from_message(message: &'a PromptMessage, revision: &McpRevision) -> Self {
        Self {
            role: message.role,
            content: McpContentBlock::from_content(&message.content, revision),
        }
    }
}

/// The result of `skills/get`.
#[derive(Serialize)]
struct SkillResult<'a> {
    skill: Value,
    #[serde(flatten)]
    stamp: CommonResultMembers<'a>,
}

/// Converts a skill to the JSON that the skills extension of MCP defines.
fn skill_entry(skill: &Skill) -> Value {
    let Skill { uri, front_matter, files } = skill;
    let files = match files {
        SkillFileList::All(files) => files
            .iter()
            .map(|file| json!({ "uri": file.uri, "digest": file.digest, "size": file.bytes }))
            .collect(),
        SkillFileList::Dynamic => json!("dynamic"),
    };
    let front_matter = Value::Object(front_matter.clone());
    exact_json::object([("uri", json!(uri)), ("frontmatter", front_matter), ("resources", files)])
}
