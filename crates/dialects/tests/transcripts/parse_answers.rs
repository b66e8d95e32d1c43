//! Parses the answers of a host about resources, prompts, skills and questions.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toolgate_contract::{
    AnyPrompt, ChangeFilter, CompletionCandidates, CompletionRequest, ContentBlock, HostAnswer,
    Icon, KeepActiveGuard, PromptArgument, PromptArguments, PromptMessage, PromptPage, PromptSpec,
    RenderedPrompt, ResourceCursor, ResourcePage, ResourceSpec, ResourceTemplate, ResultText,
    ServerChange, Skill, SkillFile, SkillFileList, SkillPage, ToolContext, ToolError, ToolFuture,
    ToolOutput, ToolRunStatus,
};

/// Parses `resources [RESOURCE…] [then more of SOURCE]`, `templates [TEMPLATE…]`, `contents
/// [CONTENTS…]`, `folder [RESOURCE…] [then more]`, `watched URI`, `prompts [PROMPT…] [then more]`,
/// `prompt TEXT`, `completion TOTAL [VALUE…]`, `skills [SKILL…] [then more]`, `skill SKILL`,
/// `questions STATE QUESTIONS` or `content [CONTENT…]`, all in JSON. Returns `None` if `kind` is
/// none of these words.
pub(crate) fn read_answer(kind: &str, rest: &str) -> Option<HostAnswer> {
    Some(match kind {
        "resources" => {
            let (resources, more) = split_page(rest);
            let resources: Vec<ResourceSpec> = parse_json(resources);
            let next = more.map(|more| ResourceCursor {
                source: more.strip_prefix("more of ").expect("then more of SOURCE").to_owned(),
                uri: last(&resources, |last| &last.uri),
            });
            HostAnswer::Resources(ResourcePage { resources, next })
        }
        "templates" => {
            HostAnswer::Templates(parse_json::<Vec<Value>>(rest).iter().map(template).collect())
        }
        "contents" => HostAnswer::Contents(parse_json(rest)),
        "folder" => {
            let (resources, more) = split_page(rest);
            let resources: Vec<ResourceSpec> = parse_json(resources);
            let next = more.map(|_| last(&resources, |last| &last.uri));
            HostAnswer::Folder(resources, next)
        }
        "watched" => HostAnswer::Watched { uri: rest.to_owned(), hold: KeepActiveGuard::none() },
        "prompts" => {
            let (prompts, more) = split_page(rest);
            let prompts: Vec<_> =
                parse_json::<Vec<Value>>(prompts).iter().map(prompt_spec).collect();
            let next = more.map(|_| last(&prompts, |last| &last.name));
            let into_prompt = |spec| Arc::new(TranscriptPrompt(spec)) as Arc<dyn AnyPrompt>;
            HostAnswer::Prompts(PromptPage {
                prompts: prompts.into_iter().map(into_prompt).collect(),
                next,
            })
        }
        "prompt" => HostAnswer::Prompt(prompt_text(&parse_json(rest))),
        "completion" => {
            let (total, values) = rest.split_once(' ').expect("completion TOTAL [VALUE…]");
            HostAnswer::Completion(CompletionCandidates {
                values: parse_json(values),
                total: parse_json(total),
            })
        }
        "skills" => {
            let (skills, more) = split_page(rest);
            let skills: Vec<_> = parse_json::<Vec<Value>>(skills).iter().map(skill).collect();
            let next = more.map(|_| last(&skills, |last| &last.uri));
            HostAnswer::Skills(SkillPage { skills, next })
        }
        "skill" => HostAnswer::Skill(Box::new(skill(&parse_json(rest)))),
        "questions" => {
            let (state, questions) = rest.split_once(' ').expect("questions STATE QUESTIONS");
            HostAnswer::Questions { questions: parse_json(questions), state: state.to_owned() }
        }
        "content" => {
            let content: Vec<ContentBlock> = parse_json(rest);
            let output = ToolOutput::new(Value::Null, ResultText::default(), ToolRunStatus::Done);
            HostAnswer::Output(ToolOutput { structured: false, content, ..output })
        }
        _ => return None,
    })
}

/// Parses the name of a change on the server: `tools`, `prompts`, `resources` or the URI of a
/// resource.
pub(crate) fn read_change(text: &str) -> ServerChange {
    match text {
        "tools" => ServerChange::Tools,
        "prompts" => ServerChange::Prompts,
        "resources" => ServerChange::Resources,
        uri => ServerChange::Resource(uri.into()),
    }
}

/// Parses the changes that a client subscribes to: any of `tools`, `prompts`, `resources`,
/// `resource:URI` and `job:ID`.
pub(crate) fn read_filter(text: &str) -> ChangeFilter {
    let mut filter = ChangeFilter::default();
    for word in text.split_whitespace() {
        match word.split_once(':') {
            Some(("resource", uri)) => drop(filter.uris.insert(uri.to_owned())),
            Some(("job", id)) => drop(filter.jobs.insert(id.to_owned())),
            _ if word == "tools" => filter.tools = true,
            _ if word == "prompts" => filter.prompts = true,
            _ if word == "resources" => filter.resources = true,
            _ => panic!("`{word}` is not a kind of change"),
        }
    }
    filter
}

/// Splits a list in a transcript from the text after the word `then`.
fn split_page(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once("] then ") {
        Some((list, more)) => (&text[..=list.len()], Some(more)),
        None => (text, None),
    }
}

/// Returns the cursor for the next page: the key that `by` returns for the last item of `all`.
fn last<T>(all: &[T], by: impl Fn(&T) -> &String) -> String {
    by(all.last().expect("one that the next page is after")).clone()
}

/// Parses JSON, and panics on an error.
pub(crate) fn parse_json<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|err| panic!("`{text}`: {err}"))
}

/// Returns the text member `name` of the object `value`, and panics if it is missing.
fn member(value: &Value, name: &str) -> String {
    optional_member(value, name).unwrap_or_else(|| panic!("{value} has no `{name}`"))
}

/// Returns the text member `name` of `value`, if it is present.
fn optional_member(value: &Value, name: &str) -> Option<String> {
    value.get(name).map(|text| text.as_str().expect("a text").to_owned())
}

fn icons(value: &Value) -> Vec<Icon> {
    let icons = value.get("icons").cloned().unwrap_or(json!([]));
    serde_json::from_value(icons).expect("icons")
}

fn template(value: &Value) -> ResourceTemplate {
    ResourceTemplate {
        uri: member(value, "uri"),
        name: member(value, "name"),
        title: optional_member(value, "title"),
        description: optional_member(value, "about"),
        media_type: optional_member(value, "media_type"),
        icons: icons(value),
        ..ResourceTemplate::default()
    }
}

fn prompt_spec(value: &Value) -> PromptSpec {
    let argument = |value: &Value| PromptArgument {
        name: member(value, "name"),
        title: optional_member(value, "title"),
        description: optional_member(value, "about"),
        required: value["required"] == true,
    };
    let arguments = value["arguments"].as_array();
    PromptSpec {
        name: member(value, "name"),
        title: optional_member(value, "title"),
        description: optional_member(value, "about"),
        arguments: arguments.into_iter().flatten().map(argument).collect(),
        icons: icons(value),
    }
}

fn prompt_text(value: &Value) -> RenderedPrompt {
    let message = |value: &Value| PromptMessage {
        role: serde_json::from_value(value["role"].clone()).expect("a role"),
        content: serde_json::from_value(value["content"].clone()).expect("content"),
    };
    let messages = value["messages"].as_array().expect("messages");
    RenderedPrompt {
        description: optional_member(value, "about"),
        messages: messages.iter().map(message).collect(),
    }
}

fn skill(value: &Value) -> Skill {
    let file = |value: &Value| SkillFile {
        uri: member(value, "uri"),
        digest: member(value, "digest"),
        bytes: value["bytes"].as_u64().expect("a length"),
    };
    Skill {
        uri: member(value, "uri"),
        front_matter: value["front_matter"].as_object().expect("front matter").clone(),
        files: match value["files"].as_array() {
            Some(files) => SkillFileList::All(files.iter().map(file).collect()),
            None => SkillFileList::Dynamic,
        },
    }
}

/// Prompt that appears in lists of a transcript and cannot be rendered.
struct TranscriptPrompt(PromptSpec);

impl AnyPrompt for TranscriptPrompt {
    fn spec(&self) -> &PromptSpec {
        &self.0
    }

    fn make<'a>(
        &'a self,
        _: &'a ToolContext,
        _: PromptArguments,
    ) -> ToolFuture<'a, RenderedPrompt> {
        Box::pin(async { Err(ToolError::not_allowed("this prompt is only listed")) })
    }

    fn complete<'a>(
        &'a self,
        _: &'a ToolContext,
        _: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
