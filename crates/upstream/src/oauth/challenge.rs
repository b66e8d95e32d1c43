//! Parses the `WWW-Authenticate` header of an upstream.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// A `Bearer` challenge in the `WWW-Authenticate` header of an upstream's refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BearerChallenge {
    /// URL of the upstream's protected resource metadata (RFC 9728).
    pub(crate) resource_metadata: Option<String>,
    /// Scopes that a token for the upstream needs.
    pub(crate) scopes: Vec<String>,
    pub(crate) error: Option<String>,
}

impl BearerChallenge {
    /// Parses the `Bearer` challenge in `text`, which may contain several challenges. Returns an
    /// empty challenge if there is none.
    pub(crate) fn parse(text: &str) -> Self {
        let mut read = Self::default();
        let mut is_bearer = false;
        for part in parts(text) {
            let part = part.trim();
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name.trim(), Some(value.trim())),
                None => (part, None),
            };
            // A scheme precedes its first parameter, or stands alone.
            let name = match name.rsplit_once(char::is_whitespace) {
                Some((scheme, name)) => {
                    is_bearer = scheme.trim().eq_ignore_ascii_case("bearer");
                    name
                }
                None if value.is_none() => {
                    is_bearer = name.eq_ignore_ascii_case("bearer");
                    continue;
                }
                None => name,
            };
            let (true, Some(value)) = (is_bearer, value) else { continue };
            let value = unquoted(value);
            match name.to_ascii_lowercase().as_str() {
                "resource_metadata" => read.resource_metadata = Some(value),
                "scope" => read.scopes = value.split_whitespace().map(str::to_owned).collect(),
                "error" => read.error = Some(value),
                _ => {}
            }
        }
        read
    }

    /// Returns true if the upstream refused a valid token because it lacks a scope.
    pub(crate) fn lacks_scope(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope")
    }
}

/// Splits the header value `text` at commas outside of quotes.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let mut escaped = false;
    text.split(move |c| {
        if escaped {
            escaped = false;
            return false;
        }
        match c {
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        c == ',' && !quoted
    })
}

fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"').and_then(|it| it.strip_suffix('"')) else {
        return value.to_owned();
    };
    let mut plain = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.extend(chars.next()),
            c => plain.push(c),
        }
    }
    plain
}

/// Returns all `WWW-Authenticate` values of `headers`, joined by commas, or `None` if there are
/// none.
pub(crate) fn challenges(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|it| it.to_str().ok());
    let all: Vec<_> = all.collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bearer_challenge_is_found_among_others() {
        let text = r#"Basic realm="a, b", Bearer error="insufficient_scope", scope="a b",
            resource_metadata="https://x.example/a\"b""#;
        let read = BearerChallenge::parse(text);
        assert_eq!(read.resource_metadata.as_deref(), Some("https://x.example/a\"b"));
        assert_eq!(read.scopes, ["a", "b"]);
        assert!(read.lacks_scope());
    }

    #[test]
    fn parameters_of_another_scheme_are_ignored() {
        let read = BearerChallenge::parse(r#"Bearer, Digest scope="a", resource_metadata="b""#);
        assert_eq!(read, BearerChallenge::default());
        assert_eq!(BearerChallenge::parse("bearer scope=a").scopes, ["a"]);
    }

    proptest! {
        #[test]
        fn any_text_can_be_parsed(text in ".{0,200}") {
            BearerChallenge::parse(&text);
        }
    }
}
