//! What differs between what someone agreed to of upstreams and what there is, and how bad that is.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Accepted, Definition, instructions, schemas, unseen};

/// How a difference is to be taken, from the mildest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The same is said in other words.
    Cosmetic,
    /// What went before goes still, and more.
    Widening,
    /// What went before may go no more.
    Breaking,
    /// It speaks to the model rather than of the tool.
    InstructionLike,
}

impl Class {
    /// Its name.
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
    /// How it is to be taken.
    pub class: Class,
    /// Which part, as `description`, with a JSON pointer into it.
    pub at: String,
    /// What is otherwise there.
    pub what: String,
}

/// What became of a tool.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// It is new.
    Added(Box<Definition>),
    /// It is gone.
    Removed,
    /// It was one thing and is another.
    Changed(Box<[Definition; 2]>),
}

impl Change {
    /// What became of a tool that was as `before`, if it was there, and is as `now`; nothing if it
    /// is the same.
    pub(crate) fn of(before: Option<&Definition>, now: &Definition) -> Option<Self> {
        match before {
            None => Some(Self::Added(Box::new(now.clone()))),
            Some(before) if before.hash() == now.hash() => None,
            Some(before) => Some(Self::Changed(Box::new([before.clone(), now.clone()]))),
        }
    }

    /// What differs, the worst first.
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

    /// How bad the worst of it is.
    pub fn class(&self) -> Class {
        let all = self.differences();
        all.iter().map(|difference| difference.class).max().unwrap_or(Class::Cosmetic)
    }
}

/// What became of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct Became {
    /// What it said of how it is used well, and what it says now, if that is another thing.
    pub instructions: Option<[Option<String>; 2]>,
    /// What became of its tools, by their names, of those of which anything did.
    pub tools: BTreeMap<String, Change>,
}

impl Became {
    /// What became of an upstream that was as `before` and is as `now`; nothing if it is the same.
    pub fn of(before: &Accepted, now: &Accepted) -> Option<Self> {
        let both = [before, now].map(|it| it.instructions.clone());
        let became = Self {
            instructions: (both[0] != both[1]).then_some(both),
            tools: changes(&before.tools, now.tools.values()),
        };
        (became.instructions.is_some() || !became.tools.is_empty()).then_some(became)
    }
}

/// What became of each tool of an upstream since it had those of `before`, by their names.
pub(super) fn changes<'d>(
    before: &BTreeMap<String, Definition>,
    now: impl IntoIterator<Item = &'d Definition>,
) -> BTreeMap<String, Change> {
    let gone = before.keys().map(|name| (name.clone(), Change::Removed));
    let mut all: BTreeMap<_, _> = gone.collect();
    for now in now {
        match Change::of(before.get(&now.name), now) {
            Some(change) => _ = all.insert(now.name.clone(), change),
            // Of one that is there twice it is told what differs, whichever comes first.
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
        // A page that is shown, or who may call it, may be another.
        let (at, what) = ("meta".to_owned(), "is another".to_owned());
        all.push(Difference { class: Class::Breaking, at, what });
    }
    instruction_like(&said(before), now, &mut all);
    if all.is_empty() {
        let (at, what) = ("tool".to_owned(), "says the same in another way".to_owned());
        all.push(Difference { class: Class::Cosmetic, at, what });
    }
    all.sort_by_key(|difference| std::cmp::Reverse(difference.class));
    all
}

/// What it is said to do to the world: worse breaks what was agreed to, milder has rules let it
/// through that did not.
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
        let (was, is) = (of(before), of(now));
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
    let (annotations, output) = (part(&now.annotations), part(&now.output_schema));
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

/// All that `definition` says.
fn said(definition: &Definition) -> Vec<&str> {
    // What is for whoever shows the tool, no model is told.
    let Definition { name, title, description, annotations, input_schema, output_schema, meta: _ } =
        definition;
    let texts = [Some(name), title.as_ref(), description.as_ref()];
    let mut all: Vec<_> = texts.into_iter().flatten().map(String::as_str).collect();
    let values = [annotations.as_ref(), Some(input_schema), output_schema.as_ref()];
    all.extend(values.into_iter().flatten().flat_map(instructions::texts));
    all
}
