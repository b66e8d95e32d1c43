//! Asks a person at the terminal the questions of a running call.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};
use toolgate_contract::printable::{escape_line, escape_lines};
use toolgate_contract::{
    ClientAnswer, ClientAnswers, ClientQuestion, ClientQuestions, ElicitationAnswer, QuestionAsker,
    QuestionSender, QuestionSupport, ToolError, ToolFuture, exact_json, fold_name,
};
use toolgate_toolsets::ci::OWN_REGISTRY_QUESTION;

use super::follow::{ProgressBarHandle, ProgressDisplay};

/// The tool that restores the dependencies of a project.
const CI_RESTORE: &str = "ci_restore";

/// The person at the terminal, who answers the questions of a call.
#[derive(Clone)]
pub(super) struct TerminalUser {
    /// Progress bar, which is hidden while a question is open.
    bar: Option<ProgressBarHandle>,
    has_declined: Arc<AtomicBool>,
    /// True if the called tool is `ci.restore`, which restores the dependencies of a project.
    is_restore: bool,
}

impl TerminalUser {
    /// Returns the person at the terminal, who calls `tool`. Returns `None` if there is no
    /// terminal.
    pub(super) fn at_terminal(tool: &str, follow: Option<&ProgressDisplay>) -> Option<Self> {
        is_at_terminal().then(|| Self {
            bar: follow.and_then(ProgressDisplay::bar),
            has_declined: Arc::default(),
            is_restore: fold_name(tool) == CI_RESTORE,
        })
    }

    /// Returns an asker that asks this person the questions of a call.
    pub(super) fn asker(&self) -> QuestionAsker {
        let can = QuestionSupport { form: true, visit: true, ..QuestionSupport::default() };
        QuestionAsker::during_call(can, Arc::new(self.clone()))
    }

    /// Returns true if the person has declined a question.
    pub(super) fn has_declined(&self) -> bool {
        self.has_declined.load(Ordering::Relaxed)
    }
}

impl QuestionSender for TerminalUser {
    fn ask(&self, questions: ClientQuestions) -> ToolFuture<'_, ClientAnswers> {
        Box::pin(async move {
            // The bar would be drawn over the question.
            let _aside = self.bar.as_ref().map(ProgressBarHandle::hide);
            let line = UnansweredPrompt;
            let is_restore = self.is_restore;
            // A read from a terminal cannot be cancelled. Only the end of the program ends it.
            let asking = toolgate_net::spawn_blocking(move || {
                let mut terminal =
                    TerminalPrompt { input: std::io::stdin().lock(), out: std::io::stderr() };
                let choices = questions.into_iter().map(|(key, question)| {
                    let choice = terminal.answer(&key, &question, is_restore);
                    (key, choice)
                });
                choices.collect::<Vec<(String, ElicitationAnswer)>>()
            });
            let choices = asking
                .await
                .map_err(|err| ToolError::with_cause("the question could not be asked", err))?;
            std::mem::forget(line);
            if choices.iter().any(|(_, choice)| !matches!(choice, ElicitationAnswer::Accepted(_))) {
                self.has_declined.store(true, Ordering::Relaxed);
            }
            let answers =
                choices.into_iter().map(|(key, choice)| (key, ClientAnswer::Choice(choice)));
            Ok(answers.collect())
        })
    }
}

fn is_at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks the person at the terminal a yes-or-no question about a change. Returns true for yes, and
/// `None` if there is no terminal.
pub(super) fn ask_yes_no(question: &str) -> Option<bool> {
    if !is_at_terminal() {
        return None;
    }
    let mut terminal = TerminalPrompt { input: std::io::stdin().lock(), out: std::io::stderr() };
    Some(matches!(terminal.agree(question, Map::new()), ElicitationAnswer::Accepted(_)))
}

/// An unanswered prompt on the terminal. Dropping it starts a new line.
struct UnansweredPrompt;

impl Drop for UnansweredPrompt {
    fn drop(&mut self) {
        write_flushed(&mut std::io::stderr(), "\n");
    }
}

/// Terminal on which questions are asked: input `I` and output `O`.
struct TerminalPrompt<I, O> {
    input: I,
    out: O,
}

impl<I: BufRead, O: Write> TerminalPrompt<I, O> {
    /// Asks `question`, which has the key `key`, and returns the person's answer. If `is_restore`
    /// is true, does not ask whether `ci.restore` may use the package registry that the person has
    /// named.
    fn answer(
        &mut self,
        key: &str,
        question: &ClientQuestion,
        is_restore: bool,
    ) -> ElicitationAnswer {
        match key {
            // The person has named the registry. An upstream chooses the keys of its own questions.
            OWN_REGISTRY_QUESTION if is_restore => ElicitationAnswer::Accepted(Map::new()),
            _ => self.ask(question),
        }
    }

    fn ask(&mut self, question: &ClientQuestion) -> ElicitationAnswer {
        match question {
            // The message contains the question already.
            ClientQuestion::Form { message, .. } if question.is_for_consent() => {
                let message = escape_lines(message);
                let between = if message.ends_with('?') { " " } else { "\n" };
                self.agree(&format!("{message}{between}"), Map::new())
            }
            ClientQuestion::Form { message, schema } => self.fill_in(message, schema),
            ClientQuestion::Visit { message, url, .. } => {
                let (message, url) = (escape_lines(message), escape_line(url));
                self.agree(&format!("{message}\n  {url}\nDid you open this page? "), Map::new())
            }
            // The asker does not offer these capabilities.
            ClientQuestion::Sample(_) | ClientQuestion::Roots => ElicitationAnswer::Declined,
        }
    }

    fn fill_in(&mut self, message: &str, schema: &Value) -> ElicitationAnswer {
        write_flushed(&mut self.out, &format!("{}\n", escape_lines(message)));
        let mut content = Map::new();
        let fields = schema.get("properties").and_then(Value::as_object);
        for (name, field) in fields.into_iter().flatten() {
            let about = field.get("description").or_else(|| field.get("title"));
            let about = about.and_then(Value::as_str).map(|about| format!(" ({about})"));
            let about = about.unwrap_or_default();
            let choices = field.get("enum").map(|all| format!(" one of {all}")).unwrap_or_default();
            let prompt = format!("  {name}{about}{choices}: ");
            let Some(line) = self.read(&escape_line(&prompt)) else {
                return ElicitationAnswer::Canceled;
            };
            if let Some(value) = parse_field(field, line.trim()) {
                content.insert(name.clone(), value);
            }
        }
        if content.is_empty() {
            self.agree("Continue? ", content)
        } else {
            ElicitationAnswer::Accepted(content)
        }
    }

    fn agree(&mut self, question: &str, content: Map<String, Value>) -> ElicitationAnswer {
        match self.read(&format!("{question}[y/N] ")).map(|line| is_yes(line.trim())) {
            Some(true) => ElicitationAnswer::Accepted(content),
            Some(false) => ElicitationAnswer::Declined,
            None => ElicitationAnswer::Canceled,
        }
    }

    /// Prints `prompt` and reads a line from the input. Returns `None` at the end of the input.
    fn read(&mut self, prompt: &str) -> Option<String> {
        write_flushed(&mut self.out, prompt);
        let mut line = String::new();
        let read = self.input.read_line(&mut line);
        // The end of the input leaves the cursor on the prompt's line.
        if !line.ends_with('\n') {
            write_flushed(&mut self.out, "\n");
        }
        match read {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line),
        }
    }
}

/// Parses a typed `line` as the value of `field`, the JSON Schema of a form field. An empty line
/// means the default. Returns `None` if the line is empty and there is no default.
fn parse_field(field: &Value, line: &str) -> Option<Value> {
    if line.is_empty() {
        return field.get("default").cloned();
    }
    Some(match field.get("type").and_then(Value::as_str) {
        Some("boolean") => Value::Bool(is_yes(line)),
        Some("integer" | "number" | "array") => {
            exact_json::parse(line).unwrap_or_else(|_| line.into())
        }
        Some(_) | None => line.into(),
    })
}

fn is_yes(line: &str) -> bool {
    matches!(line.to_ascii_lowercase().as_str(), "y" | "yes" | "true")
}

fn write_flushed(out: &mut impl Write, text: &str) {
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Asks `question` in a test, and types `typed` as the answer. Returns the text on the terminal
    /// and the parsed answer.
    fn ask(question: &ClientQuestion, typed: &str) -> (String, ElicitationAnswer) {
        let mut terminal = TerminalPrompt { input: typed.as_bytes(), out: Vec::new() };
        let choice = terminal.ask(question);
        (String::from_utf8(terminal.out).expect("text"), choice)
    }

    fn consent(message: &str) -> ClientQuestion {
        let schema = json!({ "type": "object", "properties": {} });
        ClientQuestion::Form { message: message.to_owned(), schema }
    }

    #[test]
    fn a_consent_is_asked_for_once() {
        let (shown, _) = ask(&consent("Write file: {}\nAllow this action?"), "n\n");
        assert_eq!(shown, "Write file: {}\nAllow this action? [y/N] ");
        let (shown, _) = ask(&consent("Run this?\n\"rm\""), "n\n");
        assert_eq!(shown, "Run this?\n\"rm\"\n[y/N] ");
    }

    #[test]
    fn only_a_restore_may_reach_the_own_registry_without_a_question() {
        for is_restore in [true, false] {
            let mut terminal = TerminalPrompt { input: &b"n\n"[..], out: Vec::new() };
            let choice = terminal.answer(OWN_REGISTRY_QUESTION, &consent("?"), is_restore);
            assert_eq!(choice == ElicitationAnswer::Accepted(Map::new()), is_restore, "{choice:?}");
            assert_eq!(terminal.out.is_empty(), is_restore);
        }
    }

    #[test]
    fn control_characters_of_a_question_are_escaped() {
        let (shown, _) = ask(&consent("Do\u{1b}[2J\nit?"), "n\n");
        assert_eq!(shown, "Do\\u{1b}[2J\nit? [y/N] ");
    }

    #[test]
    fn only_a_form_of_yes_accepts() {
        for yes in ["y\n", "Y\n", "yes\n", "YES\n", " Yes \r\n", "y"] {
            assert_eq!(
                ask(&consent("?"), yes).1,
                ElicitationAnswer::Accepted(Map::new()),
                "{yes:?}"
            );
        }
        for no in ["\n", "n\n", "yess\n", "ja\n"] {
            assert_eq!(ask(&consent("?"), no).1, ElicitationAnswer::Declined, "{no:?}");
        }
    }

    #[test]
    fn the_end_of_input_cancels_and_starts_a_new_line() {
        let ended = ("Should it? [y/N] \n".to_owned(), ElicitationAnswer::Canceled);
        assert_eq!(ask(&consent("Should it?"), ""), ended);
    }

    #[test]
    fn a_form_is_filled_in_field_by_field() {
        let sugar = json!({ "type": "integer", "description": "Lumps", "default": 1 });
        let milk = json!({ "type": "boolean" });
        let schema = json!({ "type": "object", "properties": { "milk": milk, "sugar": sugar } });
        let form = ClientQuestion::Form { message: "Tea?".to_owned(), schema };
        let (shown, choice) = ask(&form, "YES\n\n");
        assert_eq!(shown, "Tea?\n  milk:   sugar (Lumps): ");
        let ElicitationAnswer::Accepted(content) = choice else { panic!("{choice:?}") };
        assert_eq!(Value::Object(content), json!({ "milk": true, "sugar": 1 }));
    }
}
