//! Questions to a connected client that wait for its answer while calls run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    AskNow, BoxFuture, Fault, Given, Question, Questions as Wanted, Told, ToolError,
};
use toolgate_dialects::{Heard, Ticket};

use crate::session::{Out, locked};

/// Open questions to one client.
pub(crate) struct Questions {
    /// Unanswered questions by id. `None` once no answer can arrive any more.
    open: Mutex<Option<HashMap<String, Open>>>,
    serial: AtomicU64,
}

/// Unanswered question.
struct Open {
    question: Question,
    ticket: Arc<dyn Ticket>,
    answer: oneshot::Sender<Result<Told, String>>,
}

impl Questions {
    /// Creates an empty set of questions.
    pub(crate) fn new() -> Self {
        Self { open: Mutex::new(Some(HashMap::new())), serial: AtomicU64::new(0) }
    }

    /// Passes the client's response to the question `id`. Unknown ids are ignored.
    pub(crate) fn told(&self, id: &str, heard: &Heard) {
        if let Some(Open { question, ticket, answer }) = self.taken(id) {
            // The call may have ended, and then nobody receives it.
            let _ = answer.send(ticket.told(&question, heard));
        }
    }

    /// Fails all open questions, and every later one.
    pub(crate) fn end(&self) {
        locked(&self.open).take();
    }

    /// Stores `question` until it is answered. Returns false if no answer can arrive any more.
    fn put(&self, id: String, question: Open) -> bool {
        match &mut *locked(&self.open) {
            Some(open) => {
                open.insert(id, question);
                true
            }
            None => false,
        }
    }

    fn taken(&self, id: &str) -> Option<Open> {
        locked(&self.open).as_mut()?.remove(id)
    }
}

/// Asks the client of a running call.
pub(crate) struct SessionAsks {
    pub(crate) questions: Arc<Questions>,
    pub(crate) ticket: Arc<dyn Ticket>,
    pub(crate) out: Out,
    /// Cancelled when the call is cancelled.
    pub(crate) cancel: CancellationToken,
    /// Cancelled when shutdown starts and no more answers are read.
    pub(crate) closing: CancellationToken,
}

impl AskNow for SessionAsks {
    fn ask(&self, wanted: Wanted) -> BoxFuture<'_, Result<Given, ToolError>> {
        Box::pin(async move {
            let given = match self.out.step_aside() {
                Ok(_aside) => tokio::select! {
                    given = self.answers(wanted) => given,
                    () = self.cancel.cancelled() => Err(ToolError::new(Fault::Canceled, "cancelled")),
                    () = self.closing.cancelled() => Err(nobody_answers()),
                },
                Err(too_many) => Err(too_many),
            };
            // After a failure the call ends, so it need not wait for its permit.
            if given.is_ok() {
                self.out.step_back().await;
            }
            given
        })
    }
}

impl SessionAsks {
    /// Sends all questions of `wanted` and waits for every answer.
    async fn answers(&self, wanted: Wanted) -> Result<Given, ToolError> {
        let mut asked = Vec::with_capacity(wanted.len());
        for (key, question) in wanted {
            let waiting = self.put(&key, question).await?;
            asked.push((key, waiting));
        }
        let mut given = Given::new();
        for (key, mut waiting) in asked {
            let answer = (&mut waiting.answer).await;
            let told = answer.map_err(|_| nobody_answers())?;
            given.insert(key, told.map_err(ToolError::failed)?);
        }
        Ok(given)
    }

    /// Sends the question that the call knows as `key`.
    async fn put(&self, key: &str, question: Question) -> Result<Waiting, ToolError> {
        let id = format!("toolgate-{}", self.questions.serial.fetch_add(1, Ordering::Relaxed));
        let message = self.ticket.question(&id, key, &question);
        let message = message.ok_or_else(|| ToolError::cannot_ask(question.kind()))?;
        let (answer, waits) = oneshot::channel();
        let open = Open { question, ticket: self.ticket.clone(), answer };
        let questions = self.questions.clone();
        let out = self.out.clone();
        let waiting = Waiting { questions, id: id.clone(), out, answer: waits };
        if self.questions.put(id, open) && self.out.insist(message).await {
            Ok(waiting)
        } else {
            Err(nobody_answers())
        }
    }
}

/// Question that waits for its answer. Dropping it withdraws the question at the client.
struct Waiting {
    questions: Arc<Questions>,
    id: String,
    out: Out,
    answer: oneshot::Receiver<Result<Told, String>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let unanswered = self.questions.taken(&self.id);
        if let Some(message) = unanswered.and_then(|open| open.ticket.unasked(&self.id)) {
            self.out.say(message);
        }
    }
}

fn nobody_answers() -> ToolError {
    ToolError::failed("no answer came: the client has left, or the server is stopping")
}
