//! Handles questions of a running job to its caller, who sees and answers them later.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use toolgate_contract::{AskNow, BoxFuture, Given, Happened, Question, Questions, ToolError};

use super::live::Live;
use super::pump::Pump;

/// Open questions of a job, and the answers so far.
#[derive(Default)]
pub(super) struct Asking {
    open: Questions,
    /// All answers so far, also from earlier runs.
    told: Given,
    /// Names already used by questions. Names are never reused, because an old answer would seem to
    /// fit.
    used: BTreeSet<String>,
}

impl Asking {
    /// Opens `question` under `key` or a numbered variant, unless it was answered before. Returns
    /// its name.
    fn open(&mut self, key: &str, question: Question) -> String {
        let mut name = key.to_owned();
        for turn in 2_u64.. {
            match self.told.get(&name) {
                Some(told) if question.is_answered_by(told) => break,
                None if self.used.insert(name.clone()) => {
                    self.open.insert(name.clone(), question);
                    break;
                }
                Some(_) | None => name = format!("{key}-{turn}"),
            }
        }
        name
    }
}

impl Live {
    /// Returns the open questions.
    pub(super) fn asks(&self) -> Questions {
        self.asking.borrow().open.clone()
    }

    /// Waits until questions are open, and returns them.
    pub(super) async fn asks_something(&self) -> Questions {
        let mut heard = self.asking.subscribe();
        match heard.wait_for(|asking| !asking.open.is_empty()).await {
            Ok(asking) => asking.open.clone(),
            // Unreachable: the sender lives in `self`.
            Err(_) => Questions::new(),
        }
    }

    /// Adds answers that were given before the job began.
    pub(super) fn remember(&self, given: &Given) {
        self.asking.send_modify(|asking| {
            for (key, told) in given {
                asking.told.entry(key.clone()).or_insert_with(|| told.clone());
            }
        });
    }

    /// Returns those of `given` that answer an open question.
    pub(super) fn fitting(&self, mut given: Given) -> Given {
        let asking = self.asking.borrow();
        given.retain(|key, told| {
            asking.open.get(key).is_some_and(|question| question.is_answered_by(told))
        });
        given
    }

    /// Accepts answers to open questions. Answers that fit no open question are ignored.
    pub(super) fn tell(&self, given: Given) {
        self.asking.send_if_modified(|asking| {
            let mut any = false;
            for (key, told) in given {
                let asked = asking.open.get(&key);
                if asked.is_some_and(|question| question.is_answered_by(&told)) {
                    asking.open.remove(&key);
                    asking.told.insert(key, told);
                    any = true;
                }
            }
            any
        });
    }
}

/// Asker for a running job.
pub(super) struct JobAsks {
    pub(super) live: Arc<Live>,
    pub(super) pump: Arc<Pump>,
}

impl AskNow for JobAsks {
    fn ask(&self, questions: Questions) -> BoxFuture<'_, Result<Given, ToolError>> {
        Box::pin(async move {
            let asking = &self.live.asking;
            let mut heard: watch::Receiver<Asking> = asking.subscribe();
            let mut names = Vec::with_capacity(questions.len());
            asking.send_modify(|asking| {
                for (key, question) in questions {
                    let name = asking.open(&key, question);
                    names.push((key, name));
                }
            });
            let waiting = Waiting { asks: self, names };
            let mut open = 0;
            loop {
                let left = waiting.left(&heard.borrow_and_update());
                if left != open {
                    open = left;
                    self.say();
                }
                if left == 0 {
                    let told = waiting.told(&heard.borrow());
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

impl JobAsks {
    fn say(&self) {
        let open = self.live.asking.borrow().open.len();
        self.pump.say(Happened::Asks { open });
    }
}

/// Questions that a job waits for, by key and name. Dropping it closes them.
struct Waiting<'a> {
    asks: &'a JobAsks,
    names: Vec<(String, String)>,
}

impl Waiting<'_> {
    /// Returns the number of unanswered questions.
    fn left(&self, asking: &Asking) -> usize {
        self.names.iter().filter(|(_, name)| !asking.told.contains_key(name)).count()
    }

    /// Returns the answers by key.
    fn told(&self, asking: &Asking) -> Given {
        let told = self.names.iter().filter_map(|(key, name)| {
            let told = asking.told.get(name)?;
            Some((key.clone(), told.clone()))
        });
        told.collect()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let closed = self.asks.live.asking.send_if_modified(|asking| {
            let before = asking.open.len();
            for (_, name) in &self.names {
                asking.open.remove(name);
            }
            asking.open.len() < before
        });
        if closed {
            self.asks.say();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;
    use toolgate_contract::{Ahead, Choice, JobId, Told};

    use super::*;

    fn asks() -> JobAsks {
        let live = Live::new(JobId::of(7), CancellationToken::new(), 0, Ahead::default());
        JobAsks { live, pump: Pump::new(0) }
    }

    /// One question, called `go`, that is answered by text called `field`.
    fn go(field: &str) -> Questions {
        let schema = json!({ "type": "object", "required": [field] });
        let message = "Go on?".to_owned();
        Questions::from([("go".to_owned(), Question::Form { message, schema })])
    }

    fn given(name: &str, field: &str) -> Given {
        let content = json!({ field: "x" }).as_object().expect("an object").clone();
        Given::from([(name.to_owned(), Told::Choice(Choice::Accepted(content)))])
    }

    fn open(asks: &JobAsks) -> Vec<String> {
        asks.live.asks().into_keys().collect()
    }

    #[test]
    fn a_question_that_nobody_waits_for_is_closed_and_its_name_is_not_used_again() {
        let asks = asks();
        let mut waiting = asks.ask(go("a"));
        assert!((&mut waiting).now_or_never().is_none());
        assert_eq!(open(&asks), ["go"]);
        drop(waiting);
        assert!(open(&asks).is_empty());
        assert!(asks.live.fitting(given("go", "a")).is_empty());
        let mut again = asks.ask(go("a"));
        assert!((&mut again).now_or_never().is_none());
        assert_eq!(open(&asks), ["go-2"]);
        drop(again);
        let counts: Vec<_> = asks.pump.rest().0.into_iter().map(|(_, what)| what).collect();
        assert_eq!(counts, [1, 0, 1, 0].map(|open| Happened::Asks { open }));
    }

    #[test]
    fn another_question_of_a_name_that_was_answered_is_asked_by_another() {
        let asks = asks();
        asks.live.remember(&given("go", "a"));
        let told = asks.ask(go("a")).now_or_never().expect("it was answered before");
        assert_eq!(told.expect("an answer"), given("go", "a"));
        let mut other = asks.ask(go("b"));
        assert!((&mut other).now_or_never().is_none());
        assert_eq!(open(&asks), ["go-2"]);
        asks.live.tell(given("go-2", "b"));
        let told = other.now_or_never().expect("it is answered");
        assert_eq!(told.expect("an answer"), given("go", "b"));
    }

    #[test]
    fn whoever_waits_when_the_job_is_cancelled_is_told_so() {
        let asks = asks();
        let mut waiting = asks.ask(go("a"));
        assert!((&mut waiting).now_or_never().is_none());
        asks.live.give_up();
        let told = waiting.now_or_never().expect("it ends");
        assert_eq!(told.expect_err("it is cancelled").fault, toolgate_contract::Fault::Canceled);
    }
}
