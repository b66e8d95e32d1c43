//! Handles questions of a running job to its caller, who sees and answers them later.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use toolgate_contract::{
    BoxFuture, ClientAnswers, ClientQuestion, ClientQuestions, JobEventKind, QuestionSender,
    ToolError,
};

use super::live::LiveJob;
use super::pump::EventPump;

/// Open questions of a job, and the answers so far.
#[derive(Default)]
pub(super) struct JobQuestions {
    open: ClientQuestions,
    /// All answers so far, also from earlier runs.
    answers: ClientAnswers,
    /// Names already used by questions. Names are never reused, because an old answer would seem to
    /// fit.
    used_names: BTreeSet<String>,
}

impl JobQuestions {
    /// Opens `question` under `key` or a numbered variant, unless it was answered before. Returns
    /// its name.
    fn open_question(&mut self, key: &str, question: ClientQuestion) -> String {
        let mut name = key.to_owned();
        for turn in 2_u64.. {
            match self.answers.get(&name) {
                Some(told) if question.is_answered_by(told) => break,
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

impl LiveJob {
    /// Returns the open questions.
    pub(super) fn open_questions(&self) -> ClientQuestions {
        self.questions.borrow().open.clone()
    }

    /// Waits until questions are open, and returns them.
    pub(super) async fn wait_for_questions(&self) -> ClientQuestions {
        let mut heard = self.questions.subscribe();
        match heard.wait_for(|asking| !asking.open.is_empty()).await {
            Ok(asking) => asking.open.clone(),
            // Unreachable: the sender lives in `self`.
            Err(_) => ClientQuestions::new(),
        }
    }

    /// Adds answers that were given before the job began.
    pub(super) fn add_answers(&self, given: &ClientAnswers) {
        self.questions.send_modify(|asking| {
            for (key, told) in given {
                asking.answers.entry(key.clone()).or_insert_with(|| told.clone());
            }
        });
    }

    /// Returns those of `given` that answer an open question.
    pub(super) fn matching_answers(&self, mut given: ClientAnswers) -> ClientAnswers {
        let asking = self.questions.borrow();
        given.retain(|key, told| {
            asking.open.get(key).is_some_and(|question| question.is_answered_by(told))
        });
        given
    }

    /// Accepts answers to open questions. Answers that fit no open question are ignored.
    pub(super) fn answer_questions(&self, given: ClientAnswers) {
        self.questions.send_if_modified(|asking| {
            let mut any = false;
            for (key, told) in given {
                let asked = asking.open.get(&key);
                if asked.is_some_and(|question| question.is_answered_by(&told)) {
                    asking.open.remove(&key);
                    asking.answers.insert(key, told);
                    any = true;
                }
            }
            any
        });
    }
}

/// Asker for a running job.
pub(super) struct JobAsker {
    pub(super) live: Arc<LiveJob>,
    pub(super) pump: Arc<EventPump>,
}

impl QuestionSender for JobAsker {
    fn ask(&self, questions: ClientQuestions) -> BoxFuture<'_, Result<ClientAnswers, ToolError>> {
        Box::pin(async move {
            let asking = &self.live.questions;
            let mut heard: watch::Receiver<JobQuestions> = asking.subscribe();
            let mut names = Vec::with_capacity(questions.len());
            asking.send_modify(|asking| {
                for (key, question) in questions {
                    let name = asking.open_question(&key, question);
                    names.push((key, name));
                }
            });
            let waiting = PendingQuestions { asks: self, names };
            let mut open = 0;
            loop {
                let left = waiting.unanswered(&heard.borrow_and_update());
                if left != open {
                    open = left;
                    self.report_open();
                }
                if left == 0 {
                    let told = waiting.answers(&heard.borrow());
                    return Ok(told);
                }
                tokio::select! {
                    changed = heard.changed() => if changed.is_err() {
                        // Unreachable: the sender lives in `live`.
                        return Err(ToolError::canceled());
                    },
                    () = self.live.cancel.cancelled() => return Err(ToolError::canceled()),
                }
            }
        })
    }
}

impl JobAsker {
    fn report_open(&self) {
        let open = self.live.questions.borrow().open.len();
        self.pump.push(JobEventKind::Asks { open });
    }
}

/// Questions that a job waits for, by key and name. Dropping it closes them.
struct PendingQuestions<'a> {
    asks: &'a JobAsker,
    names: Vec<(String, String)>,
}

impl PendingQuestions<'_> {
    /// Returns the number of unanswered questions.
    fn unanswered(&self, asking: &JobQuestions) -> usize {
        self.names.iter().filter(|(_, name)| !asking.answers.contains_key(name)).count()
    }

    /// Returns the answers by key.
    fn answers(&self, asking: &JobQuestions) -> ClientAnswers {
        let told = self.names.iter().filter_map(|(key, name)| {
            let told = asking.answers.get(name)?;
            Some((key.clone(), told.clone()))
        });
        told.collect()
    }
}

impl Drop for PendingQuestions<'_> {
    fn drop(&mut self) {
        let closed = self.asks.live.questions.send_if_modified(|asking| {
            let before = asking.open.len();
            for (_, name) in &self.names {
                asking.open.remove(name);
            }
            asking.open.len() < before
        });
        if closed {
            self.asks.report_open();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;
    use toolgate_contract::{ClientAnswer, JobId, PersonChoice, StartedWork};

    use super::*;

    fn asks() -> JobAsker {
        let live =
            LiveJob::new(JobId::from_bits(7), CancellationToken::new(), 0, StartedWork::default());
        JobAsker { live, pump: EventPump::new(0) }
    }

    /// One question, called `go`, that is answered by text called `field`.
    fn go(field: &str) -> ClientQuestions {
        let schema = json!({ "type": "object", "required": [field] });
        let message = "Go on?".to_owned();
        ClientQuestions::from([("go".to_owned(), ClientQuestion::Form { message, schema })])
    }

    fn given(name: &str, field: &str) -> ClientAnswers {
        let content = json!({ field: "x" }).as_object().expect("an object").clone();
        ClientAnswers::from([(
            name.to_owned(),
            ClientAnswer::Choice(PersonChoice::Accepted(content)),
        )])
    }

    fn open(asks: &JobAsker) -> Vec<String> {
        asks.live.open_questions().into_keys().collect()
    }

    #[test]
    fn a_question_that_nobody_waits_for_is_closed_and_its_name_is_not_used_again() {
        let asks = asks();
        let mut waiting = asks.ask(go("a"));
        assert!((&mut waiting).now_or_never().is_none());
        assert_eq!(open(&asks), ["go"]);
        drop(waiting);
        assert!(open(&asks).is_empty());
        assert!(asks.live.matching_answers(given("go", "a")).is_empty());
        let mut again = asks.ask(go("a"));
        assert!((&mut again).now_or_never().is_none());
        assert_eq!(open(&asks), ["go-2"]);
        drop(again);
        let counts: Vec<_> = asks.pump.take_rest().0.into_iter().map(|(_, what)| what).collect();
        assert_eq!(counts, [1, 0, 1, 0].map(|open| JobEventKind::Asks { open }));
    }

    #[test]
    fn another_question_of_a_name_that_was_answered_is_asked_by_another() {
        let asks = asks();
        asks.live.add_answers(&given("go", "a"));
        let told = asks.ask(go("a")).now_or_never().expect("it was answered before");
        assert_eq!(told.expect("an answer"), given("go", "a"));
        let mut other = asks.ask(go("b"));
        assert!((&mut other).now_or_never().is_none());
        assert_eq!(open(&asks), ["go-2"]);
        asks.live.answer_questions(given("go-2", "b"));
        let told = other.now_or_never().expect("it is answered");
        assert_eq!(told.expect("an answer"), given("go", "b"));
    }

    #[test]
    fn whoever_waits_when_the_job_is_cancelled_is_told_so() {
        let asks = asks();
        let mut waiting = asks.ask(go("a"));
        assert!((&mut waiting).now_or_never().is_none());
        asks.live.cancel_for_good();
        let told = waiting.now_or_never().expect("it ends");
        assert_eq!(
            told.expect_err("it is cancelled").fault,
            toolgate_contract::ToolFault::Canceled
        );
    }
}
