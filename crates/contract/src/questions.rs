//! Questions that a call asks its caller: a form, a page visit, a model's answer, or folders.
//!
//! There are two ways to ask a client. Some clients answer while the call runs. For the others, the
//! call ends with its questions, and the client calls again with the answers. The tool then runs
//! from its start. A tool must therefore ask before it changes anything, and use the same keys each
//! time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{ContentBlock, MessageRole, PromptMessage, exact_json};

/// A question that a call asks its caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientQuestion {
    /// A form for a person to fill in. Never ask for secrets.
    Form {
        /// The text shown above the form.
        message: String,
        /// JSON Schema of the form: a flat object of strings, numbers, booleans and choices.
        #[serde(deserialize_with = "exact_json::deserialize")]
        schema: Value,
    },
    /// A page for a person to visit. The client does not see the person's input there.
    Visit {
        /// The reason for the visit, for the person.
        message: String,
        /// The URL of the page to visit.
        url: String,
        /// The id of the page visit.
        id: String,
    },
    /// A request for an answer by the client's model.
    Sample(Box<SamplingRequest>),
    /// A request for the folders in which the client works.
    Roots,
}

/// A request for an answer by the client's model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingRequest {
    /// The conversation that the model continues.
    pub messages: Vec<SamplingMessage>,
    /// The system prompt for the model.
    pub system: Option<String>,
    /// The maximum number of tokens in the model's answer.
    pub max_tokens: u64,
    /// Further fields of the request, unchanged, such as `temperature`, `modelPreferences` and
    /// `tools`. If `messages` cannot hold the original messages, this map contains them as well.
    #[serde(default, deserialize_with = "exact_json::deserialize_object")]
    pub more: Map<String, Value>,
}

/// One message of a conversation with a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingMessage {
    /// The speaker of the message.
    pub role: MessageRole,
    /// The content of the message.
    pub content: ContentBlock,
}

impl SamplingRequest {
    /// Creates a request with one user message, `text`, for an answer of at most `max_tokens`
    /// tokens.
    pub fn from_text(text: impl Into<String>, max_tokens: u64) -> Self {
        let message =
            SamplingMessage { role: MessageRole::User, content: ContentBlock::text(text) };
        Self { messages: vec![message], system: None, max_tokens, more: Map::new() }
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

/// Answer of a client to a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAnswer {
    /// The answer to a form or a page visit.
    Choice(ElicitationAnswer),
    /// The answer of the client's model.
    Sampled(SamplingAnswer),
    /// The folders in which the client works.
    Roots(Vec<ClientRoot>),
}

/// A person's reaction to a form or a page visit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElicitationAnswer {
    /// The person agreed. For a form, the value contains the fields that the person filled in.
    Accepted(#[serde(deserialize_with = "exact_json::deserialize_object")] Map<String, Value>),
    /// The person refused to do what the question asks.
    Declined,
    /// The person closed the form or page without a choice.
    Canceled,
}

/// The answer of a client's model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingAnswer {
    /// The name of the model that answered.
    pub model: String,
    /// The text of the model's answer. Empty if the answer is not text.
    pub text: String,
    /// The complete answer of the model as the client sent it.
    #[serde(deserialize_with = "exact_json::deserialize")]
    pub raw: Value,
}

/// A folder in which a client works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRoot {
    /// The `file:` URI of the folder.
    pub uri: String,
    /// The name of the folder, if the client gave one.
    pub name: Option<String>,
}

/// Kind of a question to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionKind {
    /// A person answers the question in a form.
    Form,
    /// A person answers the question by visiting a web page.
    Visit,
    /// The client's model answers the question, without tools.
    Sample,
    /// The client's model answers the question, and may use tools.
    SampleWithTools,
    /// The client answers with the folders in which it works.
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

    /// Returns true if `answer` has the kind that this question needs. The answer to a form must
    /// also match the form's schema.
    pub fn is_answered_by(&self, answer: &ClientAnswer) -> bool {
        match (self, answer) {
            (
                Self::Form { schema, .. },
                ClientAnswer::Choice(ElicitationAnswer::Accepted(content)),
            ) => is_filled_in(schema, content),
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

/// Returns true if `content` is a valid answer to the form with the JSON Schema `schema`, a flat
/// object.
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
        Some("integer") => {
            value.as_number().is_some_and(|number| exact_json::nearest_float(number).fract() == 0.0)
        }
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
    /// True if the client shows forms to a person.
    pub form: bool,
    /// True if the client asks a person to visit pages.
    pub visit: bool,
    /// True if the client's model can answer.
    pub sample: bool,
    /// True if the client's model can answer and use tools.
    #[serde(default)]
    pub tools: bool,
    /// True if the client reports the folders in which it works.
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

/// Questions to a client, by the key that identifies each within its call.
pub type ClientQuestions = BTreeMap<String, ClientQuestion>;
/// Answers of a client, by the key of their question.
pub type ClientAnswers = BTreeMap<String, ClientAnswer>;
