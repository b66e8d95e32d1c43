//! Conversion of tool outputs to the contract's results.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use toolgate_contract::{ToolOutput, ToolRunStatus};

use super::calls::{MiraCallParams, MiraReadParams};
use super::encoder::MiraRequest;
use super::refusals::{MiraErrorCode, MiraRequestError};
use crate::sandbox_warning;

/// Converts the output of a called method of Mira's contract to its result.
///
/// # Errors
/// Fails if a read exceeds its byte limit, or if the file had to be converted to UTF-8.
pub(super) fn contract_result(
    call: &MiraCallParams,
    output: &ToolOutput,
) -> Result<Value, MiraRequestError> {
    match call {
        MiraCallParams::Read(limit) => read_result(*limit, &output.value),
        MiraCallParams::Write(_) => Ok(pick_members(
            &output.value,
            &["path", "size", "etag", "mtime", "created", "overwritten"],
        )),
        MiraCallParams::Run { .. } => Ok(run_result(&output.value)),
        MiraCallParams::Search => Ok(search_result(&output.value)),
    }
}

/// Converts the output of a tool outside Mira's contract, which `request` called: its structured
/// result, or its text.
///
/// # Errors
/// Fails if the tool failed without a program's exit code.
pub(super) fn tool_result(
    request: &MiraRequest,
    output: &ToolOutput,
) -> Result<Value, MiraRequestError> {
    let has_exit_code = output.value.get("exit_code").is_some();
    if output.ending != ToolRunStatus::Done && !has_exit_code {
        let why = match output.full_text() {
            text if text.is_empty() => "the tool failed without a message".into(),
            text => text,
        };
        return Err(MiraRequestError::new(MiraErrorCode::Internal, why));
    }
    if output.structured && !output.value.is_null() {
        return Ok(output.value.clone());
    }
    let mut result = json!({ "text": output.body_text() });
    if let Some(note) = &output.text.note {
        result["note"] = json!(request.rename_tools(note));
    }
    Ok(result)
}

fn read_result(
    MiraReadParams { bytes_max }: MiraReadParams,
    value: &Value,
) -> Result<Value, MiraRequestError> {
    if let Some(encoding) = value["file_encoding"].as_str() {
        let why = format!("the file is {encoding}, not UTF-8; use encoding base64");
        return Err(MiraRequestError::new(MiraErrorCode::Validation, why).with_field("encoding"));
    }
    let length = value["bytes"]["length"].as_u64().unwrap_or_default();
    let is_truncated = value["truncated"] == true;
    if is_truncated || bytes_max.is_some_and(|most| length > most) {
        let size = &value["size"];
        let part = "read a part with `offset` and `length`";
        let why = match bytes_max {
            Some(most) => format!(
                "the file has {size} bytes, and the requested part exceeds `max_bytes` ({most}) \
                 or the server's limit; {part}"
            ),
            None => format!(
                "the file has {size} bytes, and the requested part exceeds the server's limit; \
                 {part} of at most {length}"
            ),
        };
        return Err(MiraRequestError::new(MiraErrorCode::ContentTooLarge, why)
            .with_data("size", size.clone()));
    }
    let (text, base64) = match value["encoding"] == "base64" {
        true => (&Value::Null, &value["content"]),
        false => (&value["content"], &Value::Null),
    };
    Ok(json!({
        "path": value["path"],
        "content": text,
        "content_base64": base64,
        "encoding": value["encoding"],
        "size": value["size"],
        "etag": value["etag"],
        "mtime": value["mtime"],
    }))
}

fn run_result(value: &Value) -> Value {
    json!({
        "exit_code": value["exit_code"],
        "stdout": printed_text(value, "stdout"),
        "stderr": sandbox_warning::with_sandbox_warning(printed_text(value, "stderr").into(), value),
        "duration_ms": value["duration_ms"],
        "timed_out": value["timed_out"],
    })
}

/// Returns a program's output as text. A line marks omitted output, because Mira's contract has no
/// field for it.
fn printed_text(value: &Value, stream: &str) -> String {
    let shown = value[stream].as_str().unwrap_or_default();
    let extent = &value[format!("{stream}_extent")];
    let bytes: Cow<'_, [u8]> = match extent["encoding"] == "base64" {
        true => STANDARD.decode(shown).unwrap_or_default().into(),
        false => shown.as_bytes().into(),
    };
    let (Some(from), Some(to)) = (extent["cut"]["from"].as_u64(), extent["cut"]["to"].as_u64())
    else {
        return String::from_utf8_lossy(&bytes).into_owned();
    };
    let (head, tail) = bytes.split_at(usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len()));
    let head = String::from_utf8_lossy(head);
    let tail = String::from_utf8_lossy(tail);
    let end = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
    let rest = match value["output_id"].as_str() {
        Some(id) => format!(
            "; read them with exec/output: output_id \"{id}\", stream \"{stream}\", offset {from}"
        ),
        None => String::new(),
    };
    format!("{head}{end}[{} bytes left out{rest}]\n{tail}", to.saturating_sub(from))
}

fn search_result(value: &Value) -> Value {
    let matches = value["matches"].as_array().into_iter().flatten().map(|found| {
        let metadata = [
            "path",
            "line_start",
            "line_end",
            "lang",
            "commit",
            "shard_id",
            "etag",
            "tags",
            "snippet",
        ];
        let mut item = json!({ "id": found["id"], "score": found["score"] });
        if let Some(vector) = found.get("vector") {
            item["vector"] = vector.clone();
        }
        item["metadata"] = pick_members(found, &metadata);
        item
    });
    json!({
        "matches": matches.collect::<Vec<_>>(),
        "usage": pick_members(&value["usage"], &["embedding_model", "embed_time_ms", "rerank_model"]),
    })
}

/// Returns an object of the members `names` of `value`.
fn pick_members(value: &Value, names: &[&str]) -> Value {
    let members =
        names.iter().filter_map(|name| Some(((*name).to_owned(), value.get(*name)?.clone())));
    Value::Object(members.collect())
}

#[cfg(test)]
mod tests {
    use toolgate_contract::{ContentBlock, MetaFields, ResultText};

    use super::*;

    #[test]
    fn the_text_of_a_result_has_all_its_content() {
        let image = ContentBlock::image("image/png", vec![1_u8, 2, 3]);
        let output = ToolOutput {
            value: Value::Null,
            structured: false,
            text: ResultText::from_body("one"),
            content: vec![image, ContentBlock::text("two")],
            meta: MetaFields::new(),
            ending: ToolRunStatus::Done,
            from_upstream: true,
        };
        let Ok(result) = tool_result(&MiraRequest::Invalid, &output) else { panic!("a result") };
        assert_eq!(result, json!({ "text": "one\n(image/png, 3 bytes)\ntwo" }));
    }
}
