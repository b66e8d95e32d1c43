//! What a call asks of whoever called: a form, a visit to a page, a model's answer, folders.
//!
//! Clients are asked in two ways. Some are asked while the call runs, and answer. To others the
//! call ends with the questions; they call again with the answers, and the tool runs from its
//! start until it is past what it had asked. So ask before doing anything, and by the same keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{BoxFuture, Content, Fault, Message, Role, ToolError};

/// Something asked of whoever called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// That a person fill in a form. Never for secrets.
    Form {
        /// What is asked.
        message: String,
        /// JSON Schema of a flat object of text, numbers, booleans and choices.
        schema: Value,
    },
    /// That a person visit a page, where what they do is between them and it.
    Visit {
        /// Why.
        message: String,
        /// The page.
        url: String,
        /// What the visit is known by.
        id: String,
    },
    /// That the client's model answer.
    Sample(Box<Sampling>),
    /// Which folders the client works in.
    Roots,
}

/// What the client's model is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// The conversation.
    pub messages: Vec<Said>,
    /// What the model is told of its part.
    pub system: Option<String>,
    /// The most tokens of an answer.
    pub max_tokens: u64,
    /// What else the wire has words for, as it has them: `temperature`, `modelPreferences`, `tools`;
    /// and `messages`, where they say more than those above.
    #[serde(default)]
    pub more: Map<String, Value>,
}

/// Something said in a conversation with a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// By whom.
    pub role: Role,
    /// What.
    pub content: Content,
}

impl Sampling {
    /// Asks `text`, to be answered in at most `max_tokens`.
    pub fn of(text: impl Into<String>, max_tokens: u64) -> Self {
        let said = Said { role: Role::User, content: Content::text(text) };
        Self { messages: vec![said], system: None, max_tokens, more: Map::new() }
    }

    /// Whether the model is to be given tools, or is told what came of some.
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
    /// To a form or a visit.
    Choice(Choice),
    /// The model's.
    Sampled(Sampled),
    /// The folders.
    Roots(Vec<ClientRoot>),
}

/// What a person did with a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// They answered; for a form, with this.
    Accepted(Map<String, Value>),
    /// They said no.
    Declined,
    /// They did not choose.
    Canceled,
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// Which model it was.
    pub model: String,
    /// What it said: text where it is text.
    pub text: String,
    /// The whole answer as the wire has it.
    pub raw: Value,
}

/// A folder that a client works in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRoot {
    /// Where it is, a `file:` URI.
    pub uri: String,
    /// What it is called.
    pub name: Option<String>,
}

/// The kinds of question there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A form.
    Form,
    /// A visit.
    Visit,
    /// A model's answer.
    Sample,
    /// The same, where the model has tools at hand.
    SampleWithTools,
    /// Folders.
    Roots,
}

impl Question {
    /// Which kind it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Form { .. } => Kind::Form,
            Self::Visit { .. } => Kind::Visit,
            Self::Sample(sampling) if sampling.has_tools() => Kind::SampleWithTools,
            Self::Sample(_) => Kind::Sample,
            Self::Roots => Kind::Roots,
        }
    }

    /// Whether it asks for nothing but a yes.
    pub fn is_for_consent(&self) -> bool {
        match self {
            Self::Form { schema, .. } => {
                let fields = schema.get("properties").and_then(Value::as_object);
                fields.is_none_or(Map::is_empty)
            }
            Self::Visit { .. } | Self::Sample(_) | Self::Roots => false,
        }
    }

    /// Whether `told` answers it, in kind and, for a form, in what was asked for.
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

/// Whether a form of `schema`, which is flat, is filled in by `content`.
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

/// What a client can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Askable {
    /// To have a form filled in.
    pub form: bool,
    /// To have a page visited.
    pub visit: bool,
    /// To have its model answer.
    pub sample: bool,
    /// To have it answer with tools at hand.
    #[serde(default)]
    pub tools: bool,
    /// For its folders.
    pub roots: bool,
}

impl Askable {
    /// Whether it can be asked questions of `kind`.
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

/// Questions by what they are known by.
pub type Questions = BTreeMap<String, Question>;
/// Answers by what their questions are known by.
pub type Given = BTreeMap<String, Told>;

/// Who can be asked while a call runs, and what is answered already.
#[derive(Clone, Default)]
pub struct Asker {
    can: Askable,
    given: Arc<Mutex<Given>>,
    /// Whether what was given came before anything was asked.
    unasked: bool,
    /// Whether whoever called answers by calling again.
    again: bool,
    /// What the tool wants to know again when it is called again.
    note: Arc<Mutex<Option<String>>>,
    /// Spends what a yes came with, where it is good once.
    once: Option<Spend>,
    way: Way,
}

/// Spends what a yes came with: whether nobody else has.
pub type Spend = Arc<dyn Fn() -> bool + Send + Sync>;

/// How whoever called is asked.
#[derive(Clone, Default)]
enum Way {
    /// Not at all.
    #[default]
    Nobody,
    /// The call ends with the questions, and is called again with the answers.
    Again,
    /// While it runs.
    Now(Arc<dyn AskNow>),
}

/// Asks whoever called while the call runs.
pub trait AskNow: Send + Sync + 'static {
    /// Asks all of `questions` and waits for all answers.
    fn ask(&self, questions: Questions) -> BoxFuture<'_, Result<Given, ToolError>>;
}

impl Asker {
    /// Nobody can be asked.
    pub fn nobody() -> Self {
        Self::default()
    }

    /// Someone who calls again with the answers, and has given these so far.
    pub fn again(can: Askable, given: Given) -> Self {
        let given = Arc::new(Mutex::new(given));
        Self { can, given, again: true, way: Way::Again, ..Self::default() }
    }

    /// The same, to whom the tool had left `note` when it was called before.
    pub fn with_note(self, note: Option<String>) -> Self {
        Self { note: Arc::new(Mutex::new(note)), ..self }
    }

    /// The same, to whom a yes is good once: with `spend` it is used.
    pub fn once(self, spend: Spend) -> Self {
        Self { once: Some(spend), ..self }
    }

    /// The same, whose answers came before anything was asked: none of them is a yes to what the
    /// person had not heard.
    pub fn unasked(self) -> Self {
        Self { unasked: true, ..self }
    }

    /// Someone who answers while the call runs.
    pub fn now(can: Askable, ask: Arc<dyn AskNow>) -> Self {
        Self { can, way: Way::Now(ask), ..Self::default() }
    }

    /// The same asker, asking by `ask` from now on; what was answered stays.
    pub fn asking_by(&self, ask: Arc<dyn AskNow>) -> Self {
        Self { way: Way::Now(ask), again: false, ..self.clone() }
    }

    /// The same asker, whose questions go through `ask`, which asks it in its own way.
    pub fn asking_through(&self, ask: Arc<dyn AskNow>) -> Self {
        Self { way: Way::Now(ask), ..self.clone() }
    }

    /// Whether a question ends the call, and the answer comes with another.
    pub fn calls_again(&self) -> bool {
        self.again
    }

    /// What the tool had noted when it asked.
    pub fn noted(&self) -> Option<String> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has the tool find `note` when it is called again with the answers to what it asks next.
    pub fn note(&self, note: Option<String>) {
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = note;
    }

    /// Forgets the answers to the questions known by `keys`, which may be asked anew.
    pub fn forget<'k>(&self, keys: impl IntoIterator<Item = &'k String>) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        keys.into_iter().for_each(|key| drop(given.remove(key)));
    }

    /// What can be asked.
    pub fn can(&self) -> Askable {
        match self.way {
            Way::Nobody => Askable::default(),
            Way::Again | Way::Now(_) => self.can,
        }
    }

    /// What was answered so far.
    pub fn given(&self) -> Given {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The answers to `questions`: those that are there, and the others once they are given.
    ///
    /// # Errors
    /// [`Fault::Refused`] if a yes was used already; [`Fault::CannotAsk`] if whoever called cannot be
    /// asked one of them; [`Fault::Asks`] if they are to call again with the answers, which the tool
    /// passes on with `?`.
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
        // What was not asked is not answered.
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
