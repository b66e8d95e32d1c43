//! Asks the questions due before a call begins: the confirmation by a person, and those of its
//! tool.

use serde_json::{Value, json};
use toolgate_contract::{
    CallError, ClientAnswer, ClientQuestion, ClientQuestions, Effects, PersonChoice, QuestionKind,
    ToolCall, ToolSpec,
};

use crate::Gate;
use crate::catalog::CatalogEntry;
use crate::pipeline::{CallContext, run_with_deadline};
use crate::policy::CallPermit;

/// Key of the confirmation question. No question of a tool has this key.
const CONFIRM_KEY: &str = "toolgate.confirm";
/// Longest text of arguments that a person is shown, in characters.
const SHOWN_CHARS_MAX: usize = 8000;
/// Longest single string in shown arguments that have to be shortened, in characters.
const TEXT_CHARS_MAX: usize = 300;

/// Asks the open questions that must be answered before `call` begins.
pub(crate) async fn ask_before_call(
    gate: &Gate,
    entry: &CatalogEntry,
    call: &ToolCall,
    input: &Value,
    permit: &CallPermit,
) -> Result<(), CallError> {
    confirm_if_required(gate, entry.spec(), call, input, permit).await?;
    run_precheck(gate, entry, call, input).await
}

/// Lets the tool inspect the call before its work begins, if the tool does so.
pub(crate) async fn run_precheck(
    gate: &Gate,
    entry: &CatalogEntry,
    call: &ToolCall,
    input: &Value,
) -> Result<(), CallError> {
    if !entry.tool().has_prepare() {
        return Ok(());
    }
    // Boxed: few tools do this, and every call would reserve space for it.
    let looking = async {
        let stand = CallContext::new(gate, entry.spec().deadline, call);
        run_with_deadline(gate, &stand, entry.tool().prepare(&stand.ctx, input)).await
    };
    Box::pin(looking).await
}

/// Asks a person to confirm `call` of the tool `spec`, if `permit` requires confirmation.
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
        let what = format!(
            "`{id}` must be confirmed by a person each time (`{rule}`), and this client offers \
             no way to ask one"
        );
        // Each wire has its own error for a missing client capability.
        return Err(match call.asker.repeats_calls() {
            true => CallError::CannotAsk { kind: QuestionKind::Form, what: Some(what) },
            false => CallError::NotAllowed { message: what },
        });
    }
    let Some(shown) = display_input(spec.effects, input) else {
        let message = format!(
            "`{id}` must be confirmed by a person each time (`{rule}`), and its arguments are \
             longer than the {SHOWN_CHARS_MAX} characters that can be shown; shorten them"
        );
        return Err(CallError::NotAllowed { message });
    };
    let what = match &spec.group {
        // The upstream chooses the title freely, so the tool's id is shown with it.
        Some(_) => format!("`{id}` ({})", spec.title),
        None => spec.title.clone(),
    };
    let question = ClientQuestion::Form {
        message: format!("{what}: {shown}\nShould it be done?"),
        schema: json!({ "type": "object", "properties": {} }),
    };
    let stand = CallContext::new(gate, spec.deadline, call);
    let given = tokio::select! {
        biased;
        given = stand.ctx.asker.ask(ClientQuestions::from([(CONFIRM_KEY.to_owned(), question)])) => given?,
        over = stand.wait_until_over() => return Err(over),
    };
    match given.get(CONFIRM_KEY) {
        Some(ClientAnswer::Choice(PersonChoice::Accepted(_))) => Ok(()),
        Some(_) | None => {
            let message = format!("a person was asked about `{id}` and did not agree");
            Err(CallError::NotAllowed { message })
        }
    }
}

/// Returns the arguments in a readable form, or `None` if they are too long.
///
/// A person must see the action that they confirm. A program call is shown in full. In other calls
/// long texts may be shortened, and their length is shown.
fn display_input(effects: Effects, input: &Value) -> Option<String> {
    let whole = escape_invisible(&input.to_string());
    if is_short(&whole) {
        return Some(whole);
    }
    match effects {
        Effects::Runs => None,
        Effects::Reads | Effects::Adds | Effects::Changes => {
            Some(escape_invisible(&shorten_strings(input).to_string()))
                .filter(|text| is_short(text))
        }
    }
}

fn is_short(text: &str) -> bool {
    text.chars().nth(SHOWN_CHARS_MAX).is_none()
}

/// Escapes characters in `json` that are invisible or change how other text is displayed.
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
                let more = text[end..].chars().count();
                Value::String(format!("{}… and {more} characters more", &text[..end]))
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
    fn whoever_agrees_to_a_program_has_seen_all_its_arguments() {
        let input = |len| json!({ "args": ["x".repeat(len)], "command": "rm" });
        let text = display_input(Effects::Runs, &input(700)).expect("it is shown");
        assert_eq!(text, input(700).to_string());
        assert_eq!(display_input(Effects::Runs, &input(SHOWN_CHARS_MAX)), None);
    }

    #[test]
    fn a_long_text_hides_no_other_argument_and_it_is_said_how_long_it_is() {
        let input = json!({ "content": "x".repeat(10_000), "path": "a" });
        let text = display_input(Effects::Changes, &input).expect("it is shown");
        assert!(text.contains("xx… and 9700 characters more\",\"path\":\"a\""), "{text}");
        let many = json!({ "all": vec!["y"; SHOWN_CHARS_MAX] });
        assert_eq!(display_input(Effects::Changes, &many), None);
    }

    #[test]
    fn nothing_makes_arguments_look_otherwise_than_they_are() {
        let text = display_input(Effects::Runs, &json!({ "a": "\u{202e}é\u{200b}\n\"" }));
        assert_eq!(text.as_deref(), Some(r#"{"a":"\u{202e}é\u{200b}\n\""}"#));
    }
}
