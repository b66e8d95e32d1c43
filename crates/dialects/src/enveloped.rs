//! The default form of an answer in an envelope, for dialects without their own.

use serde_json::{Value, json};
use toolgate_contract::{Answer, AnyPrompt, AnyTool, Output};

/// Converts `answer` to JSON.
pub(crate) fn data(answer: &Answer) -> Value {
    let tool = |tool: &dyn AnyTool| {
        let spec = tool.spec();
        json!({ "id": spec.id.as_str(), "title": spec.title, "description": spec.about })
    };
    let prompt = |prompt: &dyn AnyPrompt| json!({ "name": prompt.spec().name });
    match answer {
        Answer::Everything { tools, prompts } => json!({
            "tools": tools.iter().map(|one| tool(one.as_ref())).collect::<Vec<_>>(),
            "prompts": prompts.iter().map(|one| prompt(one.as_ref())).collect::<Vec<_>>(),
        }),
        Answer::Tools(page) => {
            json!({ "tools": page.tools.iter().map(|one| tool(one.as_ref())).collect::<Vec<_>>() })
        }
        Answer::Output(output) => output_data(output),
        Answer::Job(job) => json!({ "job": job.id.to_string() }),
        Answer::Prompts(page) => json!({
            "prompts": page.prompts.iter().map(|one| prompt(one.as_ref())).collect::<Vec<_>>(),
        }),
        _ => json!({}),
    }
}

/// Converts a tool's output to a JSON object.
pub(crate) fn output_data(output: &Output) -> Value {
    match &output.value {
        value @ Value::Object(_) => value.clone(),
        Value::Null => json!({ "text": output.text.body }),
        value => json!({ "value": value }),
    }
}
