//! Handles questions of a running job to its caller, who may see and answer them later.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use toolgate_contract::{
    ClientAnswers, ClientQuestion, ClientQuestions, JobEventKind, QuestionSender, ToolError,
    ToolFuture,
};

use super::live::UnfinishedJob;
use super::pump::JobEventForwarder;

/// Open questions of a job, and the answers so far.
#[derive(Default)]
pub(super) struct JobQuestions {
    open: ClientQuestions,
    /// All answers to the job's questions so far, including those from earlier runs.
    answers: ClientAnswers,
    /// Names that questions have already used. A name is never reused, because an old answer could
    /// seem to fit the new question.
    used_names: BTreeSet<String>,
}

impl JobQuestions {
    /// Opens `question` under the name `key` or a numbered variant of `key`, unless the question
    /// was answered before. Returns the name.
    fn open_question(&mut self, key: &str, question: ClientQuestion) -> String {
        let mut name = key.to_owned();
        for turn in 2_u64.. {
            match self.answers.get(&name) {
                Some(answer) if question.is_answered_by(answer) => break,
                None if self.used_names.insert(name.clone()) => {
                    self.open.insert(name.clone(), question);
                    break;
                }
                Some(_) | None => name = format!("{key}-{turn}"),
            }
        }
        name
    }
}

impl UnfinishedJob {
    /// Returns the open questions of the job.
    pub(super) fn open_questions(&self) -> ClientQuestions {
        self.questions.borrow().open.clone()
    }

    /// Waits until questions of the job are open, and returns them.
    pub(super) async fn wait_for_questions(&self) -> ClientQuestions {
        let mut receiver = self.questions.subscribe();
        match receiver.wait_for(|state| !state.open.is_empty()).await {
            Ok(state) => state.open.clone(),
            // Unreachable: the sender lives in `self`.
            Err(_) => ClientQuestions::new(),
        }
    }

    /// Adds answers to the job's questions that were given before the job began.
    pub(super) fn add_answers(&self, given: &ClientAnswers) {
        self.questions.send_modify(|state| {
            for (key, answer) in given {
                state.answers.entry(key.clone()).or_insert_with(|| answer.clone());
            }
        });
    }

    /// Returns the answers in `given` that belong to an open question of the job.
    pub(super) fn matching_answers(&self, mut given: ClientAnswers) -> ClientAnswers {
        let state = self.questions.borrow();
        given.retain(|key, answer| {
            state.open.get(key).is_some_and(|question| question.is_answered_by(answer))
        });
        given
    }

    /// Accepts answers to open questions of the job. Ignores other answers.
    pub(super) fn answer_questions(&self, given: ClientAnswers) {
        self.questions.send_if_modified(|state| {
            let mut any = false;
            for (key, answer) in given {
                let open_question = state.open.get(&key);
                if open_question.is_some_and(|question| question.is_answered_by(&answer)) {
                    state.open.remove(&key);
                    state.answers.insert(key, answer);
                    any = true;
                }
            }
            any
        });
    }
}

/// Sender of a running job's questions to the caller.
pub(super) struct JobQuestionSender {
    pub(super) live: Arc<UnfinishedJob>,
    pub(super) pump: Arc<JobEventForwarder>,
}

impl QuestionSender for JobQuestionSender {
    fn ask(&self, questions: ClientQuestions) -> ToolFuture<'_, ClientAnswers> {
        Box::pin(async move {
            let state = &self.live.questions;
            let mut receiver: watch::Receiver<JobQuestions> = state.subscribe();
            let mut names = Vec::with_capacity(questions.len());
            state.send_modify(|state| {
                for (key, question) in questions {
                    let name = state.open_question(&key, question);
                    names.push((key, name));
                }
            });
            let waiting = PendingJobQuestions { asker: self, names };
            let mut open = 0;
            loop {
                let open_now = waiting.unanswered(&receiver.borrow_and_update());
                if open_now != open {
                    open = open_now;
                    self.report_open();
                }
                if open_now == 0 {
                    let answers = waiting.answers(&receiver.borrow());
                    return Ok(answers);
                }
                tokio::select! {
                    changed = receiver.changed() => if changed.is_err() {
                        // Unreachable: the sender lives in `live`.
                        return Err(ToolError::canceled());
                    },
                    () = self.live.cancel.cancelled() => return Err(ToolError::canceled()),
                }
            }
        })
    }
}

impl JobQuestionSender {
    fn report_open(&self) {
        let open = self.live.questions.borrow().open.len();
        self.pump.push(JobEventKind::Asks { open });
    }
}

/// Questions that a job has asked and whose answers it awaits, by key and name. Dropping this value
/// closes the questions.
struct PendingJobQuestions<'a> {
    asker: &'a JobQuestionSender,
    names: Vec<(String, String)>,
}

impl PendingJobQuestions<'_> {
    /// Returns the number of questions without an answer.
    fn unanswered(&self, state: &JobQuestions) -> usize {
        self.names.iter().filter(|(_, name)| !state.answers.contains_key(name)).count()
    }

    /// Returns the answers to these questions in `state`, by key.
    fn answers(&self, state: &JobQuestions) -> ClientAnswers {
        let answers = self.names.iter().filter_map(|(key, name)| {
            let answer = state.answers.get(name)?;
            Some((key.clone(), answer.clone()))
        });
        answers.collect()
    }
}

impl Drop for PendingJobQuestions<'_> {
    fn drop(&mut self) {
        let closed = self.asker.live.questions.send_if_modified(|state| {
            let before = state.open.len();
            for (_, name) in &self.names {
                state.open.remove(name);
            }
            state.open.len() < before
        });
        if closed {
            self.asker.report_open();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;
    use toolgate_contract::{ClientAnswer, ElicitationAnswer, JobId, PreparedCallValue};

    use super::*;

    fn asker() -> JobQuestionSender {
        let live = UnfinishedJob::new(
            JobId::from_bits(7),
            CancellationToken::new(),
            0,
            PreparedCallValue::default(),
        );
        JobQuestionSender { live, pump: JobEventForwarder::new(0) }
    }

    /// Returns a question with the key `go`, whose form has the text field `field`, for tests.
    fn go(field: &str) -> ClientQuestions {
        let schema = json!({ "type": "object", "required": [field] });
        let message = "Go on?".to_owned();
        ClientQuestions::from([("go".to_owned(), ClientQuestion::Form { message, schema })])
    }

    fn given(name: &str, field: &str) -> ClientAnswers {
        let content = json!({ field: "x" }).as_object().expect("an object").clone();
        ClientAnswers::from([(
            name.to_owned(),
            ClientAnswer::Choice(ElicitationAnswer::Accepted(content)),
        )])
    }

    fn open(asker: &JobQuestionSender) -> Vec<String> {
        asker.live.open_questions().into_keys().collect()
    }

    #[test]
    fn a_question_that_nobody_waits_for_is_closed_and_its_name_is_not_reused() {
        let asker = asker();
        let mut waiting = asker.ask(go("a"));
        assert!((&mut waiting).now_or_never().is_none());
        assert_eq!(open(&asker), ["go"]);
        drop(waiting);
        assert!(open(&asker).is_empty());
        assert!(asker.live.matching_answers(given("go", "a")).is_empty());
        let mut again = asker.ask(go("a"));
        assert!((&mut again).now_or_never().is_none());
        assert_eq!(open(&asker), ["go-2"]);
        drop(again);
        let counts: Vec<_> = asker.pump.take_rest().0.into_iter().map(|(_, what)| what).collect();
        assert_eq!(counts, [1, 0, 1, 0].map(|open| JobEventKind::Asks { open }));
    }

    #[test]
    fn a_different_question_with_an_answered_name_is_asked_under_a_new_name() {
        let asker = asker();
        asker.live.add_answers(&given("go", "a"));
        let answer = asker.ask(go("a")).now_or_never().expect("it was answered before");
        assert_eq!(answer.expect("an answer"), given("go", "a"));
        let mut other = asker.ask(go("b"));
        assert!((&mut other).now_or_never().is_none());
        assert_eq!(open(&asker), ["go-2"]);
        asker.live.answer_questions(given("go-2", "b"));
        let answer = other.now_or_never().expect("it is answered");
        assert_eq!(answer.expect("an answer"), given("go", "b"));
    }

    #[test]
    fn a_pending_question_fails_as_cancelled_when_the_job_is_cancelled() {
        let asker = asker();
        let mut waiting = asker.ask(go("a"));
        assert!((&mut waiting).now_or_never().is_none());
        asker.live.cancel_for_good();
        let answer = waiting.now_or_never().expect("it ends");
        assert_eq!(
            answer.expect_err("it is cancelled").fault,
            toolgate_contract::ToolErrorKind::Canceled
        );
    }
}
