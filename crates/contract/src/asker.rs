//! Questions to the caller of a running call, such as forms and confirmations.

use std::sync::{Arc, Mutex};

use crate::sync::lock_mutex;
use crate::{
    ClientAnswers, ClientQuestion, ClientQuestions, QuestionSupport, ToolError, ToolErrorKind,
    ToolFuture,
};

/// A channel for questions to the caller of a running call, with the answers so far.
#[derive(Clone, Default)]
pub struct QuestionAsker {
    supported: QuestionSupport,
    memory: Arc<Mutex<QuestionAskerState>>,
    /// True if the caller sent the answers before any question was asked. Consents among such
    /// answers do not count.
    answers_unasked: bool,
    /// True if the caller answers questions by making the call again.
    repeats_calls: bool,
    /// Function that marks the request state which came with the answers as used. Set only if a
    /// consent is valid only once.
    redeem: Option<ConsumeRequestStateFn>,
    mode: QuestionDeliveryMode,
}

/// The answers and the note of a call, which all copies of its asker share.
#[derive(Default)]
struct QuestionAskerState {
    /// The caller's answers so far.
    answers: ClientAnswers,
    /// A note that the tool stores for its next run, which will have the answers.
    note: Option<String>,
}

/// Function that marks a request state as used. Returns false if the state was used before, and an
/// error if the function cannot find that out.
pub type ConsumeRequestStateFn = Arc<dyn Fn() -> ToolFuture<'static, bool> + Send + Sync>;

/// The mode in which a tool's questions reach the caller.
#[derive(Clone, Default)]
enum QuestionDeliveryMode {
    /// The caller cannot be asked questions.
    #[default]
    Nobody,
    /// The call ends with its questions, and the caller makes the call again with the answers.
    OnRepeat,
    /// The caller answers questions while the call runs. The sender delivers them.
    DuringCall(Arc<dyn QuestionSender>),
}

/// A sender of questions to the caller of a running call.
pub trait QuestionSender: Send + Sync + 'static {
    /// Sends all of `questions` to the caller and waits for all answers.
    fn ask(&self, questions: ClientQuestions) -> ToolFuture<'_, ClientAnswers>;
}

impl QuestionAsker {
    /// Creates a question asker for a caller that cannot be asked questions.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates a question asker for a caller that makes the call again with the answers. `given`
    /// are the answers so far.
    pub fn on_repeat(supported: QuestionSupport, given: ClientAnswers) -> Self {
        let memory = QuestionAskerState { answers: given, note: None };
        Self {
            supported,
            memory: Arc::new(Mutex::new(memory)),
            repeats_calls: true,
            mode: QuestionDeliveryMode::OnRepeat,
            ..Self::default()
        }
    }

    /// Returns the asker with `note`, which the tool stored in its previous run.
    pub fn with_note(self, note: Option<String>) -> Self {
        self.set_note(note);
        self
    }

    /// Returns the asker, changed so that each consent is valid only once. `spend` marks the
    /// request state as used.
    pub fn with_single_use(self, spend: ConsumeRequestStateFn) -> Self {
        Self { redeem: Some(spend), ..self }
    }

    /// Returns the asker with its answers marked as sent before any question. Such answers never
    /// count as consent, because the person has not seen the question.
    pub fn with_unsolicited_answers(self) -> Self {
        Self { answers_unasked: true, ..self }
    }

    /// Creates a question asker for a caller that answers questions while the call runs.
    pub fn during_call(supported: QuestionSupport, ask: Arc<dyn QuestionSender>) -> Self {
        Self { supported, mode: QuestionDeliveryMode::DuringCall(ask), ..Self::default() }
    }

    /// Returns a copy of the question asker that sends its questions through `ask`. The copy keeps
    /// the answers so far.
    pub fn with_sender(&self, ask: Arc<dyn QuestionSender>) -> Self {
        Self { mode: QuestionDeliveryMode::DuringCall(ask), repeats_calls: false, ..self.clone() }
    }

    /// Returns a copy of the asker whose questions pass through `ask`, which forwards them to this
    /// asker.
    pub fn with_proxy(&self, ask: Arc<dyn QuestionSender>) -> Self {
        Self { mode: QuestionDeliveryMode::DuringCall(ask), ..self.clone() }
    }

    /// Returns true if a question ends the call, and the caller answers it by calling again.
    pub fn repeats_calls(&self) -> bool {
        self.repeats_calls
    }

    /// Returns the note that the tool stored when it asked its last questions, if any.
    pub fn stored_note(&self) -> Option<String> {
        lock_mutex(&self.memory).note.clone()
    }

    /// Stores `note` for the next run of the tool, which will have the answers to the tool's next
    /// questions.
    pub fn set_note(&self, note: Option<String>) {
        lock_mutex(&self.memory).note = note;
    }

    /// Removes the answers to the questions with these `keys`, so that they can be asked again.
    pub fn remove_answers<'k>(&self, keys: impl IntoIterator<Item = &'k String>) {
        let given = &mut lock_mutex(&self.memory).answers;
        keys.into_iter().for_each(|key| drop(given.remove(key)));
    }

    /// Returns the kinds of question that the caller supports.
    pub fn supported(&self) -> QuestionSupport {
        match self.mode {
            QuestionDeliveryMode::Nobody => QuestionSupport::default(),
            QuestionDeliveryMode::OnRepeat | QuestionDeliveryMode::DuringCall(_) => self.supported,
        }
    }

    /// Returns the caller's answers so far.
    pub fn answers(&self) -> ClientAnswers {
        lock_mutex(&self.memory).answers.clone()
    }

    /// Returns the answers to `questions`. Questions without an answer are asked first.
    ///
    /// # Errors
    /// - [`ToolErrorKind::Refused`] if a consent was redeemed before
    /// - [`ToolErrorKind::Unavailable`] if it cannot be known whether a consent was redeemed before
    /// - [`ToolErrorKind::CannotAsk`] if the caller does not support one of the questions
    /// - [`ToolErrorKind::Asks`] if the caller must call again with the answers; pass it on with
    ///   `?`
    /// - [`ToolErrorKind::Failed`] if an answer does not fit its question
    pub async fn ask(&self, questions: ClientQuestions) -> Result<ClientAnswers, ToolError> {
        if self.answers_unasked {
            let given = &mut lock_mutex(&self.memory).answers;
            given.retain(|key, _| !questions.get(key).is_some_and(ClientQuestion::is_for_consent));
        }
        let is_consent =
            |key: &String| questions.get(key).is_some_and(ClientQuestion::is_for_consent);
        let mut given = self.answers();
        let consents = given.keys().any(is_consent);
        given.retain(|key, answer| {
            questions.get(key).is_some_and(|question| question.is_answered_by(answer))
        });
        let open: ClientQuestions =
            questions.into_iter().filter(|(key, _)| !given.contains_key(key)).collect();
        if open.is_empty() {
            if consents
                && let Some(redeem) = &self.redeem
                && !redeem().await?
            {
                let why = "`requestState` was already used, and an approved action runs only once; \
                           repeat the request without `requestState`";
                return Err(ToolError::refused(-32602, why));
            }
            return Ok(given);
        }
        if let Some(question) =
            open.values().find(|question| !self.supported().supports(question.kind()))
        {
            return Err(ToolError::cannot_ask(question.kind()));
        }
        let answers = match &self.mode {
            QuestionDeliveryMode::Nobody | QuestionDeliveryMode::OnRepeat => {
                return Err(ToolError::new(
                    ToolErrorKind::Asks(open),
                    "the tool asks the client a question; answer the question and call the tool \
                     again",
                ));
            }
            QuestionDeliveryMode::DuringCall(ask) => ask.ask(open.clone()).await?,
        };
        // Answers to questions that were not asked are dropped.
        let answers: ClientAnswers =
            answers.into_iter().filter(|(key, _)| open.contains_key(key)).collect();
        for (key, question) in &open {
            match answers.get(key) {
                Some(answers) if question.is_answered_by(answers) => {}
                Some(_) | None => {
                    let why = format!("the answer to `{key}` does not match its question");
                    return Err(ToolError::new(ToolErrorKind::Failed, why));
                }
            }
        }
        lock_mutex(&self.memory).answers.extend(answers.clone());
        given.extend(answers);
        Ok(given)
    }
}
