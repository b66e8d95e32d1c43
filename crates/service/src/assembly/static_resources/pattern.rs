//! Matches URIs against URI templates and extracts the variables.

use percent_encoding::percent_decode_str;

use super::UriTemplateVariables;

/// URI template with the expressions `{name}` and `{+name}` (RFC 6570, levels 1 and 2).
pub(super) struct UriPattern(Vec<UriPatternPart>);

/// A piece of a URI template: fixed text or a variable.
enum UriPatternPart {
    Literal(String),
    Variable {
        name: String,
        /// True for a variable written `{+name}`, whose value may contain reserved characters such
        /// as `/`.
        is_reserved: bool,
    },
}

impl UriPattern {
    /// Parses `template`, a URI template. The error describes the problem.
    pub(super) fn new(template: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after
                .split_once('}')
                .ok_or_else(|| format!("`{template}` has an unclosed `{{`"))?;
            let (reserved, name) = match name.strip_prefix('+') {
                Some(name) => (true, name),
                None => (false, name),
            };
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                return Err(format!(
                    "`{template}` has {{{name}}}; only {{name}} and {{+name}} are supported"
                ));
            }
            if !before.is_empty() {
                parts.push(UriPatternPart::Literal(before.to_owned()));
            }
            parts.push(UriPatternPart::Variable { name: name.to_owned(), is_reserved: reserved });
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(UriPatternPart::Literal(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// Returns the values of the template's variables in `uri`, or `None` if `uri` does not match.
    /// Each value is at least one character long, and earlier values are as long as possible.
    pub(super) fn match_uri(&self, uri: &str) -> Option<UriTemplateVariables> {
        // For each part, from last to first: the end of the part for every start from which the
        // rest of the URI matches. The time is linear in URI length times parts, for any URI.
        let text = uri.as_bytes();
        let mut ends: Vec<Vec<Option<usize>>> = Vec::with_capacity(self.0.len());
        let mut matches: Vec<bool> = (0..=text.len()).map(|at| at == text.len()).collect();
        for part in self.0.iter().rev() {
            let mut reach = vec![None; text.len() + 1];
            for at in (0..text.len()).rev() {
                reach[at] = match part {
                    UriPatternPart::Literal(literal) => {
                        let end = at + literal.len();
                        (text[at..].starts_with(literal.as_bytes()) && matches[end]).then_some(end)
                    }
                    UriPatternPart::Variable { is_reserved: reserved, .. }
                        if is_variable_byte(text[at], *reserved) =>
                    {
                        reach[at + 1].or_else(|| matches[at + 1].then_some(at + 1))
                    }
                    UriPatternPart::Variable { .. } => None,
                };
            }
            matches = reach.iter().map(Option::is_some).collect();
            ends.push(reach);
        }
        let mut variables = UriTemplateVariables::new();
        let mut at = 0;
        for (part, reach) in self.0.iter().zip(ends.iter().rev()) {
            let end = reach[at]?;
            if let UriPatternPart::Variable { name, .. } = part {
                let value = percent_decode_str(&uri[at..end]).decode_utf8().ok()?;
                variables.insert(name.clone(), value.into_owned());
            }
            at = end;
        }
        (at == text.len()).then_some(variables)
    }
}

/// Returns true if `byte` may occur in the value of a URI variable. If `reserved` is true, this
/// includes characters such as `/`.
fn is_variable_byte(byte: u8, reserved: bool) -> bool {
    let unreserved = byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte) || !byte.is_ascii();
    unreserved || (reserved && b":/?#[]@!$&'()*+,;=".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(template: &str, uri: &str) -> Option<Vec<String>> {
        let variables = UriPattern::new(template).expect("a template").match_uri(uri)?;
        Some(variables.into_values().collect())
    }

    #[test]
    fn a_uri_gives_the_variables_of_its_template() {
        let some = |values: &[&str]| Some(values.iter().map(ToString::to_string).collect());
        assert_eq!(read("test://{id}/data", "test://123/data"), some(&["123"]));
        assert_eq!(read("test://{id}/data", "test://1/2/data"), None);
        assert_eq!(read("test://{id}/data", "test:///data"), None);
        assert_eq!(read("file:///{+path}", "file:///a/b%20c.rs"), some(&["a/b c.rs"]));
        assert_eq!(read("x:{a}.{b}", "x:1.2.3"), some(&["1.2", "3"]));
        assert_eq!(read("x:{a}{b}", "x:12"), some(&["1", "2"]));
        assert_eq!(read("x:plain", "x:plain"), some(&[]));
        assert_eq!(read("x:{a}", "x:%ff"), None);
        assert_eq!(read("x:{a}", "x:ä"), some(&["ä"]));
    }

    #[test]
    fn a_long_uri_is_matched_in_linear_time() {
        let uri = format!("x:{}", "a.".repeat(100_000));
        assert_eq!(read("x:{a}.{b}.{c}.{d}!", &uri), None);
    }

    #[test]
    fn an_unsupported_template_is_refused() {
        for template in ["x:{a", "x:{?a}", "x:{}"] {
            assert!(UriPattern::new(template).is_err(), "{template}");
        }
    }
}
