//! Describes errors in the YAML of a front matter for the author of the file.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error, Location, Spanned};

/// Keys of a front matter, each with the requirement for its value, such as `must be a list`.
pub(crate) type YamlValueRequirements = &'static [(&'static str, &'static str)];

/// The minimum similarity (0 to 1) to a known key at which an unknown key is reported as a
/// misspelling.
const SIMILARITY_MIN: f64 = 0.55;

/// Describes `err`, an error in the front matter `head`. If the value of a key is invalid, the
/// description contains the requirement for that key in `requirements`.
pub(super) fn describe_error(
    err: &Error,
    head: &str,
    requirements: YamlValueRequirements,
) -> String {
    match err {
        Error::SerdeUnknownField { field, expected, .. } => unknown_key_message(field, expected),
        Error::SerdeMissingField { field, .. } => format!("`{field}` is missing"),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("`{key}` appears twice"),
        err => {
            let requirement =
                err.location().and_then(|place| requirement_at(head, place, requirements));
            requirement.unwrap_or_else(|| without_location(&err.to_string()))
        }
    }
}

fn unknown_key_message(key: &str, known: &[&str]) -> String {
    let similarity = |known: &&str| strsim::normalized_damerau_levenshtein(key, known);
    let near = known.iter().copied().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match near.filter(|near| similarity(near) > SIMILARITY_MIN) {
        Some(near) => format!("unknown key `{key}`; did you mean `{near}`?"),
        None => {
            let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
            format!("unknown key `{key}`; known keys: {}", known.join(", "))
        }
    }
}

/// Returns `message` without its line number, which would be wrong because it counts from the start
/// of the front matter.
fn without_location(message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    let message = message.split(" at line ").next().unwrap_or(message);
    // YAML reports this for `title: Tea: a guide`.
    let hint = message.starts_with("mapping values are not allowed");
    format!("{message}{}", if hint { "; put the value in quotes" } else { "" })
}

/// Returns the requirement for the value at the location `place` in the front matter `head`, such
/// as `` `tags` must be a list ``.
fn requirement_at(
    head: &str,
    place: Location,
    requirements: YamlValueRequirements,
) -> Option<String> {
    let node: Spanned<YamlNode> =
        serde_saphyr::from_str_with_options(head, super::options()).ok()?;
    let YamlNode::Keys(_) = &node.value else {
        return Some("the front matter is not a list of `key: value`".to_owned());
    };
    let key = key_at(&node, None, place)?;
    let (_, requirement) = requirements.iter().find(|(required, _)| *required == key)?;
    Some(format!("`{key}` {requirement}"))
}

/// Returns the key to which the value at the location `place` belongs. Searches `node` and its
/// children. `key` is the key of `node`.
fn key_at<'n>(
    node: &'n Spanned<YamlNode>,
    key: Option<&'n str>,
    place: Location,
) -> Option<&'n str> {
    let is_there =
        (node.referenced.line(), node.referenced.column()) == (place.line(), place.column());
    let inner = match &node.value {
        YamlNode::Text(_) | YamlNode::Other => None,
        YamlNode::List(items) => items.iter().find_map(|item| key_at(item, key, place)),
        // The location of a map is also that of its first key.
        YamlNode::Keys(_) if is_there => None,
        YamlNode::Keys(keys) => keys.iter().find_map(|(key, item)| key_at(item, Some(key), place)),
    };
    inner.or_else(|| key.filter(|_| is_there))
}

/// A YAML value of any type, with the locations of the values inside it.
enum YamlNode {
    Text(String),
    List(Vec<Spanned<YamlNode>>),
    Keys(Vec<(String, Spanned<YamlNode>)>),
    Other,
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlNodeVisitor)
    }
}

/// Serde visitor that deserializes any YAML value with its locations.
struct YamlNodeVisitor;

impl<'de> Visitor<'de> for YamlNodeVisitor {
    type Value = YamlNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<YamlNode, E> {
        Ok(YamlNode::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlNode, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(YamlNode::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<YamlNode, A::Error> {
        let mut keys = Vec::new();
        while let Some((key, value)) = entries.next_entry()? {
            if let YamlNode::Text(key) = key {
                keys.push((key, value));
            }
        }
        Ok(YamlNode::Keys(keys))
    }
}
