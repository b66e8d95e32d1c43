//! Asks the person at the terminal the questions of a call.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};
use toolgate_contract::{
    AskNow, Askable, Asker, BoxFuture, Choice, Given, Question, Questions, Told, ToolError,
};

use super::follow::{Bar, Follow};

/// The person at the terminal.
#[derive(Clone)]
pub(super) struct Person {
    /// Progress bar, hidden while a question is open.
    bar: Option<Bar>,
    disagreed: Arc<AtomicBool>,
}

impl Person {
    /// Returns the person at the terminal, or `None` if there is no terminal.
    pub(super) fn at_terminal(follow: Option<&Follow>) -> Option<Self> {
        let there = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        there.then(|| Self { bar: follow.and_then(Follow::bar), disagreed: Arc::default() })
    }

    /// Returns an asker that asks this person.
    pub(super) fn asker(&self) -> Asker {
        let can = Askable { form: true, visit: true, ..Askable::default() };
        Asker::now(can, Arc::new(self.clone()))
    }

    /// Returns true if the person has declined a question.
    pub(super) fn disagreed(&self) -> bool {
        self.disagreed.load(Ordering::Relaxed)
    }
}

impl AskNow for Person {
    fn ask(&self, questions: Questions) -> BoxFuture<'_, Result<Given, ToolError>> {
        Box::pin(async move {
            // The bar would be drawn over the question.
            let _aside = self.bar.as_ref().map(Bar::aside);
            let line = OpenLine;
            // A read from a terminal cannot be cancelled. Only the end of the program ends it.
            let asked = tokio::task::spawn_blocking(move || {
                let mut terminal =
                    Terminal { input: std::io::stdin().lock(), out: std::io::stderr() };
                let told = questions.into_iter().map(|(key, asked)| (key, terminal.put(&asked)));
                told.collect::<Vec<(String, Choice)>>()
            });
            let told =
                asked.await.map_err(|err| ToolError::because("nobody could be asked", err))?;
            std::mem::forget(line);
            if told.iter().any(|(_, choice)| !matches!(choice, Choice::Accepted(_))) {
                self.disagreed.store(true, Ordering::Relaxed);
            }
            Ok(told.into_iter().map(|(key, choice)| (key, Told::Choice(choice))).collect())
        })
    }
}

/// An unanswered prompt. Dropping it starts a new line.
struct OpenLine;

impl Drop for OpenLine {
    fn drop(&mut self) {
        say(&mut std::io::stderr(), "\n");
    }
}

/// Input and output of the questions.
struct Terminal<I, O> {
    input: I,
    out: O,
}

impl<I: BufRead, O: Write> Terminal<I, O> {
    fn put(&mut self, question: &Question) -> Choice {
        match question {
            // The message contains the question already.
            Question::Form { message, .. } if question.is_for_consent() => {
                let between = if message.ends_with('?') { " " } else { "\n" };
                self.agree(&format!("{message}{between}"), Map::new())
            }
            Question::Form { message, schema } => self.fill_in(message, schema),
            Question::Visit { message, url, .. } => {
                self.agree(&format!("{message}\n  {url}\nHave you been there? "), Map::new())
            }
            // The asker does not offer these capabilities.
            Question::Sample(_) | Question::Roots => Choice::Declined,
        }
    }

    fn fill_in(&mut self, message: &str, schema: &Value) -> Choice {
        say(&mut self.out, &format!("{message}\n"));
        let mut content = Map::new();
        let fields = schema.get("properties").and_then(Value::as_object);
        for (name, field) in fields.into_iter().flatten() {
            let about = field.get("description").or_else(|| field.get("title"));
            let about = about.and_then(Value::as_str).map(|about| format!(" ({about})"));
            let about = about.unwrap_or_default();
            let choices = field.get("enum").map(|all| format!(" one of {all}")).unwrap_or_default();
            let Some(line) = self.read(&format!("  {name}{about}{choices}: ")) else {
                return Choice::Canceled;
            };
            if let Some(value) = meant(field, line.trim()) {
                content.insert(name.clone(), value);
            }
        }
        if content.is_empty() { self.agree("Do it? ", content) } else { Choice::Accepted(content) }
    }

    fn agree(&mut self, question: &str, content: Map<String, Value>) -> Choice {
        match self.read(&format!("{question}[y/N] ")).map(|line| is_yes(line.trim())) {
            Some(true) => Choice::Accepted(content),
            Some(false) => Choice::Declined,
            None => Choice::Canceled,
        }
    }

    /// Reads a line from the terminal, or returns `None` at the end of the input.
    fn read(&mut self, prompt: &str) -> Option<String> {
        say(&mut self.out, prompt);
        let mut line = String::new();
        let read = self.input.read_line(&mut line);
        // The end of the input leaves the cursor on the prompt's line.
        if !line.ends_with('\n') {
            say(&mut self.out, "\n");
        }
        match read {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line),
        }
    }
}

/// Parses a line as the value of `field`. An empty line means the default.
fn meant(field: &Value, line: &str) -> Option<Value> {
    if line.is_empty() {
        return field.get("default").cloned();
    }
    Some(match field.get("type").and_then(Value::as_str) {
        Some("boolean") => Value::Bool(is_yes(line)),
        Some("integer" | "number" | "array") => {
            serde_json::from_str(line).unwrap_or_else(|_| line.into())
        }
        Some(_) | None => line.into(),
    })
}

fn is_yes(line: &str) -> bool {
    matches!(line.to_ascii_lowercase().as_str(), "y" | "yes" | "true")
}

fn say(out: &mut impl Write, text: &str) {
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is seen when `typed` answers `question`, and what that means.
    fn put(question: &Question, typed: &str) -> (String, Choice) {
        let mut terminal = Terminal { input: typed.as_bytes(), out: Vec::new() };
        let choice = terminal.put(question);
        (String::from_utf8(terminal.out).expect("text"), choice)
    }

    fn consent(message: &str) -> Question {
        let schema = json!({ "type": "object", "properties": {} });
        Question::Form { message: message.to_owned(), schema }
    }

    #[test]
    fn a_consent_is_asked_for_once() {
        let (seen, _) = put(&consent("Write file: {}\nShould it be done?"), "n\n");
        assert_eq!(seen, "Write file: {}\nShould it be done? [y/N] ");
        let (seen, _) = put(&consent("Run this?\n\"rm\""), "n\n");
        assert_eq!(seen, "Run this?\n\"rm\"\n[y/N] ");
    }

    #[test]
    fn a_yes_is_one_however_it_is_written_and_nothing_else_is() {
        for yes in ["y\n", "Y\n", "yes\n", "YES\n", " Yes \r\n", "y"] {
            assert_eq!(put(&consent("?"), yes).1, Choice::Accepted(Map::new()), "{yes:?}");
        }
        for no in ["\n", "n\n", "yess\n", "ja\n"] {
            assert_eq!(put(&consent("?"), no).1, Choice::Declined, "{no:?}");
        }
    }

    #[test]
    fn who_ends_the_input_chooses_nothing_and_leaves_no_line_open() {
        let ended = ("Should it? [y/N] \n".to_owned(), Choice::Canceled);
        assert_eq!(put(&consent("Should it?"), ""), ended);
    }

    #[test]
    fn a_form_is_filled_in_field_by_field() {
        let sugar = json!({ "type": "integer", "description": "Lumps", "default": 1 });
        let milk = json!({ "type": "boolean" });
        let schema = json!({ "type": "object", "properties": { "milk": milk, "sugar": sugar } });
        let form = Question::Form { message: "Tea?".to_owned(), schema };
        let (seen, choice) = put(&form, "YES\n\n");
        assert_eq!(seen, "Tea?\n  milk:   sugar (Lumps): ");
        let Choice::Accepted(content) = choice else { panic!("{choice:?}") };
        assert_eq!(Value::Object(content), json!({ "milk": true, "sugar": 1 }));
    }
}
