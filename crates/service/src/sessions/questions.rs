//! Questions to a connected client that wait for the client's answer while calls run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    ClientAnswer, ClientAnswers, ClientQuestion, ClientQuestions, ElicitationAnswer,
    QuestionSender, ToolError, ToolErrorKind, ToolFuture, lock_mutex,
};
use toolgate_dialects::{AnswerEncoder, ClientQuestionResponse};

use crate::sessions::session::CallEventDestination;
use crate::sessions::waiting_questions::{
    InteractiveCallDescription, WaitingQuestionEntry, WaitingQuestions,
};

/// Open questions of running calls to one client.
pub(crate) struct SessionQuestions {
    /// Unanswered questions to the client, by id. `None` once no more answers can arrive.
    open: Mutex<Option<HashMap<String, UnansweredQuestion>>>,
    serial: AtomicU64,
}

/// Question to a client that the client has not answered yet.
struct UnansweredQuestion {
    question: ClientQuestion,
    encoder: Arc<dyn AnswerEncoder>,
    answer: oneshot::Sender<Result<ClientAnswer, String>>,
}

impl SessionQuestions {
    /// Creates an empty set of questions to a client.
    pub(crate) fn new() -> Self {
        Self { open: Mutex::new(Some(HashMap::new())), serial: AtomicU64::new(0) }
    }

    /// Passes the client's response to the question `id` to the call that asked. Ignores unknown
    /// ids.
    pub(crate) fn receive_answer(&self, id: &str, response: &ClientQuestionResponse) {
        if let Some(UnansweredQuestion { question, encoder, answer }) = self.remove(id) {
            // The call may have ended, and then nobody receives it.
            let _ = answer.send(encoder.parse_answer(&question, response));
        }
    }

    /// Answers the question `id` with `choice`, which a person has made at the console, and
    /// withdraws the question from the client. Returns false if the question is no longer open.
    fn receive_choice(
        &self,
        id: &str,
        choice: ElicitationAnswer,
        out: &CallEventDestination,
    ) -> bool {
        let Some(UnansweredQuestion { encoder, answer, .. }) = self.remove(id) else {
            return false;
        };
        if let Some(message) = encoder.encode_withdrawal(id) {
            out.try_send(message);
        }
        answer.send(Ok(ClientAnswer::Choice(choice))).is_ok()
    }

    /// Returns true if the question `id` waits for an answer.
    pub(crate) fn contains(&self, id: &str) -> bool {
        lock_mutex(&self.open).as_ref().is_some_and(|open| open.contains_key(id))
    }

    /// Returns true if a question waits for an answer.
    pub(crate) fn has_open(&self) -> bool {
        lock_mutex(&self.open).as_ref().is_some_and(|open| !open.is_empty())
    }

    /// Drops all open questions to the client, so that the asking calls fail. Later questions fail
    /// at once.
    pub(crate) fn close(&self) {
        lock_mutex(&self.open).take();
    }

    /// Stores `question` until the client answers it. Returns false if the client can no longer
    /// answer.
    fn insert(&self, id: String, question: UnansweredQuestion) -> bool {
        match &mut *lock_mutex(&self.open) {
            Some(open) => {
                open.insert(id, question);
                true
            }
            None => false,
        }
    }

    fn remove(&self, id: &str) -> Option<UnansweredQuestion> {
        lock_mutex(&self.open).as_mut()?.remove(id)
    }
}

/// Sender of a running call's questions to its client.
pub(crate) struct SessionQuestionSender {
    pub(crate) questions: Arc<SessionQuestions>,
    /// Start of the ids of questions. Different for each server of a fleet.
    pub(crate) id_prefix: Arc<str>,
    /// Questions of all sessions that wait for an answer, which the console shows.
    pub(crate) waiting: Arc<WaitingQuestions>,
    pub(crate) call: InteractiveCallDescription,
    pub(crate) encoder: Arc<dyn AnswerEncoder>,
    pub(crate) out: CallEventDestination,
    /// A token that is cancelled when the asking call is cancelled.
    pub(crate) cancel: CancellationToken,
    /// A token that is cancelled when shutdown starts and no more answers are read.
    pub(crate) closing: CancellationToken,
}

impl QuestionSender for SessionQuestionSender {
    fn ask(&self, questions: ClientQuestions) -> ToolFuture<'_, ClientAnswers> {
        Box::pin(async move {
            let answers = match self.out.release_permit() {
                Ok(_permit) => tokio::select! {
                    answers = self.ask_all(questions) => answers,
                    () = self.cancel.cancelled() => Err(ToolError::new(ToolErrorKind::Canceled, "cancelled")),
                    () = self.closing.cancelled() => Err(no_answer_error()),
                },
                Err(error) => Err(error),
            };
            // After another failure the call ends, so it need not wait for its permit. A call may
            // go on if its client cannot be asked.
            let may_continue = match &answers {
                Ok(_) => true,
                Err(err) => matches!(err.fault, ToolErrorKind::CannotAsk(_)),
            };
            if may_continue {
                self.out.reacquire_permit().await;
            }
            answers
        })
    }
}

impl SessionQuestionSender {
    /// Sends all `questions` to the client and waits for every answer. Fails if the client cannot
    /// be asked, or does not answer.
    async fn ask_all(&self, questions: ClientQuestions) -> Result<ClientAnswers, ToolError> {
        let mut pending = Vec::with_capacity(questions.len());
        for (key, question) in questions {
            let sent = self.send_question(&key, question).await?;
            pending.push((key, sent));
        }
        let mut answers = ClientAnswers::new();
        for (key, mut question) in pending {
            let answer = (&mut question.answer).await.map_err(|_| no_answer_error())?;
            answers.insert(key, answer.map_err(ToolError::failed)?);
        }
        Ok(answers)
    }

    /// Sends `question` to the client, and returns a guard with which the call waits for the
    /// answer. `key` identifies the question within the call. Fails if the client cannot be asked.
    async fn send_question(
        &self,
        key: &str,
        question: ClientQuestion,
    ) -> Result<PendingQuestionGuard, ToolError> {
        let serial = self.questions.serial.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{serial}", self.id_prefix);
        let message = self.encoder.encode_question(&id, key, &question);
        let message = message.ok_or_else(|| ToolError::cannot_ask(question.kind()))?;
        let (sender, answer) = oneshot::channel();
        let entry = self.show_question(&id, &question);
        let open = UnansweredQuestion { question, encoder: self.encoder.clone(), answer: sender };
        let questions = self.questions.clone();
        let out = self.out.clone();
        let pending =
            PendingQuestionGuard { questions, id: id.clone(), out, answer, _entry: entry };
        if self.questions.insert(id, open) && self.out.send(message).await {
            Ok(pending)
        } else {
            Err(no_answer_error())
        }
    }

    /// Adds `question`, which has the id `id` for the client, to the questions that the console
    /// shows.
    fn show_question(&self, id: &str, question: &ClientQuestion) -> WaitingQuestionEntry {
        let questions = self.questions.clone();
        let (id, out) = (id.to_owned(), self.out.clone());
        let answer = move |choice| questions.receive_choice(&id, choice, &out);
        self.waiting.add(self.call.clone(), question.clone(), Arc::new(answer))
    }
}

/// A question that waits for the client's answer. Dropping this value withdraws the question from
/// the client.
struct PendingQuestionGuard {
    questions: Arc<SessionQuestions>,
    id: String,
    out: CallEventDestination,
    answer: oneshot::Receiver<Result<ClientAnswer, String>>,
    /// Entry of the question in the list that the console shows.
    _entry: WaitingQuestionEntry,
}

impl Drop for PendingQuestionGuard {
    fn drop(&mut self) {
        let unanswered = self.questions.remove(&self.id);
        if let Some(message) = unanswered.and_then(|open| open.encoder.encode_withdrawal(&self.id))
        {
            self.out.try_send(message);
        }
    }
}

fn no_answer_error() -> ToolError {
    ToolError::failed("no answer: the client has disconnected, or the server is stopping")
}
