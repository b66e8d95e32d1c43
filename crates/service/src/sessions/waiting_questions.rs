//! Questions to connected clients that wait for an answer, and that the console shows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use toolgate_contract::{Caller, ClientQuestion, ElicitationAnswer, HostRequest, lock_mutex};
use toolgate_host::forwarded_tool;

/// Description of a call that may ask its client questions.
#[derive(Debug, Clone)]
pub(crate) struct InteractiveCallDescription {
    pub(crate) caller: Arc<str>,
    /// Name of the tool or prompt, or URI of the resource, that the call requests. For
    /// `tools.call`, the name of the tool that it calls.
    pub(crate) subject: String,
}

impl InteractiveCallDescription {
    /// Creates the description of the call `request` of `caller`.
    pub(crate) fn new(caller: &Caller, request: &HostRequest) -> Self {
        let subject = match request {
            HostRequest::CallTool { tool, input } | HostRequest::StartJob { tool, input, .. } => {
                forwarded_tool(tool, input).to_owned()
            }
            HostRequest::ReadResource { uri } => uri.clone(),
            HostRequest::GetPrompt { name, .. } => name.clone(),
            _ => String::new(),
        };
        Self { caller: caller.name.clone(), subject }
    }
}

/// Upper limit of the random number at which a server process starts to number its questions.
const FIRST_NUMBER_MAX: u32 = 1_000_000;

/// Question of a running call to its connected client.
#[derive(Debug, Clone)]
pub(crate) struct WaitingQuestion {
    /// Number of the question, unique within this server process. The first number is random.
    pub(crate) number: u64,
    pub(crate) call: InteractiveCallDescription,
    pub(crate) question: ClientQuestion,
    /// Time at which the question was sent to the client.
    pub(crate) since: Timestamp,
}

/// Function that passes a person's decision to the call that asked. Returns false if the question
/// was already answered.
type AnswerQuestionFn = Arc<dyn Fn(ElicitationAnswer) -> bool + Send + Sync>;

/// List of the questions of all sessions of a server that wait for an answer, oldest first.
pub(crate) struct WaitingQuestions {
    entries: Mutex<BTreeMap<u64, (WaitingQuestion, AnswerQuestionFn)>>,
    serial: AtomicU64,
}

impl Default for WaitingQuestions {
    /// Creates an empty list of questions. The first number is random, so that the number of a
    /// question at a different server, or before a restart, does not select the wrong question.
    fn default() -> Self {
        let mut bytes = [0; 4];
        let first = match getrandom::fill(&mut bytes) {
            Ok(()) => u32::from_ne_bytes(bytes) % FIRST_NUMBER_MAX,
            Err(_) => 0,
        };
        Self { entries: Mutex::default(), serial: AtomicU64::new(first.into()) }
    }
}

/// Entry in the list of questions that wait for an answer. Dropping this value removes the entry.
pub(crate) struct WaitingQuestionEntry {
    questions: Arc<WaitingQuestions>,
    number: u64,
}

impl Drop for WaitingQuestionEntry {
    fn drop(&mut self) {
        lock_mutex(&self.questions.entries).remove(&self.number);
    }
}

impl WaitingQuestions {
    /// Adds `question`, which `call` asks its client, to the list of questions that wait for an
    /// answer. The function `answer` receives the decision of a person at the console.
    pub(crate) fn add(
        self: &Arc<Self>,
        call: InteractiveCallDescription,
        question: ClientQuestion,
        answer: AnswerQuestionFn,
    ) -> WaitingQuestionEntry {
        let number = self.serial.fetch_add(1, Ordering::Relaxed);
        let waiting = WaitingQuestion { number, call, question, since: Timestamp::now() };
        lock_mutex(&self.entries).insert(number, (waiting, answer));
        WaitingQuestionEntry { questions: self.clone(), number }
    }

    /// Returns the oldest `count` waiting questions, and the number of all waiting questions.
    pub(crate) fn oldest(&self, count: usize) -> (Vec<WaitingQuestion>, usize) {
        let entries = lock_mutex(&self.entries);
        let oldest = entries.values().take(count).map(|(waiting, _)| waiting.clone());
        (oldest.collect(), entries.len())
    }

    /// Returns the question with the number `number`, or `None` if it no longer waits for an
    /// answer.
    pub(crate) fn find(&self, number: u64) -> Option<WaitingQuestion> {
        lock_mutex(&self.entries).get(&number).map(|(waiting, _)| waiting.clone())
    }

    /// Answers the question with the number `number` with `choice`. Returns false if the question
    /// no longer waits, or if only the client can answer it.
    pub(crate) fn answer(&self, number: u64, choice: ElicitationAnswer) -> bool {
        let answer = match lock_mutex(&self.entries).get(&number) {
            Some((waiting, answer)) if waiting.question.is_for_consent() => answer.clone(),
            Some(_) | None => return false,
        };
        answer(choice)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn the_numbers_of_each_server_process_begin_elsewhere() {
        let first = || WaitingQuestions::default().serial.into_inner();
        let all: std::collections::BTreeSet<u64> = (0..20).map(|_| first()).collect();
        assert!(all.len() > 1, "{all:?}");
    }

    #[test]
    fn only_a_confirmation_that_waits_is_answered() {
        let questions = Arc::<WaitingQuestions>::default();
        let call = || InteractiveCallDescription {
            caller: "ada".into(),
            subject: "files.write".to_owned(),
        };
        let form = |schema| ClientQuestion::Form { message: "Do it?".to_owned(), schema };
        let consent = questions.add(
            call(),
            form(json!({ "type": "object", "properties": {} })),
            Arc::new(|choice| choice == ElicitationAnswer::Declined),
        );
        let fields = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
        let filled = questions.add(call(), form(fields), Arc::new(|_| true));
        assert_eq!(questions.oldest(1).1, 2);
        assert!(questions.answer(consent.number, ElicitationAnswer::Declined));
        assert!(!questions.answer(filled.number, ElicitationAnswer::Accepted(Map::new())));
        let number = consent.number;
        drop(consent);
        assert!(questions.find(number).is_none());
        assert!(!questions.answer(number, ElicitationAnswer::Declined));
    }
}
