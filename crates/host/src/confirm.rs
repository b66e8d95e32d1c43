//! Asks the questions due before a call begins: the confirmation by a person, and those of its
//! tool.

use serde_json::{Value, json};
use toolgate_contract::{
    Call, CallError, Choice, Effects, Kind, Question, Questions, Told, ToolSpec,
};

use crate::Gate;
use crate::catalog::Entry;
use crate::pipeline::{Stand, bounded};
use crate::policy::Permit;

/// Key of the confirmation question. No question of a tool has this key.
const KEY: &str = "toolgate.confirm";
/// Longest text of arguments that a person is shown, in characters.
const SHOWN_CHARS_MAX: usize = 8000;
/// Longest single string in shown arguments that have to be shortened, in characters.
const TEXT_CHARS_MAX: usize = 300;

/// Asks the open questions that must be answered before `call` begins.
pub(crate) async fn before(
    gate: &Gate,
    entry: &Entry,
    call: &Call,
    input: &Value,
    permit: &Permit,
) -> Result<(), CallError> {
    agreed(gate, entry.spec(), call, input, permit).await?;
    looked(gate, entry, call, input).await
}

/// Lets the tool inspect the call before its work begins, if the tool does so.
pub(crate) async fn looked(
    gate: &Gate,
    entry: &Entry,
    call: &Call,
    input: &Value,
) -> Result<(), CallError> {
    if !entry.tool().looks_before() {
        return Ok(());
    }
    // Boxed: few tools do this, and every call would reserve space for it.
    let looking = async {
        let stand = Stand::of(gate, entry.spec().deadline, call);
        bounded(gate, &stand, entry.tool().before(&stand.ctx, input)).await
    };
    Box::pin(looking).await
}

/// Asks a person to confirm `call` of the tool `spec`, if `permit` requires confirmation.
pub(crate) async fn agreed(
    gate: &Gate,
    spec: &ToolSpec,
    call: &Call,
    input: &Value,
    permit: &Permit,
) -> Result<(), CallError> {
    match permit.confirms() {
        true => Box::pin(asked(gate, spec, call, input, permit)).await,
        false => Ok(()),
    }
}

async fn asked(
    gate: &Gate,
    spec: &ToolSpec,
    call: &Call,
    input: &Value,
    permit: &Permit,
) -> Result<(), CallError> {
    let id = &spec.id;
    let rule = permit.rule();
    if !call.asker.can().has(Kind::Form) && !call.asker.given().contains_key(KEY) {
        let what = format!(
            "`{id}` is to be confirmed by a person each time (`{rule}`), and this client offers \
             no way to ask one"
        );
        // Each wire has its own error for a missing client capability.
        return Err(match call.asker.calls_again() {
            true => CallError::CannotAsk { kind: Kind::Form, what: Some(what) },
            false => CallError::NotAllowed { message: what },
        });
    }
    let Some(shown) = shown(spec.effects, input) else {
        let message = format!(
            "`{id}` is to be confirmed by a person each time (`{rule}`), and its arguments \
             are longer than the {SHOWN_CHARS_MAX} characters they are shown; make them shorter"
        );
        return Err(CallError::NotAllowed { message });
    };
    let what = match &spec.among {
        // The upstream chooses the title freely, so the tool's id is shown with it.
        Some(_) => format!("`{id}` ({})", spec.title),
        None => spec.title.clone(),
    };
    let question = Question::Form {
        message: format!("{what}: {shown}\nShould it be done?"),
        schema: json!({ "type": "object", "properties": {} }),
    };
    let stand = Stand::of(gate, spec.deadline, call);
    let given = tokio::select! {
        biased;
        given = stand.ctx.asker.ask(Questions::from([(KEY.to_owned(), question)])) => given?,
        over = stand.over() => return Err(over),
    };
    match given.get(KEY) {
        Some(Told::Choice(Choice::Accepted(_))) => Ok(()),
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
fn shown(effects: Effects, input: &Value) -> Option<String> {
    let whole = visible(&input.to_string());
    if is_short(&whole) {
        return Some(whole);
    }
    match effects {
        Effects::Runs => None,
        Effects::Reads | Effects::Adds | Effects::Changes => {
            Some(visible(&cut(input).to_string())).filter(|text| is_short(text))
        }
    }
}

fn is_short(text: &str) -> bool {
    text.chars().nth(SHOWN_CHARS_MAX).is_none()
}

/// Escapes characters in `json` that are invisible or change how other text is displayed.
fn visible(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        // JSON has already escaped the ASCII characters that need it.
        if c.is_ascii() { text.push(c) } else { text.extend(c.escape_debug()) }
    }
    text
}

/// Returns `value` with long strings shortened.
fn cut(value: &Value) -> Value {
    match value {
        Value::String(text) => match text.char_indices().nth(TEXT_CHARS_MAX) {
            Some((end, _)) => {
                let more = text[end..].chars().count();
                Value::String(format!("{}… and {more} characters more", &text[..end]))
            }
            None => value.clone(),
        },
        Value::Array(items) => items.iter().map(cut).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, member)| (name.clone(), cut(member))).collect()
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
        let text = shown(Effects::Runs, &input(700)).expect("it is shown");
        assert_eq!(text, input(700).to_string());
        assert_eq!(shown(Effects::Runs, &input(SHOWN_CHARS_MAX)), None);
    }

    #[test]
    fn a_long_text_hides_no_other_argument_and_it_is_said_how_long_it_is() {
        let input = json!({ "content": "x".repeat(10_000), "path": "a" });
        let text = shown(Effects::Changes, &input).expect("it is shown");
        assert!(text.contains("xx… and 9700 characters more\",\"path\":\"a\""), "{text}");
        let many = json!({ "all": vec!["y"; SHOWN_CHARS_MAX] });
        assert_eq!(shown(Effects::Changes, &many), None);
    }

    #[test]
    fn nothing_makes_arguments_look_otherwise_than_they_are() {
        let text = shown(Effects::Runs, &json!({ "a": "\u{202e}é\u{200b}\n\"" }));
        assert_eq!(text.as_deref(), Some(r#"{"a":"\u{202e}é\u{200b}\n\""}"#));
    }
}
