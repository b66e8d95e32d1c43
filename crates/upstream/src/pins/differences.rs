//! Classifies the differences between the pinned and the current definitions of tools.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Accepted, Definition, instructions, schemas, unseen};

/// Severity of a difference, mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Only the wording changed.
    Cosmetic,
    /// Earlier calls still work, and more are accepted.
    Widening,
    /// Earlier calls may fail.
    Breaking,
    /// The text addresses the model instead of describing the tool.
    InstructionLike,
}

impl Class {
    /// Returns the class in lower case, e.g. `instruction-like`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cosmetic => "cosmetic",
            Self::Widening => "widening",
            Self::Breaking => "breaking",
            Self::InstructionLike => "instruction-like",
        }
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Severity.
    pub class: Class,
    /// Part that differs, e.g. `description`, with a JSON pointer into it.
    pub at: String,
    /// Short description of the difference.
    pub what: String,
}

/// Change of one tool.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The tool is new.
    Added(Box<Definition>),
    /// The tool was removed.
    Removed,
    /// The definition changed: before and after.
    Changed(Box<[Definition; 2]>),
}

impl Change {
    /// Compares a tool's pinned definition, if any, with the current one. Returns `None` if they
    /// are equal.
    pub(crate) fn of(before: Option<&Definition>, now: &Definition) -> Option<Self> {
        match before {
            None => Some(Self::Added(Box::new(now.clone()))),
            Some(before) if before.hash() == now.hash() => None,
            Some(before) => Some(Self::Changed(Box::new([before.clone(), now.clone()]))),
        }
    }

    /// Returns the differences, worst first.
    pub fn differences(&self) -> Vec<Difference> {
        let one = |class, what: &str| Difference { class, at: "tool".into(), what: what.into() };
        match self {
            Self::Added(now) => {
                let mut all = vec![one(Class::Widening, "is new")];
                instruction_like(&[], now, &mut all);
                all
            }
            Self::Removed => vec![one(Class::Breaking, "is gone")],
            Self::Changed(both) => differences(&both[0], &both[1]),
        }
    }

    /// Returns the severity of the worst difference.
    pub fn class(&self) -> Class {
        let all = self.differences();
        all.iter().map(|difference| difference.class).max().unwrap_or(Class::Cosmetic)
    }
}

/// Changes of one upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct Became {
    /// Instructions before and after, if they changed.
    pub instructions: Option<[Option<String>; 2]>,
    /// Changed tools, by name.
    pub tools: BTreeMap<String, Change>,
}

impl Became {
    /// Compares an upstream with its pins. Returns `None` if they are equal.
    pub fn of(before: &Accepted, now: &Accepted) -> Option<Self> {
        let both = [before, now].map(|it| it.instructions.clone());
        let became = Self {
            instructions: (both[0] != both[1]).then_some(both),
            tools: changes(&before.tools, now.tools.values()),
        };
        (became.instructions.is_some() || !became.tools.is_empty()).then_some(became)
    }
}

/// Returns the changes of an upstream's tools since `before`, by name.
pub(super) fn changes<'d>(
    before: &BTreeMap<String, Definition>,
    now: impl IntoIterator<Item = &'d Definition>,
) -> BTreeMap<String, Change> {
    let gone = before.keys().map(|name| (name.clone(), Change::Removed));
    let mut all: BTreeMap<_, _> = gone.collect();
    for now in now {
        match Change::of(before.get(&now.name), now) {
            Some(change) => _ = all.insert(now.name.clone(), change),
            // If a tool is listed twice, the entry that differs counts.
            None if all.get(&now.name) == Some(&Change::Removed) => _ = all.remove(&now.name),
            None => {}
        }
    }
    all
}

fn differences(before: &Definition, now: &Definition) -> Vec<Difference> {
    let mut all = Vec::new();
    let mut cosmetic = |at: &str, before: &Option<String>, now: &Option<String>| {
        let what = match (before, now) {
            _ if before == now => return,
            (None, _) => "is said now",
            (_, None) => "is said no more",
            _ => "says something else",
        };
        all.push(Difference { class: Class::Cosmetic, at: at.into(), what: what.into() });
    };
    cosmetic("title", &before.title, &now.title);
    cosmetic("description", &before.description, &now.description);
    hints(before, now, &mut all);
    schemas::compare(schemas::Side::Input, &before.input_schema, &now.input_schema, &mut all);
    let any = Value::Bool(true);
    let [output, output_now] = [before, now].map(|it| it.output_schema.as_ref().unwrap_or(&any));
    schemas::compare(schemas::Side::Output, output, output_now, &mut all);
    if before.meta != now.meta {
        // Metadata may name a page that is shown, or who may call the tool.
        let (at, what) = ("meta".to_owned(), "is another".to_owned());
        all.push(Difference { class: Class::Breaking, at, what });
    }
    instruction_like(&said(before), now, &mut all);
    if all.is_empty() {
        let at = "tool".to_owned();
        let what = "says the same in another way".to_owned();
        all.push(Difference { class: Class::Cosmetic, at, what });
    }
    all.sort_by_key(|difference| std::cmp::Reverse(difference.class));
    all
}

/// Compares the behaviour hints. A riskier hint is breaking, because policy relied on it. A milder
/// hint widens the calls that rules allow.
fn hints(before: &Definition, now: &Definition, all: &mut Vec<Difference>) {
    for (hint, unsaid, worse) in [
        ("readOnlyHint", false, false),
        ("destructiveHint", true, true),
        ("idempotentHint", false, false),
        ("openWorldHint", true, true),
    ] {
        let of = |it: &Definition| {
            let said = it.annotations.as_ref().and_then(|all| all.get(hint)?.as_bool());
            said.unwrap_or(unsaid)
        };
        let was = of(before);
        let is = of(now);
        if was != is {
            let class = if is == worse { Class::Breaking } else { Class::Widening };
            let at = format!("annotations/{hint}");
            all.push(Difference { class, at, what: format!("was {was} and is {is}") });
        }
    }
    let known = all.iter().any(|difference| difference.at.starts_with("annotations/"));
    if before.annotations != now.annotations && !known {
        let what = "are others".to_owned();
        all.push(Difference { class: Class::Cosmetic, at: "annotations".into(), what });
    }
}

fn instruction_like(before: &[&str], now: &Definition, all: &mut Vec<Difference>) {
    let nothing = Value::Null;
    let part = |value: &'_ Option<Value>| value.clone().unwrap_or_else(|| nothing.clone());
    let annotations = part(&now.annotations);
    let output = part(&now.output_schema);
    let parts = [
        ("name", vec![now.name.as_str()]),
        ("title", now.title.as_deref().into_iter().collect()),
        ("description", now.description.as_deref().into_iter().collect()),
        ("annotations", instructions::texts(&annotations)),
        ("input_schema", instructions::texts(&now.input_schema)),
        ("output_schema", instructions::texts(&output)),
    ];
    for (at, texts) in parts {
        if let Some(what) = instructions::added(before, &texts) {
            let what = unseen::line(&what);
            all.push(Difference { class: Class::InstructionLike, at: at.into(), what });
        }
    }
}

/// Returns all texts of `definition`.
fn said(definition: &Definition) -> Vec<&str> {
    // Metadata is for the client's display and never reaches a model.
    let Definition { name, title, description, annotations, input_schema, output_schema, meta: _ } =
        definition;
    let texts = [Some(name), title.as_ref(), description.as_ref()];
    let mut all: Vec<_> = texts.into_iter().flatten().map(String::as_str).collect();
    let values = [annotations.as_ref(), Some(input_schema), output_schema.as_ref()];
    all.extend(values.into_iter().flatten().flat_map(instructions::texts));
    all
}
