//! What the words of a transcript mean that are of resources, prompts, skills and questions.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toolgate_contract::{
    AnyPrompt, BoxFuture, CallEnding, ChangeFilter, Completion, CompletionRequest, ContentBlock,
    HostAnswer, Icon, PromptArgument, PromptArguments, PromptMessage, PromptPage, PromptSpec,
    PromptText, ResourceCursor, ResourcePage, ResourceSpec, ResourceTemplate, ResultText,
    ServerChange, Skill, SkillFile, SkillFiles, SkillPage, ToolContext, ToolError, ToolOutput,
    WatchGuard,
};

/// `resources [RESOURCE…] [then more of SOURCE]`, `templates [TEMPLATE…]`, `contents [CONTENTS…]`,
/// `folder [RESOURCE…] [then more]`, `watched URI`, `prompts [PROMPT…] [then more]`,
/// `prompt TEXT`, `completion TOTAL [VALUE…]`, `skills [SKILL…] [then more]`, `skill SKILL`,
/// `asks STATE QUESTIONS` or `shown [CONTENT…]`, all in JSON.
pub(crate) fn read_answer(kind: &str, rest: &str) -> Option<HostAnswer> {
    Some(match kind {
        "resources" => {
            let (resources, more) = listed(rest);
            let resources: Vec<ResourceSpec> = read(resources);
            let next = more.map(|more| ResourceCursor {
                source: more.strip_prefix("more of ").expect("then more of SOURCE").to_owned(),
                uri: last(&resources, |last| &last.uri),
            });
            HostAnswer::Resources(ResourcePage { resources, next })
        }
        "templates" => {
            HostAnswer::Templates(read::<Vec<Value>>(rest).iter().map(template).collect())
        }
        "contents" => HostAnswer::Contents(read(rest)),
        "folder" => {
            let (resources, more) = listed(rest);
            let resources: Vec<ResourceSpec> = read(resources);
            let next = more.map(|_| last(&resources, |last| &last.uri));
            HostAnswer::Folder(resources, next)
        }
        "watched" => HostAnswer::Watched { uri: rest.to_owned(), hold: WatchGuard::none() },
        "prompts" => {
            let (prompts, more) = listed(rest);
            let prompts: Vec<_> = read::<Vec<Value>>(prompts).iter().map(prompt_spec).collect();
            let next = more.map(|_| last(&prompts, |last| &last.name));
            let listed = |spec| Arc::new(Listed(spec)) as Arc<dyn AnyPrompt>;
            HostAnswer::Prompts(PromptPage {
                prompts: prompts.into_iter().map(listed).collect(),
                next,
            })
        }
        "prompt" => HostAnswer::Prompt(prompt_text(&read(rest))),
        "completion" => {
            let (total, values) = rest.split_once(' ').expect("completion TOTAL [VALUE…]");
            HostAnswer::Completion(Completion { values: read(values), total: read(total) })
        }
        "skills" => {
            let (skills, more) = listed(rest);
            let skills: Vec<_> = read::<Vec<Value>>(skills).iter().map(skill).collect();
            let next = more.map(|_| last(&skills, |last| &last.uri));
            HostAnswer::Skills(SkillPage { skills, next })
        }
        "skill" => HostAnswer::Skill(Box::new(skill(&read(rest)))),
        "asks" => {
            let (state, questions) = rest.split_once(' ').expect("asks STATE QUESTIONS");
            HostAnswer::Questions { questions: read(questions), state: state.to_owned() }
        }
        "shown" => {
            let content: Vec<ContentBlock> = read(rest);
            let output = ToolOutput::new(Value::Null, ResultText::default(), CallEnding::Done);
            HostAnswer::Output(ToolOutput { structured: false, content, ..output })
        }
        _ => return None,
    })
}

/// `tools`, `prompts`, `resources` or the URI of a resource.
pub(crate) fn read_change(text: &str) -> ServerChange {
    match text {
        "tools" => ServerChange::Tools,
        "prompts" => ServerChange::Prompts,
        "resources" => ServerChange::Resources,
        uri => ServerChange::Resource(uri.into()),
    }
}

/// Some of `tools`, `prompts` and `resources`, and what is like `resource:URI` and `job:ID`.
pub(crate) fn read_interest(text: &str) -> ChangeFilter {
    let mut interest = ChangeFilter::default();
    for word in text.split_whitespace() {
        match word.split_once(':') {
            Some(("resource", uri)) => drop(interest.uris.insert(uri.to_owned())),
            Some(("job", id)) => drop(interest.jobs.insert(id.to_owned())),
            _ if word == "tools" => interest.tools = true,
            _ if word == "prompts" => interest.prompts = true,
            _ if word == "resources" => interest.resources = true,
            _ => panic!("nobody is interested in `{word}`"),
        }
    }
    interest
}

/// A list and what stands after its `then`.
fn listed(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once("] then ") {
        Some((list, more)) => (&text[..=list.len()], Some(more)),
        None => (text, None),
    }
}

fn last<T>(all: &[T], by: impl Fn(&T) -> &String) -> String {
    by(all.last().expect("one that the next page is after")).clone()
}

pub(crate) fn read<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|err| panic!("`{text}`: {err}"))
}

fn member(value: &Value, name: &str) -> String {
    maybe(value, name).unwrap_or_else(|| panic!("{value} has no `{name}`"))
}

fn maybe(value: &Value, name: &str) -> Option<String> {
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
        title: maybe(value, "title"),
        description: maybe(value, "about"),
        media_type: maybe(value, "media_type"),
        icons: icons(value),
        ..ResourceTemplate::default()
    }
}

fn prompt_spec(value: &Value) -> PromptSpec {
    let argument = |value: &Value| PromptArgument {
        name: member(value, "name"),
        title: maybe(value, "title"),
        description: maybe(value, "about"),
        required: value["required"] == true,
    };
    let arguments = value["arguments"].as_array();
    PromptSpec {
        name: member(value, "name"),
        title: maybe(value, "title"),
        description: maybe(value, "about"),
        arguments: arguments.into_iter().flatten().map(argument).collect(),
        icons: icons(value),
    }
}

fn prompt_text(value: &Value) -> PromptText {
    let message = |value: &Value| PromptMessage {
        role: serde_json::from_value(value["role"].clone()).expect("a role"),
        content: serde_json::from_value(value["content"].clone()).expect("content"),
    };
    let messages = value["messages"].as_array().expect("messages");
    PromptText {
        description: maybe(value, "about"),
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
            Some(files) => SkillFiles::All(files.iter().map(file).collect()),
            None => SkillFiles::Dynamic,
        },
    }
}

/// A prompt that is only listed.
struct Listed(PromptSpec);

impl AnyPrompt for Listed {
    fn spec(&self) -> &PromptSpec {
        &self.0
    }

    fn make<'a>(
        &'a self,
        _: &'a ToolContext,
        _: PromptArguments,
    ) -> BoxFuture<'a, Result<PromptText, ToolError>> {
        Box::pin(async { Err(ToolError::not_allowed("it is only listed")) })
    }

    fn complete<'a>(
        &'a self,
        _: &'a ToolContext,
        _: &'a CompletionRequest,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
