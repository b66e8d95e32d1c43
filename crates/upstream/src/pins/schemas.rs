//! Compares two JSON schemas and classes the differences by their direction.

use std::collections::BTreeSet;

use serde_json::Value;

use super::differences::{Class, Difference};
use super::unseen;

/// Deepest level that is compared. A difference further down is reported at this level.
const DEEP: usize = 32;

/// Keywords that do not constrain values.
const WORDS: [&str; 8] =
    ["title", "description", "examples", "$comment", "deprecated", "$schema", "$id", "format"];
/// Lower bounds: a higher value is stricter.
const FLOORS: [&str; 6] =
    ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"];
/// Upper bounds: a lower value is stricter.
const CEILINGS: [&str; 6] =
    ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"];
/// Keywords that hold a schema per name.
const NAMED: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords that hold one schema.
const ONE: [&str; 2] = ["items", "propertyNames"];
/// Keywords that hold an array of schemas.
const SEVERAL: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];

/// Direction of the data that a schema describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Input of the tool. A stricter schema is breaking.
    Input,
    /// Output of the tool. A looser schema is breaking.
    Output,
}

/// Adds the differences between `before` and `now` to `all`.
pub(super) fn compare(side: Side, before: &Value, now: &Value, all: &mut Vec<Difference>) {
    let at = match side {
        Side::Input => "input_schema",
        Side::Output => "output_schema",
    };
    Comparing { side, all }.schemas(at, before, now, 0);
}

struct Comparing<'a> {
    side: Side,
    all: &'a mut Vec<Difference>,
}

impl Comparing<'_> {
    fn told(&mut self, class: Class, at: &str, what: impl Into<String>) {
        let at = unseen::line(at);
        let what = unseen::line(&what.into());
        self.all.push(Difference { class, at, what });
    }

    /// Adds a difference that makes the schema stricter.
    fn tighter(&mut self, at: &str, what: impl Into<String>) {
        let class = if self.side == Side::Input { Class::Breaking } else { Class::Widening };
        self.told(class, at, what);
    }

    /// Adds a difference that makes the schema looser.
    fn looser(&mut self, at: &str, what: impl Into<String>) {
        let class = if self.side == Side::Input { Class::Widening } else { Class::Breaking };
        self.told(class, at, what);
    }

    fn schemas(&mut self, at: &str, before: &Value, now: &Value, deep: usize) {
        if before == now {
            return;
        }
        let (Value::Object(before), Value::Object(now)) = (before, now) else {
            return match (takes_any(before), takes_any(now)) {
                (true, _) => self.tighter(at, "took anything"),
                (_, true) => self.looser(at, "takes anything"),
                _ => self.told(Class::Breaking, at, "is another"),
            };
        };
        if deep >= DEEP {
            return self.told(Class::Breaking, at, "is another");
        }
        let words: BTreeSet<_> = before.keys().chain(now.keys()).collect();
        for word in words {
            let was = before.get(word);
            let is = now.get(word);
            if was != is {
                self.word(&format!("{at}/{}", escaped(word)), word, [was, is], deep);
            }
        }
    }

    fn word(&mut self, at: &str, word: &str, [was, is]: [Option<&Value>; 2], deep: usize) {
        match word {
            _ if WORDS.contains(&word) => self.told(Class::Cosmetic, at, "says something else"),
            _ if NAMED.contains(&word) => self.named(at, word, was, is, deep),
            "required" => self.required(at, was, is),
            "type" => self.choices(at, types(was), types(is)),
            "enum" | "const" => self.choices(at, values(word, was), values(word, is)),
            "additionalProperties" | "unevaluatedProperties" => self.others(at, was, is, deep),
            _ if FLOORS.contains(&word) => self.bound(at, was, is, |was, is| is > was),
            _ if CEILINGS.contains(&word) => self.bound(at, was, is, |was, is| is < was),
            _ => match (was, is) {
                (Some(was), Some(is)) if ONE.contains(&word) => {
                    self.schemas(at, was, is, deep + 1);
                }
                (Some(Value::Array(was)), Some(Value::Array(is)))
                    if SEVERAL.contains(&word) && was.len() == is.len() =>
                {
                    for (index, (was, is)) in was.iter().zip(is).enumerate() {
                        self.schemas(&format!("{at}/{index}"), was, is, deep + 1);
                    }
                }
                (None, _) if word != "default" => self.tighter(at, "is asked for now"),
                (_, None) if word != "default" => self.looser(at, "is asked for no more"),
                _ => self.told(Class::Breaking, at, "is another"),
            },
        }
    }

    fn named(
        &mut self,
        at: &str,
        word: &str,
        was: Option<&Value>,
        is: Option<&Value>,
        deep: usize,
    ) {
        let all: BTreeSet<_> = names(was).chain(names(is)).collect();
        for name in all {
            let at = format!("{at}/{}", escaped(&name));
            match (was.and_then(|was| was.get(&name)), is.and_then(|is| is.get(&name))) {
                (Some(was), Some(is)) => self.schemas(&at, was, is, deep + 1),
                // `required` reports whether the property is mandatory.
                (None, Some(_)) if word == "properties" => {
                    self.told(Class::Widening, &at, "is new");
                }
                (Some(_), None) if word == "properties" => {
                    self.told(Class::Breaking, &at, "is gone");
                }
                // The references to the definition differ, too.
                _ => self.told(Class::Widening, &at, "came or went"),
            }
        }
    }

    fn required(&mut self, at: &str, was: Option<&Value>, is: Option<&Value>) {
        let was = values("enum", was);
        let is = values("enum", is);
        let was = was.unwrap_or_default();
        let is = is.unwrap_or_default();
        for name in is.difference(&was) {
            self.tighter(at, format!("{name} has to be there"));
        }
        for name in was.difference(&is) {
            self.looser(at, format!("{name} need not be there"));
        }
    }

    /// Compares sets of allowed values. `None` allows any.
    fn choices(&mut self, at: &str, was: Option<BTreeSet<String>>, is: Option<BTreeSet<String>>) {
        match (was, is) {
            (None, _) => self.tighter(at, "is asked for now"),
            (_, None) => self.looser(at, "is asked for no more"),
            (Some(was), Some(is)) => {
                let list = |all: Vec<&String>| {
                    all.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ")
                };
                let less = was.difference(&is).collect::<Vec<_>>();
                let more = is.difference(&was).collect::<Vec<_>>();
                if !less.is_empty() {
                    self.tighter(at, format!("is no more {}", list(less)));
                }
                if !more.is_empty() {
                    self.looser(at, format!("may be {}", list(more)));
                }
            }
        }
    }

    /// Compares the rules for properties that are not named.
    fn others(&mut self, at: &str, was: Option<&Value>, is: Option<&Value>, deep: usize) {
        let any = Value::Bool(true);
        let was = was.unwrap_or(&any);
        let is = is.unwrap_or(&any);
        match (was, is) {
            (Value::Bool(false), _) => self.looser(at, "others are taken now"),
            (_, Value::Bool(false)) => self.tighter(at, "others are taken no more"),
            _ => self.schemas(at, was, is, deep + 1),
        }
    }

    fn bound(
        &mut self,
        at: &str,
        was: Option<&Value>,
        is: Option<&Value>,
        tighter: fn(f64, f64) -> bool,
    ) {
        let number = |value: Option<&Value>| value.and_then(Value::as_f64);
        match (was, number(was), is, number(is)) {
            (_, Some(before), _, Some(now)) => {
                let what = format!("was {before} and is {now}");
                match tighter(before, now) {
                    true => self.tighter(at, what),
                    false => self.looser(at, what),
                }
            }
            (None, ..) => self.tighter(at, "is asked for now"),
            (_, _, None, _) => self.looser(at, "is asked for no more"),
            _ => self.told(Class::Breaking, at, "is another"),
        }
    }
}

/// Returns the member names of `of`.
fn names(of: Option<&Value>) -> impl Iterator<Item = String> {
    of.and_then(Value::as_object).into_iter().flat_map(|all| all.keys().cloned())
}

fn takes_any(schema: &Value) -> bool {
    *schema == Value::Bool(true) || schema.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Returns the allowed types. `number` includes `integer`.
fn types(of: Option<&Value>) -> Option<BTreeSet<String>> {
    let mut types = match of? {
        Value::String(one) => BTreeSet::from([one.clone()]),
        Value::Array(several) => {
            several.iter().filter_map(|one| Some(one.as_str()?.to_owned())).collect()
        }
        _ => return None,
    };
    if types.contains("number") {
        types.insert("integer".to_owned());
    }
    Some(types)
}

fn values(word: &str, of: Option<&Value>) -> Option<BTreeSet<String>> {
    match (word, of?) {
        ("const", one) => Some(BTreeSet::from([one.to_string()])),
        (_, Value::Array(several)) => Some(several.iter().map(Value::to_string).collect()),
        _ => None,
    }
}

/// Escapes `name` for a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
