//! The default form of an answer in an envelope, for dialects that do not define their own form.

use serde_json::{Value, json};
use toolgate_contract::{AnyPrompt, AnyTool, HostAnswer, ToolOutput, exact_json};

/// Converts the host's `answer` to JSON for an envelope.
pub(crate) fn answer_data(answer: &HostAnswer) -> Value {
    let tool = |tool: &dyn AnyTool| {
        let spec = tool.spec();
        json!({ "id": spec.id.as_str(), "title": spec.title, "description": spec.description })
    };
    let prompt = |prompt: &dyn AnyPrompt| json!({ "name": prompt.spec().name });
    match answer {
        HostAnswer::Everything { tools, prompts } => json!({
            "tools": tools.iter().map(|one| tool(one.as_ref())).collect::<Vec<_>>(),
            "prompts": prompts.iter().map(|one| prompt(one.as_ref())).collect::<Vec<_>>(),
        }),
        HostAnswer::Tools(page) => {
            json!({ "tools": page.tools.iter().map(|one| tool(one.as_ref())).collect::<Vec<_>>() })
        }
        HostAnswer::Output(output) => output_data(output),
        HostAnswer::Job(job) => json!({ "job": job.id.to_string() }),
        HostAnswer::Prompts(page) => json!({
            "prompts": page.prompts.iter().map(|one| prompt(one.as_ref())).collect::<Vec<_>>(),
        }),
        _ => json!({}),
    }
}

/// Converts a tool's output to a JSON object for an envelope.
pub(crate) fn output_data(output: &ToolOutput) -> Value {
    match &output.value {
        value @ Value::Object(_) => value.clone(),
        Value::Null => json!({ "text": output.body_text() }),
        value => exact_json::object([("value", value.clone())]),
    }
}
