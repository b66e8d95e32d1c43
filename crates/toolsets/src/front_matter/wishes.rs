//! Describes errors in front matter YAML for the author of the file.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error, Location, Spanned};

/// The requirement for each key's value, such as `must be a list`.
pub(crate) type Wishes = &'static [(&'static str, &'static str)];

/// The lowest similarity (0 to 1) at which an unknown key is reported as a misspelled one.
const ALIKE: f64 = 0.55;

/// Describes `err` in the front matter `head`. An error about a key's value uses the text in
/// `wishes`.
pub(super) fn told(err: &Error, head: &str, wishes: Wishes) -> String {
    match err {
        Error::SerdeUnknownField { field, expected, .. } => no_key(field, expected),
        Error::SerdeMissingField { field, .. } => format!("`{field}` is missing"),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("`{key}` stands twice"),
        err => {
            let wish = err.location().and_then(|place| wish(head, place, wishes));
            wish.unwrap_or_else(|| without_place(&err.to_string()))
        }
    }
}

fn no_key(key: &str, known: &[&str]) -> String {
    let likeness = |known: &&str| strsim::normalized_damerau_levenshtein(key, known);
    let near = known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match near.filter(|near| likeness(near) > ALIKE) {
        Some(near) => format!("`{key}` is no key here; did you mean `{near}`?"),
        None => {
            let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
            format!("`{key}` is no key here; there are {}", known.join(", "))
        }
    }
}

/// Returns `message` without its line number, which counts from the YAML and not from the file.
fn without_place(message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    let message = message.split(" at line ").next().unwrap_or(message);
    // YAML reports this for `title: Tea: a guide`.
    let hint = message.starts_with("mapping values are not allowed");
    format!("{message}{}", if hint { "; put the value in quotes" } else { "" })
}

/// Returns the requirement for the value at `place`.
fn wish(head: &str, place: Location, wishes: Wishes) -> Option<String> {
    let node: Spanned<Node> = serde_saphyr::from_str_with_options(head, super::options()).ok()?;
    let Node::Keys(_) = &node.value else {
        return Some("the front matter is no list of `key: value`".to_owned());
    };
    let key = key_of(&node, None, place)?;
    let (_, wish) = wishes.iter().find(|(wished, _)| *wished == key)?;
    Some(format!("`{key}` {wish}"))
}

/// Returns the key of the value at `place`, in `node` or its children. `key` is the key of `node`.
fn key_of<'n>(node: &'n Spanned<Node>, key: Option<&'n str>, place: Location) -> Option<&'n str> {
    let is_there =
        (node.referenced.line(), node.referenced.column()) == (place.line(), place.column());
    let inner = match &node.value {
        Node::Text(_) | Node::Other => None,
        Node::List(items) => items.iter().find_map(|item| key_of(item, key, place)),
        // The location of a map is also that of its first key.
        Node::Keys(_) if is_there => None,
        Node::Keys(keys) => keys.iter().find_map(|(key, item)| key_of(item, Some(key), place)),
    };
    inner.or_else(|| key.filter(|_| is_there))
}

/// Any YAML value, with the locations of the values inside it.
enum Node {
    Text(String),
    List(Vec<Spanned<Node>>),
    Keys(Vec<(String, Spanned<Node>)>),
    Other,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut keys = Vec::new();
        while let Some((key, value)) = entries.next_entry()? {
            if let Node::Text(key) = key {
                keys.push((key, value));
            }
        }
        Ok(Node::Keys(keys))
    }
}
