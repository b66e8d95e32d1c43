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

use crate::{BoxFuture, Content, Fault, Message, Role, ToolError};

/// A question that a call asks its caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
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
    Sample(Box<Sampling>),
    /// A request for the folders that the client works in.
    Roots,
}

/// A request to the client's model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// The conversation so far.
    pub messages: Vec<Said>,
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
pub struct Said {
    /// The speaker.
    pub role: Role,
    /// The content of the message.
    pub content: Content,
}

impl Sampling {
    /// Creates a request with one user message, `text`, for an answer of at most `max_tokens`
    /// tokens.
    pub fn of(text: impl Into<String>, max_tokens: u64) -> Self {
        let said = Said { role: Role::User, content: Content::text(text) };
        Self { messages: vec![said], system: None, max_tokens, more: Map::new() }
    }

    /// Returns true if the request gives the model tools or a tool choice.
    pub fn has_tools(&self) -> bool {
        self.more.contains_key("tools") || self.more.contains_key("toolChoice")
    }
}

impl From<Message> for Said {
    fn from(Message { role, content }: Message) -> Self {
        Self { role, content }
    }
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The answer to a form or a page visit.
    Choice(Choice),
    /// The model's answer.
    Sampled(Sampled),
    /// The client's folders.
    Roots(Vec<ClientRoot>),
}

/// A person's reaction to a form or a page visit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The person agreed. For a form, these are the values.
    Accepted(Map<String, Value>),
    /// The person refused.
    Declined,
    /// The person closed the question without a choice.
    Canceled,
}

/// The answer of a client's model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
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
pub enum Kind {
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

impl Question {
    /// Returns the kind of the question.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Form { .. } => Kind::Form,
            Self::Visit { .. } => Kind::Visit,
            Self::Sample(sampling) if sampling.has_tools() => Kind::SampleWithTools,
            Self::Sample(_) => Kind::Sample,
            Self::Roots => Kind::Roots,
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
    pub fn is_answered_by(&self, told: &Told) -> bool {
        match (self, told) {
            (Self::Form { schema, .. }, Told::Choice(Choice::Accepted(content))) => {
                is_filled_in(schema, content)
            }
            (Self::Form { .. } | Self::Visit { .. }, Told::Choice(_))
            | (Self::Sample(_), Told::Sampled(_))
            | (Self::Roots, Told::Roots(_)) => true,
            (Self::Form { .. } | Self::Visit { .. }, Told::Sampled(_) | Told::Roots(_))
            | (Self::Sample(_), Told::Choice(_) | Told::Roots(_))
            | (Self::Roots, Told::Choice(_) | Told::Sampled(_)) => false,
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
            field.is_none_or(|field| fits(field, value))
        })
}

fn fits(field: &Value, value: &Value) -> bool {
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
pub struct Askable {
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

impl Askable {
    /// Returns true if the client supports questions of `kind`.
    pub fn has(self, kind: Kind) -> bool {
        match kind {
            Kind::Form => self.form,
            Kind::Visit => self.visit,
            Kind::Sample => self.sample,
            Kind::SampleWithTools => self.sample && self.tools,
            Kind::Roots => self.roots,
        }
    }
}

/// Questions by key.
pub type Questions = BTreeMap<String, Question>;
/// Answers by the key of their question.
pub type Given = BTreeMap<String, Told>;

/// The way to ask the caller of a running call, and the answers so far.
#[derive(Clone, Default)]
pub struct Asker {
    can: Askable,
    given: Arc<Mutex<Given>>,
    /// True if the answers arrived before any question. Consents among them do not count.
    unasked: bool,
    /// True if the caller answers by making the call again.
    again: bool,
    /// A note from the tool to its next run, which has the answers.
    note: Arc<Mutex<Option<String>>>,
    /// Redeems the request state, if a consent is valid only once.
    once: Option<Spend>,
    way: Way,
}

/// Redeems a request state. Returns false if it was redeemed before.
pub type Spend = Arc<dyn Fn() -> bool + Send + Sync>;

/// The way to reach the caller with a question.
#[derive(Clone, Default)]
enum Way {
    /// The caller cannot be asked.
    #[default]
    Nobody,
    /// The call ends with its questions, and the caller calls again with the answers.
    Again,
    /// The caller answers while the call runs.
    Now(Arc<dyn AskNow>),
}

/// Sends questions to the caller while the call runs.
pub trait AskNow: Send + Sync + 'static {
    /// Sends all of `questions` and waits for all answers.
    fn ask(&self, questions: Questions) -> BoxFuture<'_, Result<Given, ToolError>>;
}

impl Asker {
    /// Creates an asker for a caller that cannot be asked.
    pub fn nobody() -> Self {
        Self::default()
    }

    /// Creates an asker for a caller that calls again with the answers. `given` are the answers so
    /// far.
    pub fn again(can: Askable, given: Given) -> Self {
        let given = Arc::new(Mutex::new(given));
        Self { can, given, again: true, way: Way::Again, ..Self::default() }
    }

    /// Returns the asker with the `note` that the tool left in the run before.
    pub fn with_note(self, note: Option<String>) -> Self {
        Self { note: Arc::new(Mutex::new(note)), ..self }
    }

    /// Returns the asker with consents that are valid once: `spend` redeems them.
    pub fn once(self, spend: Spend) -> Self {
        Self { once: Some(spend), ..self }
    }

    /// Returns the asker with its answers marked as sent before any question. None of them counts
    /// as consent, because the person had not seen the question.
    pub fn unasked(self) -> Self {
        Self { unasked: true, ..self }
    }

    /// Creates an asker for a caller that answers while the call runs.
    pub fn now(can: Askable, ask: Arc<dyn AskNow>) -> Self {
        Self { can, way: Way::Now(ask), ..Self::default() }
    }

    /// Returns a copy that sends its questions through `ask`. The answers so far stay.
    pub fn asking_by(&self, ask: Arc<dyn AskNow>) -> Self {
        Self { way: Way::Now(ask), again: false, ..self.clone() }
    }

    /// Returns a copy whose questions pass through `ask`, which forwards them to this asker.
    pub fn asking_through(&self, ask: Arc<dyn AskNow>) -> Self {
        Self { way: Way::Now(ask), ..self.clone() }
    }

    /// Returns true if a question ends the call and the answer arrives with another call.
    pub fn calls_again(&self) -> bool {
        self.again
    }

    /// Returns the note that the tool left when it asked.
    pub fn noted(&self) -> Option<String> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Leaves `note` for the next run of the tool, which has the answers to its next questions.
    pub fn note(&self, note: Option<String>) {
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = note;
    }

    /// Removes the answers with these `keys`, so that their questions may be asked again.
    pub fn forget<'k>(&self, keys: impl IntoIterator<Item = &'k String>) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        keys.into_iter().for_each(|key| drop(given.remove(key)));
    }

    /// Returns the kinds of question that the caller supports.
    pub fn can(&self) -> Askable {
        match self.way {
            Way::Nobody => Askable::default(),
            Way::Again | Way::Now(_) => self.can,
        }
    }

    /// Returns the answers so far.
    pub fn given(&self) -> Given {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the answers to `questions`. Questions without an answer are asked first.
    ///
    /// # Errors
    /// - [`Fault::Refused`] if a consent was redeemed before
    /// - [`Fault::CannotAsk`] if the caller does not support one of the questions
    /// - [`Fault::Asks`] if the caller must call again with the answers; pass it on with `?`
    /// - [`Fault::Failed`] if an answer does not fit its question
    pub async fn ask(&self, questions: Questions) -> Result<Given, ToolError> {
        if self.unasked {
            let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
            given.retain(|key, _| !questions.get(key).is_some_and(Question::is_for_consent));
        }
        let is_consent = |key: &String| questions.get(key).is_some_and(Question::is_for_consent);
        let mut given = self.given();
        let consents = given.keys().any(is_consent);
        given
            .retain(|key, told| questions.get(key).is_some_and(|asked| asked.is_answered_by(told)));
        let open: Questions =
            questions.into_iter().filter(|(key, _)| !given.contains_key(key)).collect();
        if open.is_empty() {
            if consents && self.once.as_ref().is_some_and(|spend| !spend()) {
                let why = "`requestState` was used already, and what a person agreed to is done \
                           once; make the request again without it";
                return Err(ToolError::refused(-32602, why));
            }
            return Ok(given);
        }
        if let Some(question) = open.values().find(|question| !self.can().has(question.kind())) {
            return Err(ToolError::cannot_ask(question.kind()));
        }
        let told = match &self.way {
            Way::Nobody | Way::Again => {
                return Err(ToolError::new(
                    Fault::Asks(open),
                    "whoever called is to answer some questions and call again",
                ));
            }
            Way::Now(ask) => ask.ask(open.clone()).await?,
        };
        // Answers to questions that were not asked are dropped.
        let told: Given = told.into_iter().filter(|(key, _)| open.contains_key(key)).collect();
        for (key, question) in &open {
            match told.get(key) {
                Some(told) if question.is_answered_by(told) => {}
                Some(_) | None => {
                    let why = format!("the answer to `{key}` is not what was asked for");
                    return Err(ToolError::new(Fault::Failed, why));
                }
            }
        }
        self.given.lock().unwrap_or_else(PoisonError::into_inner).extend(told.clone());
        given.extend(told);
        Ok(given)
    }
}
