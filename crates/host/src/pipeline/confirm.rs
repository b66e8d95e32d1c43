//! Asks a person to confirm a call before it begins.

use serde_json::{Map, Value, json};
use toolgate_contract::{
    CallError, ClientAnswer, ClientQuestion, ClientQuestions, Effects, ElicitationAnswer,
    QuestionKind, ToolCall, ToolSpec, printable,
};

use crate::Gate;
use crate::pipeline::CallContext;
use crate::policy::CallPermit;

/// Key of the confirmation question. Tools cannot use this key.
const CONFIRM_KEY: &str = "toolgate.confirm";
/// Longest text of arguments that a confirmation question shows, in characters.
const SHOWN_CHARS_MAX: usize = 8000;
/// Maximum length of a string in the arguments that a shortened confirmation shows, in characters.
const TEXT_CHARS_MAX: usize = 300;

/// Asks a person to confirm `call` of the tool `spec`, if `permit` requires a confirmation.
pub(crate) async fn confirm_if_required(
    gate: &Gate,
    spec: &ToolSpec,
    call: &ToolCall,
    input: &Value,
    permit: &CallPermit,
) -> Result<(), CallError> {
    match permit.needs_confirmation() {
        true => Box::pin(ask_confirmation(gate, spec, call, input, permit)).await,
        false => Ok(()),
    }
}

async fn ask_confirmation(
    gate: &Gate,
    spec: &ToolSpec,
    call: &ToolCall,
    input: &Value,
    permit: &CallPermit,
) -> Result<(), CallError> {
    let id = &spec.id;
    let rule = permit.rule();
    if !call.asker.supported().supports(QuestionKind::Form)
        && !call.asker.answers().contains_key(CONFIRM_KEY)
    {
        let message = format!(
            "`{id}` must be confirmed by a person each time (`{rule}`), and this client cannot \
             ask anyone"
        );
        // Each wire has its own error for a missing client capability.
        return Err(match call.asker.repeats_calls() {
            true => CallError::CannotAsk { kind: QuestionKind::Form, what: Some(message) },
            false => CallError::NotAllowed { message },
        });
    }
    let Some(shown) = display_input(spec.effects, input) else {
        let message = format!(
            "`{id}` must be confirmed by a person each time (`{rule}`), and its arguments are \
             longer than the {SHOWN_CHARS_MAX} characters that can be shown; shorten them"
        );
        return Err(CallError::NotAllowed { message });
    };
    let action = match &spec.group {
        // The upstream chooses the title freely, so the tool's id is shown with it.
        Some(_) => format!("`{id}` ({})", spec.title),
        None => spec.title.clone(),
    };
    let question = ClientQuestion::Form {
        message: format!("{action}: {shown}\nAllow this action?"),
        schema: json!({ "type": "object", "properties": {} }),
    };
    let context = CallContext::new(gate, spec.deadline, call);
    let questions = ClientQuestions::from([(CONFIRM_KEY.to_owned(), question)]);
    let answers = tokio::select! {
        biased;
        answers = context.ctx.asker.ask(questions) => answers?,
        error = context.wait_until_over() => return Err(error),
    };
    match answers.get(CONFIRM_KEY) {
        Some(ClientAnswer::Choice(ElicitationAnswer::Accepted(_))) => Ok(()),
        Some(_) | None => {
            let message = format!("a person was asked about `{id}` and did not agree");
            Err(CallError::NotAllowed { message })
        }
    }
}

/// Returns the arguments of a call in a readable form for a confirmation, or `None` if they are too
/// long.
///
/// A person must see the action that they confirm. The arguments of a program are shown in full. In
/// other calls, long texts may be shortened, and their length is shown.
fn display_input(effects: Effects, input: &Value) -> Option<String> {
    if let Some(diff) = display_diff(input).filter(|diff| is_short(diff)) {
        return Some(diff);
    }
    let text = escape_invisible(&input.to_string());
    if is_short(&text) {
        return Some(text);
    }
    match effects {
        Effects::Runs => None,
        Effects::Reads | Effects::Adds | Effects::Changes => {
            Some(escape_invisible(&shorten_strings(input).to_string()))
                .filter(|text| is_short(text))
        }
    }
}

/// Returns the edits in a call's arguments, or a new text of several lines, as a diff after the
/// other arguments. `None` if `input` has neither.
fn display_diff(input: &Value) -> Option<String> {
    let mut others = input.as_object()?.clone();
    if let Some(edits) = others.shift_remove("edits") {
        return display_edits(others, &edits);
    }
    let content = others.shift_remove("content")?;
    let content = content.as_str().filter(|content| content.trim_end().contains('\n'))?;
    let mut text = escape_invisible(&Value::Object(others).to_string());
    push_lines(&mut text, "+", content);
    Some(text)
}

fn display_edits(others: Map<String, Value>, edits: &Value) -> Option<String> {
    let mut text = escape_invisible(&Value::Object(others).to_string());
    for edit in edits.as_array()? {
        let mut edit = edit.as_object()?.clone();
        let old = edit.remove("old").unwrap_or_default();
        let new = edit.remove("new")?;
        if !edit.is_empty() {
            text += &format!("\n@@ {}", escape_invisible(&Value::Object(edit).to_string()));
        }
        let sides = [("-", old.as_str().or(old.is_null().then_some(""))?), ("+", new.as_str()?)];
        for (sign, side) in sides {
            push_lines(&mut text, sign, side);
        }
    }
    Some(text)
}

/// Appends each line of `side` (one side of a diff) to `text`, with `sign` before it.
fn push_lines(text: &mut String, sign: &str, side: &str) {
    for line in printable::escape_lines(side).lines() {
        *text += &format!("\n{sign}{line}");
    }
}

fn is_short(text: &str) -> bool {
    text.chars().nth(SHOWN_CHARS_MAX).is_none()
}

/// Escapes characters in `json` that are invisible or change how the text around them is displayed.
fn escape_invisible(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        // JSON has already escaped the ASCII characters that need it.
        if c.is_ascii() { text.push(c) } else { text.extend(c.escape_debug()) }
    }
    text
}

/// Returns `value` with long strings shortened.
fn shorten_strings(value: &Value) -> Value {
    match value {
        Value::String(text) => match text.char_indices().nth(TEXT_CHARS_MAX) {
            Some((end, _)) => {
                let omitted = text[end..].chars().count();
                Value::String(format!("{}… and {omitted} characters more", &text[..end]))
            }
            None => value.clone(),
        },
        Value::Array(items) => items.iter().map(shorten_strings).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, member)| (name.clone(), shorten_strings(member))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_shown_with_all_its_arguments_or_not_at_all() {
        let input = |len| json!({ "args": ["x".repeat(len)], "command": "rm" });
        let text = display_input(Effects::Runs, &input(700)).expect("it is shown");
        assert_eq!(text, input(700).to_string());
        assert_eq!(display_input(Effects::Runs, &input(SHOWN_CHARS_MAX)), None);
    }

    #[test]
    fn a_long_text_is_cut_with_its_length_and_hides_no_other_argument() {
        let input = json!({ "content": "x".repeat(10_000), "path": "a" });
        let text = display_input(Effects::Changes, &input).expect("it is shown");
        assert!(text.contains("xx… and 9700 characters more\",\"path\":\"a\""), "{text}");
        let many = json!({ "all": vec!["y"; SHOWN_CHARS_MAX] });
        assert_eq!(display_input(Effects::Changes, &many), None);
    }

    #[test]
    fn edits_are_shown_as_a_diff_after_the_other_arguments() {
        let edits = json!([
            { "old": "a\n\u{202e}b", "new": "c" },
            { "start_line": 3, "new": "d" },
        ]);
        let text = display_input(Effects::Changes, &json!({ "path": "f", "edits": edits }));
        let expected = "{\"path\":\"f\"}\n-a\n-\\u{202e}b\n+c\n@@ {\"start_line\":3}\n+d";
        assert_eq!(text.as_deref(), Some(expected));
        let other = json!({ "edits": [{ "new": 1 }] });
        assert_eq!(display_input(Effects::Changes, &other), Some(other.to_string()));
    }

    #[test]
    fn a_new_text_of_several_lines_is_shown_as_lines() {
        let input = json!({ "content": "a\n\u{202e}b\n", "path": "f" });
        let text = display_input(Effects::Changes, &input);
        assert_eq!(text.as_deref(), Some("{\"path\":\"f\"}\n+a\n+\\u{202e}b"));
        let input = json!({ "content": "a\n", "path": "f" });
        assert_eq!(display_input(Effects::Changes, &input), Some(input.to_string()));
    }

    #[test]
    fn invisible_characters_in_arguments_are_escaped() {
        let text = display_input(Effects::Runs, &json!({ "a": "\u{202e}é\u{200b}\n\"" }));
        assert_eq!(text.as_deref(), Some(r#"{"a":"\u{202e}é\u{200b}\n\""}"#));
    }
}
