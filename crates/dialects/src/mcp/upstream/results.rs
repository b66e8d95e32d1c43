//! Parsing of a server's results into toolgate's types. Unknown content blocks are kept as JSON
//! text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use toolgate_contract::{
    CompletionCandidates, ContentAnnotations, ContentBlock, Icon, MessageRole, MetaFields,
    PromptArgument, PromptMessage, PromptSpec, RenderedPrompt, ResourceContents, ResourceData,
    ResourceSpec, ResourceTemplate, ResultText, Skill, SkillFile, SkillFileList, ToolOutput,
    ToolRunStatus,
};

/// Parses an upstream's result of `tools/call`.
///
/// # Errors
/// Fails if the result is malformed.
pub fn parse_output(result: &Value) -> Result<ToolOutput, String> {
    let content = result.get("content");
    // In the first revision, a result could be any value.
    let any = || result.get("toolResult").filter(|_| content.is_none());
    let structured = result.get("structuredContent").or_else(any).filter(|value| !value.is_null());
    let may_be_absent = structured.is_some() || has_no_members(result);
    let mut content = parse_blocks(content, may_be_absent)?.into_iter().peekable();
    // A first text block without annotations becomes the output's text.
    let plain = |first: &ContentBlock| first.meant.is_plain() && plain_text(first).is_some();
    let text = content.next_if(plain).as_ref().and_then(plain_text).unwrap_or_default();
    let content: Vec<_> = content.collect();
    let has_text = !text.trim().is_empty() || content.iter().any(|one| plain_text(one).is_some());
    let failed = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
    Ok(ToolOutput {
        text: match structured {
            // Clients of older revisions, and some newer clients, read only the text.
            Some(value) if !has_text => ResultText::from_json(value),
            Some(_) | None => ResultText::from_body(text),
        },
        value: structured.cloned().unwrap_or_default(),
        structured: structured.is_some(),
        content,
        meta: parse_result_meta(result),
        ending: if failed { ToolRunStatus::ToolFailed } else { ToolRunStatus::Done },
        from_upstream: true,
    })
}

/// Parses the `content` of an upstream's result. Some servers write null for an empty list, or one
/// block without a list.
fn parse_blocks(content: Option<&Value>, may_be_absent: bool) -> Result<Vec<ContentBlock>, String> {
    match content {
        Some(Value::Array(blocks)) => Ok(blocks.iter().map(parse_content).collect()),
        Some(Value::Null) => Ok(Vec::new()),
        None if may_be_absent => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![ContentBlock::text(text)]),
        Some(block @ Value::Object(_)) => Ok(vec![parse_content(block)]),
        Some(Value::Bool(_) | Value::Number(_)) | None => {
            Err("its `content` must be a list".to_owned())
        }
    }
}

/// Returns true if the upstream's `result` is an object with no members besides `_meta`, `isError`
/// and `resultType`. Some SDKs leave an empty list out.
fn has_no_members(result: &Value) -> bool {
    let is_known = |name: &String| matches!(name.as_str(), "_meta" | "isError" | "resultType");
    result.as_object().is_some_and(|members| members.keys().all(is_known))
}

fn plain_text(content: &ContentBlock) -> Option<String> {
    match &content.shown {
        toolgate_contract::ContentBody::Text(text) => Some(text.clone()),
        _ => None,
    }
}

/// Parses one content block of an upstream.
pub(super) fn parse_content(block: &Value) -> ContentBlock {
    let text = |name: &str| block.get(name).and_then(Value::as_str);
    let media = || Some((text("mimeType")?, STANDARD.decode(text("data")?).ok()?));
    let read = match text("type") {
        Some("text") => text("text").map(ContentBlock::text),
        Some("image") => media().map(|(kind, data)| ContentBlock::image(kind, data)),
        Some("audio") => media().map(|(kind, data)| ContentBlock::audio(kind, data)),
        Some("resource_link") => parse_resource(block).map(ContentBlock::link),
        Some("resource") => {
            block.get("resource").and_then(parse_resource_data).map(ContentBlock::resource)
        }
        Some(_) | None => None,
    };
    let read = read.unwrap_or_else(|| ContentBlock::text(block.to_string()));
    read.with_annotations(parse_annotations(block.get("annotations")))
}

/// Parses an upstream's result of `resources/read`.
///
/// # Errors
/// Fails if the result is malformed.
pub fn parse_contents(result: &Value) -> Result<Vec<ResourceContents>, String> {
    let parts = result.get("contents").and_then(Value::as_array);
    let parts = parts.ok_or("its `contents` must be a list")?;
    let read = |part| {
        parse_resource_data(part).ok_or_else(|| "a part has neither text nor bytes".to_owned())
    };
    parts.iter().map(read).collect()
}

fn parse_resource_data(part: &Value) -> Option<ResourceContents> {
    let text = |name: &str| part.get(name).and_then(Value::as_str);
    let held = match (text("text"), text("blob")) {
        (Some(text), _) => ResourceData::Text(text.to_owned()),
        (None, blob) => {
            ResourceData::Bytes(toolgate_contract::Base64Bytes(STANDARD.decode(blob?).ok()?.into()))
        }
    };
    let uri = text("uri")?.to_owned();
    let media_type = text("mimeType").map(str::to_owned);
    Some(ResourceContents { uri, media_type, held, meta: parse_meta(part) })
}

/// Parses an entry of `resources/list`, or a resource link.
pub fn parse_resource(entry: &Value) -> Option<ResourceSpec> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    let uri = text("uri")?;
    Some(ResourceSpec {
        name: text("name").unwrap_or_else(|| uri.clone()),
        uri,
        title: text("title"),
        about: text("description"),
        media_type: text("mimeType"),
        bytes: entry.get("size").and_then(Value::as_u64),
        meant: parse_annotations(entry.get("annotations")),
        icons: parse_icons(entry),
        meta: parse_meta(entry),
    })
}

/// Parses an entry of `resources/templates/list`.
pub fn parse_template(entry: &Value) -> Option<ResourceTemplate> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    let uri = text("uriTemplate")?;
    Some(ResourceTemplate {
        name: text("name").unwrap_or_else(|| uri.clone()),
        uri,
        title: text("title"),
        description: text("description"),
        media_type: text("mimeType"),
        icons: parse_icons(entry),
        meta: parse_meta(entry),
    })
}

/// Parses an entry of `skills/list`, or the skill of `skills/get`.
pub fn parse_skill(entry: &Value) -> Option<Skill> {
    let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).map(str::to_owned);
    let file = |file: &Value| {
        let bytes = file.get("size").and_then(Value::as_u64)?;
        Some(SkillFile { uri: text(file, "uri")?, digest: text(file, "digest")?, bytes })
    };
    let files = match entry.get("resources")? {
        // The list must be complete, so one malformed file invalidates the skill.
        Value::Array(files) => SkillFileList::All(files.iter().map(file).collect::<Option<_>>()?),
        Value::String(word) if word == "dynamic" => SkillFileList::Dynamic,
        _ => return None,
    };
    let front_matter = entry.get("frontmatter")?.as_object()?.clone();
    Some(Skill { uri: text(entry, "uri")?, front_matter, files })
}

/// Parses an entry of `prompts/list`.
pub fn parse_prompt_spec(entry: &Value) -> Option<PromptSpec> {
    let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).map(str::to_owned);
    let arguments = entry.get("arguments").and_then(Value::as_array);
    let argument = |argument: &Value| {
        Some(PromptArgument {
            name: text(argument, "name")?,
            title: text(argument, "title"),
            description: text(argument, "description"),
            required: argument.get("required").and_then(Value::as_bool).unwrap_or(false),
        })
    };
    Some(PromptSpec {
        name: text(entry, "name")?,
        title: text(entry, "title"),
        description: text(entry, "description"),
        arguments: arguments.into_iter().flatten().filter_map(argument).collect(),
        icons: parse_icons(entry),
    })
}

/// Parses an upstream's result of `prompts/get`.
///
/// # Errors
/// Fails if the result is malformed.
pub fn parse_prompt_text(result: &Value) -> Result<RenderedPrompt, String> {
    let messages = result.get("messages").and_then(Value::as_array);
    let messages = messages.ok_or("its `messages` must be a list")?;
    let parse_message = |message: &Value| {
        let role = match message.get("role").and_then(Value::as_str) {
            Some("assistant") => MessageRole::Assistant,
            Some(_) | None => MessageRole::User,
        };
        PromptMessage {
            role,
            content: parse_content(message.get("content").unwrap_or(&Value::Null)),
        }
    };
    let description = result.get("description").and_then(Value::as_str).map(str::to_owned);
    Ok(RenderedPrompt { description, messages: messages.iter().map(parse_message).collect() })
}

/// Parses the result of `completion/complete` into candidates.
pub fn parse_completion(result: &Value) -> CompletionCandidates {
    let completion = result.get("completion");
    let values =
        completion.and_then(|completion| completion.get("values")).and_then(Value::as_array);
    let values = values.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let values: Vec<_> = values.collect();
    let total = completion.and_then(|completion| completion.get("total")).and_then(Value::as_u64);
    let total = total.and_then(|total| usize::try_from(total).ok());
    CompletionCandidates { total: total.unwrap_or(values.len()), values }
}

fn parse_annotations(annotations: Option<&Value>) -> ContentAnnotations {
    let Some(said) = annotations else { return ContentAnnotations::default() };
    let audience = said.get("audience").and_then(Value::as_array);
    let role = |role: &Value| match role.as_str() {
        Some("user") => Some(MessageRole::User),
        Some("assistant") => Some(MessageRole::Assistant),
        Some(_) | None => None,
    };
    let modified = said.get("lastModified").and_then(Value::as_str);
    ContentAnnotations {
        audience: audience.into_iter().flatten().filter_map(role).collect(),
        priority: said.get("priority").and_then(Value::as_f64),
        modified: modified.and_then(|at| at.parse().ok()),
    }
}

/// Parses the icons of an upstream's list entry. Only `https:` and `data:` URIs are kept.
pub fn parse_icons(entry: &Value) -> Vec<Icon> {
    let icons = entry.get("icons").and_then(Value::as_array);
    let parse = |icon: &Value| serde_json::from_value::<Icon>(icon.clone()).ok();
    let is_allowed = |icon: &Icon| icon.src.starts_with("https:") || icon.src.starts_with("data:");
    icons.into_iter().flatten().filter_map(parse).filter(is_allowed).collect()
}

/// Parses the `_meta` of an upstream's list entry.
pub fn parse_meta(entry: &Value) -> MetaFields {
    entry.get("_meta").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Parses the `_meta` of an upstream's result without MCP's own keys, which concern only the two
/// ends of one connection.
fn parse_result_meta(result: &Value) -> MetaFields {
    let mut meta = parse_meta(result);
    meta.retain(|name, _| !is_reserved(name));
    meta
}

/// Returns true if MCP reserves the `_meta` key `name`. The second part of its prefix is `mcp` or
/// `modelcontextprotocol`, or, before 2025-11-25, any part but the last.
fn is_reserved(name: &str) -> bool {
    let Some((prefix, _)) = name.split_once('/') else { return false };
    let parts: Vec<_> = prefix.split('.').collect();
    let is_own = |(at, part): (usize, &&str)| {
        matches!(*part, "modelcontextprotocol" | "mcp") && (at == 1 || at + 1 < parts.len())
    };
    parts.iter().enumerate().any(is_own)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolgate_contract::ContentBody;

    use super::*;

    #[test]
    fn the_first_text_is_the_body_and_other_content_keeps_its_order() {
        let result = json!({ "content": [
            { "type": "text", "text": "one" },
            { "type": "image", "mimeType": "image/png", "data": "AQI=" },
            { "type": "text", "text": "two" },
        ] });
        let output = parse_output(&result).expect("a result");
        assert_eq!(output.text.body, "one");
        assert_eq!(output.content.len(), 2);
        assert_eq!(output.content[1].shown, ContentBody::Text("two".into()));
        assert_eq!(output.ending, ToolRunStatus::Done);
    }

    #[test]
    fn protocol_members_of_result_meta_are_removed_and_others_kept() {
        let server_info = "io.modelcontextprotocol/serverInfo";
        let all = json!({ server_info: 1, "dev.mcp/x": 2, "mcp.dev/x": 2, "ui": 3, "com.example.mcp/y": 4, "mcp/z": 5 });
        let result = json!({ "content": [], "_meta": all });
        let output = parse_output(&result).expect("a result");
        let expected = json!({ "ui": 3, "com.example.mcp/y": 4, "mcp/z": 5 });
        assert_eq!(Value::Object(output.meta), expected);
    }

    #[test]
    fn unknown_content_is_shown_as_json() {
        let unknown = json!({ "type": "hologram", "data": "x" });
        assert_eq!(parse_content(&unknown).shown, ContentBody::Text(unknown.to_string()));
        let broken = json!({ "type": "image", "mimeType": "image/png", "data": "not base64!" });
        assert_eq!(parse_content(&broken).shown, ContentBody::Text(broken.to_string()));
    }

    #[test]
    fn a_failed_result_keeps_its_content() {
        let result = json!({ "isError": true, "content": [{ "type": "text", "text": "no" }] });
        let output = parse_output(&result).expect("a result");
        assert_eq!((output.ending, output.text.body.as_str()), (ToolRunStatus::ToolFailed, "no"));
    }

    #[test]
    fn a_result_without_content_is_empty_or_the_value_of_the_first_revision() {
        for result in [json!({}), json!({ "isError": false, "resultType": "complete" })] {
            let output = parse_output(&result).expect("a result");
            assert_eq!((output.text.body.as_str(), output.structured), ("", false), "{result}");
        }
        let output = parse_output(&json!({ "toolResult": [1, 2] })).expect("a result");
        assert_eq!((output.text.body.as_str(), output.structured), ("[1,2]", true));
        let both = json!({ "toolResult": 1, "content": [] });
        assert!(!parse_output(&both).expect("a result").structured);
    }

    #[test]
    fn a_structured_result_without_text_is_also_text() {
        let image = json!({ "type": "image", "mimeType": "image/png", "data": "AQI=" });
        for value in
            [json!({ "rows": [1, "é"] }), json!([]), json!("two"), json!(2.5), json!(false)]
        {
            for content in [json!([]), json!(null), json!([{ "type": "text", "text": " " }])] {
                let result = json!({ "content": content, "structuredContent": value });
                let output = parse_output(&result).expect("a result");
                assert_eq!(output.text.body, value.to_string(), "{result}");
                assert_eq!((output.structured, &output.value), (true, &value));
            }
            let output = parse_output(&json!({ "structuredContent": value })).expect("a result");
            assert_eq!(output.text.body, value.to_string());
            let result = json!({ "content": [image], "structuredContent": value });
            let output = parse_output(&result).expect("a result");
            assert_eq!((output.text.body, output.content.len()), (value.to_string(), 1));
        }
    }

    #[test]
    fn a_structured_result_with_a_text_keeps_it() {
        let marked = json!({ "type": "text", "text": "two", "annotations": { "priority": 1.0 } });
        for (content, text) in
            [(json!([{ "type": "text", "text": "two" }]), "two"), (json!([marked]), "")]
        {
            let result = json!({ "content": content, "structuredContent": { "count": 2 } });
            assert_eq!(parse_output(&result).expect("a result").text.body, text);
        }
    }

    #[test]
    fn content_that_is_null_or_one_block_is_accepted() {
        for (content, text) in [
            (json!(null), ""),
            (json!("one"), "one"),
            (json!({ "type": "text", "text": "one" }), "one"),
        ] {
            let output = parse_output(&json!({ "content": content })).expect("a result");
            assert_eq!((output.text.body.as_str(), output.content.len()), (text, 0));
        }
    }

    #[test]
    fn a_result_with_other_members_than_content_is_refused() {
        for result in [
            json!(7),
            json!([1]),
            json!({ "content": 7 }),
            json!({ "output": "x" }),
            json!({ "structuredContent": null }),
        ] {
            assert!(parse_output(&result).is_err(), "{result}");
        }
    }
}
