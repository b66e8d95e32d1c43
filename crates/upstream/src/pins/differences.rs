//! Classifies the differences between the pinned and the current definitions of tools.

use std::collections::BTreeMap;

use serde_json::Value;
use toolgate_contract::printable::{self, json_texts};

use super::{ToolDefinition, UpstreamPins, injection_signs, schemas};

/// Severity of a tool's difference from its pin, mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PinDifferenceSeverity {
    /// Only the wording of the tool's definition changed.
    Cosmetic,
    /// Calls that worked before still work, and more calls are accepted.
    Widening,
    /// Calls that worked before may fail, or results may have a new shape.
    Breaking,
    /// The changed text addresses the model instead of describing the tool.
    InstructionLike,
}

impl PinDifferenceSeverity {
    /// Returns the severity in lower case, e.g. `instruction-like`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cosmetic => "cosmetic",
            Self::Widening => "widening",
            Self::Breaking => "breaking",
            Self::InstructionLike => "instruction-like",
        }
    }
}

/// One difference between a tool's pinned and current definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinDifference {
    /// Severity of the difference.
    pub class: PinDifferenceSeverity,
    /// Part of the definition that differs, e.g. `description`, with a JSON pointer into that part.
    pub location: String,
    /// Short description of the difference.
    pub description: String,
}

/// Change of one tool's definition.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolDefinitionChange {
    /// The tool is new since the approval. The value is its definition.
    Added(Box<ToolDefinition>),
    /// The tool no longer exists.
    Removed,
    /// The tool's definition changed. The values are the approved and the current definition.
    Changed(Box<[ToolDefinition; 2]>),
}

impl ToolDefinitionChange {
    /// Compares a tool's pinned definition, if any, with the current one. Returns `None` if they
    /// are equal.
    pub(crate) fn between(before: Option<&ToolDefinition>, now: &ToolDefinition) -> Option<Self> {
        match before {
            None => Some(Self::Added(Box::new(now.clone()))),
            Some(before) if before.hash() == now.hash() => None,
            Some(before) => Some(Self::Changed(Box::new([before.clone(), now.clone()]))),
        }
    }

    /// Returns the differences between the definitions, worst first.
    pub fn differences(&self) -> Vec<PinDifference> {
        let one = |class, what: &str| PinDifference {
            class,
            location: "tool".into(),
            description: what.into(),
        };
        match self {
            Self::Added(now) => {
                let mut all = vec![one(PinDifferenceSeverity::Widening, "is new")];
                find_instruction_like(&[], now, &mut all);
                all
            }
            Self::Removed => vec![one(PinDifferenceSeverity::Breaking, "was removed")],
            Self::Changed(both) => differences(&both[0], &both[1]),
        }
    }

    /// Returns the severity of the worst difference between the definitions.
    pub fn class(&self) -> PinDifferenceSeverity {
        let all = self.differences();
        all.iter()
            .map(|difference| difference.class)
            .max()
            .unwrap_or(PinDifferenceSeverity::Cosmetic)
    }
}

/// Changes of one upstream's tools and instructions since their approval.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamChanges {
    /// Approved and current instructions of the upstream, if they differ.
    pub instructions: Option<[Option<String>; 2]>,
    /// Changed tools of the upstream, by name.
    pub tools: BTreeMap<String, ToolDefinitionChange>,
}

impl UpstreamChanges {
    /// Compares an upstream's current tools and instructions with their pins. Returns `None` if
    /// nothing differs.
    pub fn between(before: &UpstreamPins, now: &UpstreamPins) -> Option<Self> {
        let both = [before, now].map(|it| it.instructions.clone());
        let changes = Self {
            instructions: (both[0] != both[1]).then_some(both),
            tools: tool_changes(&before.tools, now.tools.values()),
        };
        (changes.instructions.is_some() || !changes.tools.is_empty()).then_some(changes)
    }
}

/// Returns the changes of an upstream's tools since the pins `before` were approved, by name.
pub(super) fn tool_changes<'d>(
    before: &BTreeMap<String, ToolDefinition>,
    now: impl IntoIterator<Item = &'d ToolDefinition>,
) -> BTreeMap<String, ToolDefinitionChange> {
    let gone = before.keys().map(|name| (name.clone(), ToolDefinitionChange::Removed));
    let mut all: BTreeMap<_, _> = gone.collect();
    for now in now {
        match ToolDefinitionChange::between(before.get(&now.name), now) {
            Some(change) => _ = all.insert(now.name.clone(), change),
            // If a tool is listed twice, the entry that differs counts.
            None if all.get(&now.name) == Some(&ToolDefinitionChange::Removed) => {
                _ = all.remove(&now.name);
            }
            None => {}
        }
    }
    all
}

fn differences(before: &ToolDefinition, now: &ToolDefinition) -> Vec<PinDifference> {
    let mut all = Vec::new();
    let mut cosmetic = |at: &str, before: &Option<String>, now: &Option<String>| {
        let what = match (before, now) {
            _ if before == now => return,
            (None, _) => "was added",
            (_, None) => "was removed",
            _ => "changed",
        };
        all.push(PinDifference {
            class: PinDifferenceSeverity::Cosmetic,
            location: at.into(),
            description: what.into(),
        });
    };
    cosmetic("title", &before.title, &now.title);
    cosmetic("description", &before.description, &now.description);
    compare_hints(before, now, &mut all);
    schemas::compare_schemas(
        schemas::SchemaDirection::Input,
        &before.input_schema,
        &now.input_schema,
        &mut all,
    );
    let any = Value::Bool(true);
    let [output, output_now] = [before, now].map(|it| it.output_schema.as_ref().unwrap_or(&any));
    schemas::compare_schemas(schemas::SchemaDirection::Output, output, output_now, &mut all);
    if before.meta != now.meta {
        // Metadata may name a page that is shown, or who may call the tool.
        let at = "meta".to_owned();
        let what = "changed".to_owned();
        all.push(PinDifference {
            class: PinDifferenceSeverity::Breaking,
            location: at,
            description: what,
        });
    }
    find_instruction_like(&texts_of(before), now, &mut all);
    if all.is_empty() {
        let at = "tool".to_owned();
        let what = "is written differently".to_owned();
        all.push(PinDifference {
            class: PinDifferenceSeverity::Cosmetic,
            location: at,
            description: what,
        });
    }
    all.sort_by_key(|difference| std::cmp::Reverse(difference.class));
    all
}

/// Adds the differences between the behaviour hints of a tool to `all`. A riskier hint is breaking,
/// because policy relied on the old hint. A milder hint is widening, because rules allow more
/// calls.
fn compare_hints(before: &ToolDefinition, now: &ToolDefinition, all: &mut Vec<PinDifference>) {
    for (hint, default, worse) in [
        ("readOnlyHint", false, false),
        ("destructiveHint", true, true),
        ("idempotentHint", false, false),
        ("openWorldHint", true, true),
    ] {
        let value_of = |it: &ToolDefinition| {
            let value = it.annotations.as_ref().and_then(|all| all.get(hint)?.as_bool());
            value.unwrap_or(default)
        };
        let was = value_of(before);
        let is = value_of(now);
        if was != is {
            let class = if is == worse {
                PinDifferenceSeverity::Breaking
            } else {
                PinDifferenceSeverity::Widening
            };
            let at = format!("annotations/{hint}");
            all.push(PinDifference {
                class,
                location: at,
                description: format!("changed from {was} to {is}"),
            });
        }
    }
    let known = all.iter().any(|difference| difference.location.starts_with("annotations/"));
    if before.annotations != now.annotations && !known {
        let what = "changed".to_owned();
        all.push(PinDifference {
            class: PinDifferenceSeverity::Cosmetic,
            location: "annotations".into(),
            description: what,
        });
    }
}

fn find_instruction_like(before: &[&str], now: &ToolDefinition, all: &mut Vec<PinDifference>) {
    let nothing = Value::Null;
    let part = |value: &'_ Option<Value>| value.clone().unwrap_or_else(|| nothing.clone());
    let annotations = part(&now.annotations);
    let output = part(&now.output_schema);
    let parts = [
        ("name", vec![now.name.as_str()]),
        ("title", now.title.as_deref().into_iter().collect()),
        ("description", now.description.as_deref().into_iter().collect()),
        ("annotations", json_texts(&annotations)),
        ("input_schema", json_texts(&now.input_schema)),
        ("output_schema", json_texts(&output)),
    ];
    for (at, texts) in parts {
        if let Some(what) = injection_signs::added_sign(before, &texts) {
            let what = printable::escape_hidden(&what);
            all.push(PinDifference {
                class: PinDifferenceSeverity::InstructionLike,
                location: at.into(),
                description: what,
            });
        }
    }
}

/// Returns all texts of a tool's `definition`.
fn texts_of(definition: &ToolDefinition) -> Vec<&str> {
    // Metadata is for the client's display and never reaches a model.
    let ToolDefinition {
        name,
        title,
        description,
        annotations,
        input_schema,
        output_schema,
        meta: _,
    } = definition;
    let texts = [Some(name), title.as_ref(), description.as_ref()];
    let mut all: Vec<_> = texts.into_iter().flatten().map(String::as_str).collect();
    let values = [annotations.as_ref(), Some(input_schema), output_schema.as_ref()];
    all.extend(values.into_iter().flatten().flat_map(json_texts));
    all
}
