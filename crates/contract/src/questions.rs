//! Questions that a call asks its caller: a form, a page visit, a model's answer, or folders.
//!
//! There are two ways to ask a client. Some clients answer while the call runs. For the others, the
//! call ends with its questions, and the client calls again with the answers. The tool then runs
//! from its start. A tool must therefore ask before it changes anything, and use the same keys each
//! time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{BoxFuture, ContentBlock, MessageRole, PromptMessage, ToolError, ToolFault};

/// A question that a call asks its caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientQuestion {
    /// A form for a person to fill in. Never ask for secrets.
    Form {
        /// The text shown above the form.
        message: String,
        /// JSON Schema of a flat object of strings, numbers, booleans and choices.
        schema: Value,
    },
    /// A page for a person to visit. The client does not see the person's input there.
    Visit {
        /// The reason for the visit.
        message: String,
        /// The page's URL.
        url: String,
        /// The id of the visit.
        id: String,
    },
    /// A request for an answer by the client's model.
    Sample(Box<SamplingRequest>),
    /// A request for the folders that the client works in.
    Roots,
}

/// A request to the client's model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingRequest {
    /// The conversation so far.
    pub messages: Vec<SamplingMessage>,
    /// The system prompt.
    pub system: Option<String>,
    /// The highest number of tokens in the answer.
    pub max_tokens: u64,
    /// Further request fields, unchanged: `temperature`, `modelPreferences`, `tools`. `messages` is
    /// here if it carries more than `messages` above can.
    #[serde(default)]
    pub more: Map<String, Value>,
}

/// One message of a conversation with a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingMessage {
    /// The speaker.
    pub role: MessageRole,
    /// The content of the message.
    pub content: ContentBlock,
}

impl SamplingRequest {
    /// Creates a request with one user message, `text`, for an answer of at most `max_tokens`
    /// tokens.
    pub fn from_text(text: impl Into<String>, max_tokens: u64) -> Self {
        let said = SamplingMessage { role: MessageRole::User, content: ContentBlock::text(text) };
        Self { messages: vec![said], system: None, max_tokens, more: Map::new() }
    }

    /// Returns true if the request gives the model tools or a tool choice.
    pub fn has_tools(&self) -> bool {
        self.more.contains_key("tools") || self.more.contains_key("toolChoice")
    }
}

impl From<PromptMessage> for SamplingMessage {
    fn from(PromptMessage { role, content }: PromptMessage) -> Self {
        Self { role, content }
    }
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAnswer {
    /// The answer to a form or a page visit.
    Choice(PersonChoice),
    /// The model's answer.
    Sampled(SamplingAnswer),
    /// The client's folders.
    Roots(Vec<ClientRoot>),
}

/// A person's reaction to a form or a page visit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PersonChoice {
    /// The person agreed. For a form, these are the values.
    Accepted(Map<String, Value>),
    /// The person refused.
    Declined,
    /// The person closed the question without a choice.
    Canceled,
}

/// The answer of a client's model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingAnswer {
    /// The name of the model.
    pub model: String,
    /// The text of the answer; empty if the answer is not text.
    pub text: String,
    /// The whole answer as the client sent it.
    pub raw: Value,
}

/// A folder that a client works in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRoot {
    /// The folder's `file:` URI.
    pub uri: String,
    /// The folder's name, if the client gave one.
    pub name: Option<String>,
}

/// The kind of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionKind {
    /// A form.
    Form,
    /// A page visit.
    Visit,
    /// An answer by the client's model.
    Sample,
    /// An answer by the client's model, which may use tools.
    SampleWithTools,
    /// The client's folders.
    Roots,
}

impl ClientQuestion {
    /// Returns the kind of the question.
    pub fn kind(&self) -> QuestionKind {
        match self {
            Self::Form { .. } => QuestionKind::Form,
            Self::Visit { .. } => QuestionKind::Visit,
            Self::Sample(sampling) if sampling.has_tools() => QuestionKind::SampleWithTools,
            Self::Sample(_) => QuestionKind::Sample,
            Self::Roots => QuestionKind::Roots,
        }
    }

    /// Returns true if the question is a form without fields, which only asks for consent.
    pub fn is_for_consent(&self) -> bool {
        match self {
            Self::Form { schema, .. } => {
                let fields = schema.get("properties").and_then(Value::as_object);
                fields.is_none_or(Map::is_empty)
            }
            Self::Visit { .. } | Self::Sample(_) | Self::Roots => false,
        }
    }

    /// Returns true if `told` is an answer of the right kind. For a form, it must also match the
    /// schema.
    pub fn is_answered_by(&self, told: &ClientAnswer) -> bool {
        match (self, told) {
            (Self::Form { schema, .. }, ClientAnswer::Choice(PersonChoice::Accepted(content))) => {
                is_filled_in(schema, content)
            }
            (Self::Form { .. } | Self::Visit { .. }, ClientAnswer::Choice(_))
            | (Self::Sample(_), ClientAnswer::Sampled(_))
            | (Self::Roots, ClientAnswer::Roots(_)) => true,
            (
                Self::Form { .. } | Self::Visit { .. },
                ClientAnswer::Sampled(_) | ClientAnswer::Roots(_),
            )
            | (Self::Sample(_), ClientAnswer::Choice(_) | ClientAnswer::Roots(_))
            | (Self::Roots, ClientAnswer::Choice(_) | ClientAnswer::Sampled(_)) => false,
        }
    }
}

/// Returns true if `content` satisfies `schema`, a flat form schema.
fn is_filled_in(schema: &Value, content: &Map<String, Value>) -> bool {
    let required = schema.get("required").and_then(Value::as_array);
    let mut required = required.into_iter().flatten().filter_map(Value::as_str);
    let fields = schema.get("properties").and_then(Value::as_object);
    required.all(|name| content.contains_key(name))
        && content.iter().all(|(name, value)| {
            let field = fields.and_then(|fields| fields.get(name));
            field.is_none_or(|field| fits_field(field, value))
        })
}

fn fits_field(field: &Value, value: &Value) -> bool {
    let typed = match field.get("type").and_then(Value::as_str) {
        Some("string") => value.is_string(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some(_) | None => true,
    };
    let choices = field.get("enum").and_then(Value::as_array);
    typed && choices.is_none_or(|choices| choices.contains(value))
}

/// The kinds of question that a client supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QuestionSupport {
    /// Forms.
    pub form: bool,
    /// Page visits.
    pub visit: bool,
    /// Answers by the client's model.
    pub sample: bool,
    /// Answers by the client's model with tools.
    #[serde(default)]
    pub tools: bool,
    /// Requests for the client's folders.
    pub roots: bool,
}

impl QuestionSupport {
    /// Returns true if the client supports questions of `kind`.
    pub fn supports(self, kind: QuestionKind) -> bool {
        match kind {
            QuestionKind::Form => self.form,
            QuestionKind::Visit => self.visit,
            QuestionKind::Sample => self.sample,
            QuestionKind::SampleWithTools => self.sample && self.tools,
            QuestionKind::Roots => self.roots,
        }
    }
}

/// Questions by key.
pub type ClientQuestions = BTreeMap<String, ClientQuestion>;
/// Answers by the key of their question.
pub type ClientAnswers = BTreeMap<String, ClientAnswer>;

/// The way to ask the caller of a running call, and the answers so far.
#[derive(Clone, Default)]
pub struct Asker {
    supported: QuestionSupport,
    answers: Arc<Mutex<ClientAnswers>>,
    /// True if the answers arrived before any question. Consents among them do not count.
    answers_unasked: bool,
    /// True if the caller answers by making the call again.
    repeats_calls: bool,
    /// A note from the tool to its next run, which has the answers.
    note: Arc<Mutex<Option<String>>>,
    /// Redeems the request state, if a consent is valid only once.
    redeem: Option<ConsentRedeemer>,
    mode: AskerMode,
}

/// Redeems a request state. Returns false if it was redeemed before.
pub type ConsentRedeemer = Arc<dyn Fn() -> bool + Send + Sync>;

/// The way to reach the caller with a question.
#[derive(Clone, Default)]
enum AskerMode {
    /// The caller cannot be asked.
    #[default]
    Nobody,
    /// The call ends with its questions, and the caller calls again with the answers.
    OnRepeat,
    /// The caller answers while the call runs.
    DuringCall(Arc<dyn QuestionSender>),
}

/// Sends questions to the caller while the call runs.
pub trait QuestionSender: Send + Sync + 'static {
    /// Sends all of `questions` and waits for all answers.
    fn ask(&self, questions: ClientQuestions) -> BoxFuture<'_, Result<ClientAnswers, ToolError>>;
}

impl Asker {
    /// Creates an asker for a caller that cannot be asked.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates an asker for a caller that calls again with the answers. `given` are the answers so
    /// far.
    pub fn on_repeat(supported: QuestionSupport, given: ClientAnswers) -> Self {
        let answers = Arc::new(Mutex::new(given));
        Self {
            supported,
            answers,
            repeats_calls: true,
            mode: AskerMode::OnRepeat,
            ..Self::default()
        }
    }

    /// Returns the asker with the `note` that the tool left in the run before.
    pub fn with_note(self, note: Option<String>) -> Self {
        Self { note: Arc::new(Mutex::new(note)), ..self }
    }

    /// Returns the asker with consents that are valid once: `spend` redeems them.
    pub fn with_single_use(self, spend: ConsentRedeemer) -> Self {
        Self { redeem: Some(spend), ..self }
    }

    /// Returns the asker with its answers marked as sent before any question. None of them counts
    /// as consent, because the person had not seen the question.
    pub fn with_unasked_answers(self) -> Self {
        Self { answers_unasked: true, ..self }
    }

    /// Creates an asker for a caller that answers while the call runs.
    pub fn during_call(supported: QuestionSupport, ask: Arc<dyn QuestionSender>) -> Self {
        Self { supported, mode: AskerMode::DuringCall(ask), ..Self::default() }
    }

    /// Returns a copy that sends its questions through `ask`. The answers so far stay.
    pub fn with_sender(&self, ask: Arc<dyn QuestionSender>) -> Self {
        Self { mode: AskerMode::DuringCall(ask), repeats_calls: false, ..self.clone() }
    }

    /// Returns a copy whose questions pass through `ask`, which forwards them to this asker.
    pub fn with_proxy(&self, ask: Arc<dyn QuestionSender>) -> Self {
        Self { mode: AskerMode::DuringCall(ask), ..self.clone() }
    }

    /// Returns true if a question ends the call and the answer arrives with another call.
    pub fn repeats_calls(&self) -> bool {
        self.repeats_calls
    }

    /// Returns the note that the tool left when it asked.
    pub fn stored_note(&self) -> Option<String> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Leaves `note` for the next run of the tool, which has the answers to its next questions.
    pub fn set_note(&self, note: Option<String>) {
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = note;
    }

    /// Removes the answers with these `keys`, so that their questions may be asked again.
    pub fn remove_answers<'k>(&self, keys: impl IntoIterator<Item = &'k String>) {
        let mut given = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        keys.into_iter().for_each(|key| drop(given.remove(key)));
    }

    /// Returns the kinds of question that the caller supports.
    pub fn supported(&self) -> QuestionSupport {
        match self.mode {
            AskerMode::Nobody => QuestionSupport::default(),
            AskerMode::OnRepeat | AskerMode::DuringCall(_) => self.supported,
        }
    }

    /// Returns the answers so far.
    pub fn answers(&self) -> ClientAnswers {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the answers to `questions`. Questions without an answer are asked first.
    ///
    /// # Errors
    /// - [`ToolFault::Refused`] if a consent was redeemed before
    /// - [`ToolFault::CannotAsk`] if the caller does not support one of the questions
    /// - [`ToolFault::Asks`] if the caller must call again with the answers; pass it on with `?`
    /// - [`ToolFault::Failed`] if an answer does not fit its question
    pub async fn ask(&self, questions: ClientQuestions) -> Result<ClientAnswers, ToolError> {
        if self.answers_unasked {
            let mut given = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            given.retain(|key, _| !questions.get(key).is_some_and(ClientQuestion::is_for_consent));
        }
        let is_consent =
            |key: &String| questions.get(key).is_some_and(ClientQuestion::is_for_consent);
        let mut given = self.answers();
        let consents = given.keys().any(is_consent);
        given
            .retain(|key, told| questions.get(key).is_some_and(|asked| asked.is_answered_by(told)));
        let open: ClientQuestions =
            questions.into_iter().filter(|(key, _)| !given.contains_key(key)).collect();
        if open.is_empty() {
            if consents && self.redeem.as_ref().is_some_and(|spend| !spend()) {
                let why = "`requestState` was used already, and what a person agreed to is done \
                           once; make the request again without it";
                return Err(ToolError::refused(-32602, why));
            }
            return Ok(given);
        }
        if let Some(question) =
            open.values().find(|question| !self.supported().supports(question.kind()))
        {
            return Err(ToolError::cannot_ask(question.kind()));
        }
        let told = match &self.mode {
            AskerMode::Nobody | AskerMode::OnRepeat => {
                return Err(ToolError::new(
                    ToolFault::Asks(open),
                    "whoever called is to answer some questions and call again",
                ));
            }
            AskerMode::DuringCall(ask) => ask.ask(open.clone()).await?,
        };
        // Answers to questions that were not asked are dropped.
        let told: ClientAnswers =
            told.into_iter().filter(|(key, _)| open.contains_key(key)).collect();
        for (key, question) in &open {
            match told.get(key) {
                Some(told) if question.is_answered_by(told) => {}
                Some(_) | None => {
                    let why = format!("the answer to `{key}` is not what was asked for");
                    return Err(ToolError::new(ToolFault::Failed, why));
                }
            }
        }
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).extend(told.clone());
        given.extend(told);
        Ok(given)
    }
}
