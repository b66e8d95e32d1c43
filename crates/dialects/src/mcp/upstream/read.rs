//! Parsing of a server's results into toolgate's types. Unknown content blocks are kept as JSON
//! text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use toolgate_contract::{
    Completion, Content, Contents, Ending, Held, Icon, Meant, Message, MetaFields, Output,
    PromptArgument, PromptSpec, PromptText, ResourceSpec, ResourceTemplate, Role, Skill, SkillFile,
    SkillFiles, Text,
};

/// Parses the result of `tools/call`.
///
/// # Errors
/// Fails if the result is malformed.
pub fn output(result: &Value) -> Result<Output, String> {
    let blocks = match result.get("content") {
        Some(Value::Array(blocks)) => blocks.as_slice(),
        None if result.get("structuredContent").is_some() => &[],
        Some(_) | None => return Err("it has no list `content`".to_owned()),
    };
    let mut content = blocks.iter().map(content).peekable();
    // A first text block without annotations becomes the output's text.
    let plain = |first: &Content| first.meant.is_plain() && as_text(first).is_some();
    let text = content.next_if(plain).as_ref().and_then(as_text).unwrap_or_default();
    let failed = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
    let structured = result.get("structuredContent").filter(|value| !value.is_null());
    Ok(Output {
        value: structured.cloned().unwrap_or_default(),
        structured: structured.is_some(),
        text: Text::body(text),
        content: content.collect(),
        meta: meta_of_result(result),
        ending: if failed { Ending::ToolFailed } else { Ending::Done },
    })
}

fn as_text(content: &Content) -> Option<String> {
    match &content.shown {
        toolgate_contract::Shape::Text(text) => Some(text.clone()),
        _ => None,
    }
}

/// Parses one content block.
pub(super) fn content(block: &Value) -> Content {
    let text = |name: &str| block.get(name).and_then(Value::as_str);
    let media = || Some((text("mimeType")?, STANDARD.decode(text("data")?).ok()?));
    let read = match text("type") {
        Some("text") => text("text").map(Content::text),
        Some("image") => media().map(|(kind, data)| Content::image(kind, data)),
        Some("audio") => media().map(|(kind, data)| Content::audio(kind, data)),
        Some("resource_link") => resource(block).map(Content::link),
        Some("resource") => block.get("resource").and_then(held).map(Content::resource),
        Some(_) | None => None,
    };
    let read = read.unwrap_or_else(|| Content::text(block.to_string()));
    read.meant(meant(block.get("annotations")))
}

/// Parses the result of `resources/read`.
///
/// # Errors
/// Fails if the result is malformed.
pub fn contents(result: &Value) -> Result<Vec<Contents>, String> {
    let parts = result.get("contents").and_then(Value::as_array);
    let parts = parts.ok_or("it has no list `contents`")?;
    let read = |part| held(part).ok_or_else(|| "a part has neither text nor bytes".to_owned());
    parts.iter().map(read).collect()
}

fn held(part: &Value) -> Option<Contents> {
    let text = |name: &str| part.get(name).and_then(Value::as_str);
    let held = match (text("text"), text("blob")) {
        (Some(text), _) => Held::Text(text.to_owned()),
        (None, blob) => Held::Bytes(toolgate_contract::Blob(STANDARD.decode(blob?).ok()?.into())),
    };
    let uri = text("uri")?.to_owned();
    let media_type = text("mimeType").map(str::to_owned);
    Some(Contents { uri, media_type, held, meta: meta(part) })
}

/// Parses an entry of `resources/list`, or a resource link.
pub fn resource(entry: &Value) -> Option<ResourceSpec> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    let uri = text("uri")?;
    Some(ResourceSpec {
        name: text("name").unwrap_or_else(|| uri.clone()),
        uri,
        title: text("title"),
        about: text("description"),
        media_type: text("mimeType"),
        bytes: entry.get("size").and_then(Value::as_u64),
        meant: meant(entry.get("annotations")),
        icons: icons(entry),
        meta: meta(entry),
    })
}

/// Parses an entry of `resources/templates/list`.
pub fn template(entry: &Value) -> Option<ResourceTemplate> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    let uri = text("uriTemplate")?;
    Some(ResourceTemplate {
        name: text("name").unwrap_or_else(|| uri.clone()),
        uri,
        title: text("title"),
        about: text("description"),
        media_type: text("mimeType"),
        icons: icons(entry),
        meta: meta(entry),
    })
}

/// Parses an entry of `skills/list`, or the skill of `skills/get`.
pub fn skill(entry: &Value) -> Option<Skill> {
    let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).map(str::to_owned);
    let file = |file: &Value| {
        let bytes = file.get("size").and_then(Value::as_u64)?;
        Some(SkillFile { uri: text(file, "uri")?, digest: text(file, "digest")?, bytes })
    };
    let files = match entry.get("resources")? {
        // The list must be complete, so one malformed file invalidates the skill.
        Value::Array(files) => SkillFiles::All(files.iter().map(file).collect::<Option<_>>()?),
        Value::String(word) if word == "dynamic" => SkillFiles::Dynamic,
        _ => return None,
    };
    let front_matter = entry.get("frontmatter")?.as_object()?.clone();
    Some(Skill { uri: text(entry, "uri")?, front_matter, files })
}

/// Parses an entry of `prompts/list`.
pub fn prompt_spec(entry: &Value) -> Option<PromptSpec> {
    let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).map(str::to_owned);
    let arguments = entry.get("arguments").and_then(Value::as_array);
    let argument = |argument: &Value| {
        Some(PromptArgument {
            name: text(argument, "name")?,
            title: text(argument, "title"),
            about: text(argument, "description"),
            required: argument.get("required").and_then(Value::as_bool).unwrap_or(false),
        })
    };
    Some(PromptSpec {
        name: text(entry, "name")?,
        title: text(entry, "title"),
        about: text(entry, "description"),
        arguments: arguments.into_iter().flatten().filter_map(argument).collect(),
        icons: icons(entry),
    })
}

/// Parses the result of `prompts/get`.
///
/// # Errors
/// Fails if the result is malformed.
pub fn prompt_text(result: &Value) -> Result<PromptText, String> {
    let messages = result.get("messages").and_then(Value::as_array);
    let messages = messages.ok_or("it has no list `messages`")?;
    let said = |message: &Value| {
        let role = match message.get("role").and_then(Value::as_str) {
            Some("assistant") => Role::Assistant,
            Some(_) | None => Role::User,
        };
        Message { role, content: content(message.get("content").unwrap_or(&Value::Null)) }
    };
    let about = result.get("description").and_then(Value::as_str).map(str::to_owned);
    Ok(PromptText { about, messages: messages.iter().map(said).collect() })
}

/// Parses the result of `completion/complete`.
pub fn completion(result: &Value) -> Completion {
    let of = result.get("completion");
    let values = of.and_then(|of| of.get("values")).and_then(Value::as_array);
    let values = values.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let values: Vec<_> = values.collect();
    let total = of.and_then(|of| of.get("total")).and_then(Value::as_u64);
    let total = total.and_then(|total| usize::try_from(total).ok());
    Completion { total: total.unwrap_or(values.len()), values }
}

fn meant(annotations: Option<&Value>) -> Meant {
    let Some(said) = annotations else { return Meant::default() };
    let audience = said.get("audience").and_then(Value::as_array);
    let role = |role: &Value| match role.as_str() {
        Some("user") => Some(Role::User),
        Some("assistant") => Some(Role::Assistant),
        Some(_) | None => None,
    };
    let modified = said.get("lastModified").and_then(Value::as_str);
    Meant {
        audience: audience.into_iter().flatten().filter_map(role).collect(),
        priority: said.get("priority").and_then(Value::as_f64),
        modified: modified.and_then(|at| at.parse().ok()),
    }
}

/// Parses the icons of an entry. Only `https:` and `data:` URIs are kept.
pub fn icons(entry: &Value) -> Vec<Icon> {
    let icons = entry.get("icons").and_then(Value::as_array);
    let read = |icon: &Value| serde_json::from_value::<Icon>(icon.clone()).ok();
    let sound = |icon: &Icon| icon.src.starts_with("https:") || icon.src.starts_with("data:");
    icons.into_iter().flatten().filter_map(read).filter(sound).collect()
}

/// Parses the `_meta` of an entry.
pub fn meta(entry: &Value) -> MetaFields {
    entry.get("_meta").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Parses the `_meta` of a result without MCP's own keys, which concern only the two ends of one
/// connection.
fn meta_of_result(result: &Value) -> MetaFields {
    let mut meta = meta(result);
    meta.retain(|name, _| !is_reserved(name));
    meta
}

/// Returns true if MCP reserves the key `name`. The second part of its prefix is `mcp` or
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
    use toolgate_contract::Shape;

    use super::*;

    #[test]
    fn the_first_text_is_the_body_and_the_rest_is_shown_in_order() {
        let result = json!({ "content": [
            { "type": "text", "text": "one" },
            { "type": "image", "mimeType": "image/png", "data": "AQI=" },
            { "type": "text", "text": "two" },
        ] });
        let output = output(&result).expect("a result");
        assert_eq!(output.text.body, "one");
        assert_eq!(output.content.len(), 2);
        assert_eq!(output.content[1].shown, Shape::Text("two".into()));
        assert_eq!(output.ending, Ending::Done);
    }

    #[test]
    fn what_the_protocol_says_of_a_result_is_not_handed_on_and_all_else_is() {
        let own = "io.modelcontextprotocol/serverInfo";
        let all = json!({ own: 1, "dev.mcp/x": 2, "mcp.dev/x": 2, "ui": 3, "com.example.mcp/y": 4, "mcp/z": 5 });
        let result = json!({ "content": [], "_meta": all });
        let output = output(&result).expect("a result");
        let expected = json!({ "ui": 3, "com.example.mcp/y": 4, "mcp/z": 5 });
        assert_eq!(Value::Object(output.meta), expected);
    }

    #[test]
    fn what_has_no_words_here_is_shown_as_it_came() {
        let odd = json!({ "type": "hologram", "data": "x" });
        assert_eq!(content(&odd).shown, Shape::Text(odd.to_string()));
        let broken = json!({ "type": "image", "mimeType": "image/png", "data": "not base64!" });
        assert_eq!(content(&broken).shown, Shape::Text(broken.to_string()));
    }

    #[test]
    fn a_failure_keeps_what_it_shows() {
        let result = json!({ "isError": true, "content": [{ "type": "text", "text": "no" }] });
        let output = output(&result).expect("a result");
        assert_eq!((output.ending, output.text.body.as_str()), (Ending::ToolFailed, "no"));
    }

    #[test]
    fn a_result_without_content_is_none() {
        for odd in [json!({}), json!(7), json!({ "content": "text" })] {
            assert!(output(&odd).is_err(), "{odd}");
        }
    }
}
