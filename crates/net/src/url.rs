//! Parses URLs of HTTP servers, and returns their parts.

use std::fmt;

use http::Uri;
use http::uri::PathAndQuery;

use crate::addresses::is_loopback_host;

/// An `http` or `https` URL with a host and without a user name or password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpUrl(Uri);

/// The reason why a text is not an [`HttpUrl`]. The message is a phrase such as "has no host",
/// which can follow "it" in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpUrlError {
    /// The text is not a URL. The value is the reason.
    NotAUrl(String),
    /// The URL has no scheme, or a scheme other than `http` and `https`.
    OtherScheme,
    /// The URL has no host.
    NoHost,
    /// The URL has a user name or a password.
    UserInfo,
    /// The base URL has a query, so that no path can be appended.
    Query,
    /// The path to append is invalid. The values are the path and the reason.
    InvalidPath(String, String),
}

impl fmt::Display for HttpUrlError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAUrl(why) => write!(out, "is not a URL: {why}"),
            Self::OtherScheme => out.write_str("does not start with `http://` or `https://`"),
            Self::NoHost => out.write_str("has no host"),
            Self::UserInfo => out.write_str("contains a user name or password"),
            Self::Query => out.write_str("has a query"),
            Self::InvalidPath(path, why) => write!(out, "has an invalid path `{path}`: {why}"),
        }
    }
}

impl std::error::Error for HttpUrlError {}

impl TryFrom<Uri> for HttpUrl {
    type Error = HttpUrlError;

    fn try_from(uri: Uri) -> Result<Self, HttpUrlError> {
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(HttpUrlError::OtherScheme);
        }
        let authority = uri.authority().filter(|authority| !authority.host().is_empty());
        if authority.ok_or(HttpUrlError::NoHost)?.as_str().contains('@') {
            return Err(HttpUrlError::UserInfo);
        }
        Ok(Self(uri))
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, out)
    }
}

impl HttpUrl {
    /// Parses `text`, without white space around it and without a fragment.
    ///
    /// # Errors
    /// `text` is not an `http` or `https` URL, or contains a user name or password.
    pub fn parse(text: &str) -> Result<Self, HttpUrlError> {
        let uri: Result<Uri, _> = text.trim().parse();
        uri.map_err(|err| HttpUrlError::NotAUrl(err.to_string()))?.try_into()
    }

    /// Parses `base`, the URL of an API, and appends `path` to its path.
    ///
    /// # Errors
    /// `base` is not an `http` or `https` URL, contains a user name or password, or has a query.
    pub fn parse_below(base: &str, path: &str) -> Result<Self, HttpUrlError> {
        let base = Self::parse(base)?;
        if base.has_query() {
            return Err(HttpUrlError::Query);
        }
        let path = format!("{}{path}", base.trimmed_path());
        match path.parse::<PathAndQuery>() {
            Ok(path) => Self::parse(&format!("{}{path}", base.origin())),
            Err(err) => Err(HttpUrlError::InvalidPath(path, err.to_string())),
        }
    }

    /// Resolves `reference` against this URL (RFC 3986). The result has no fragment.
    ///
    /// # Errors
    /// The result is not an `http` or `https` URL, or contains a user name or password.
    pub fn resolve(&self, reference: &str) -> Result<Self, HttpUrlError> {
        let reference = reference.trim().split('#').next().unwrap_or_default();
        let (path, query) = match reference.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (reference, None),
        };
        let with_query = |path: &str, query: Option<&str>| {
            let query = query.map(|query| format!("?{query}")).unwrap_or_default();
            format!("{}{path}{query}", self.origin())
        };
        let has_scheme = path.split('/').next().is_some_and(|first| first.contains(':'));
        let url = if has_scheme {
            reference.to_owned()
        } else if path.starts_with("//") {
            format!("{}:{reference}", self.scheme())
        } else if path.is_empty() {
            with_query(self.path(), query.or(self.0.query()))
        } else if path.starts_with('/') {
            with_query(&without_dot_segments(path), query)
        } else {
            let folder = self.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            with_query(&without_dot_segments(&format!("{folder}/{path}")), query)
        };
        Self::parse(&url)
    }

    /// Returns the URL as the [`Uri`] of an HTTP request.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// Returns true if the scheme of the URL is `https`.
    pub fn is_secure(&self) -> bool {
        self.scheme() == "https"
    }

    /// Returns true if nobody on the network can read requests: the URL is `https`, or the host is
    /// loopback.
    pub fn is_encrypted_or_loopback(&self) -> bool {
        self.is_secure() || is_loopback_host(self.host())
    }

    /// Returns the host of the URL. An IPv6 address is returned without brackets.
    pub fn host(&self) -> &str {
        self.0.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns the port of the URL, or the default port of its scheme.
    pub fn port(&self) -> u16 {
        self.0.port_u16().unwrap_or(if self.is_secure() { 443 } else { 80 })
    }

    /// Returns the host and the port as they are written in the URL.
    pub fn authority(&self) -> &str {
        self.0.authority().map_or("", |authority| authority.as_str())
    }

    /// Returns the scheme, the host and the port as they are written in the URL.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme(), self.authority())
    }

    /// Returns the path of the URL. An empty path is returned as `/`.
    pub fn path(&self) -> &str {
        self.0.path()
    }

    /// Returns the path of the URL without slashes at its end.
    pub fn trimmed_path(&self) -> &str {
        self.path().trim_end_matches('/')
    }

    /// Returns true if the URL has a query.
    pub fn has_query(&self) -> bool {
        self.0.query().is_some()
    }

    /// Returns the URL without its query, which may contain secrets.
    pub fn without_query(&self) -> String {
        format!("{}{}", self.origin(), self.path())
    }

    /// Returns the well-known URL (RFC 8615) of the document `name`. The path of this URL becomes
    /// the end of the returned URL's path.
    pub fn well_known(&self, name: &str) -> String {
        format!("{}/.well-known/{name}{}", self.origin(), self.trimmed_path())
    }

    /// Returns true if both URLs have the same scheme, host and port.
    pub fn is_same_origin(&self, other: &Self) -> bool {
        self.scheme() == other.scheme()
            && self.host().eq_ignore_ascii_case(other.host())
            && self.port() == other.port()
    }

    fn scheme(&self) -> &str {
        self.0.scheme_str().unwrap_or_default()
    }
}

/// Removes `.` and `..` from an absolute path.
fn without_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                // A dot at the end stands for a folder.
                kept.extend(is_last.then_some(""));
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url(text: &str) -> HttpUrl {
        HttpUrl::parse(text).expect("a URL")
    }

    #[test]
    fn a_url_is_parsed_into_its_parts() {
        let parsed = url(" https://[::1]:8443/mcp/?a=b#top ");
        assert!(parsed.is_secure() && parsed.has_query());
        assert_eq!((parsed.host(), parsed.port()), ("::1", 8443));
        assert_eq!(parsed.to_string(), "https://[::1]:8443/mcp/?a=b");
        assert_eq!(parsed.without_query(), "https://[::1]:8443/mcp/");
        assert_eq!((parsed.path(), parsed.trimmed_path()), ("/mcp/", "/mcp"));
        assert_eq!(parsed.well_known("x"), "https://[::1]:8443/.well-known/x/mcp");
        let parsed = url("HTTP://a.example");
        assert_eq!((parsed.host(), parsed.port(), parsed.path()), ("a.example", 80, "/"));
        assert_eq!(parsed.to_string(), "http://a.example/");
        assert_eq!(parsed.well_known("x"), "http://a.example/.well-known/x");
    }

    #[test]
    fn a_text_that_is_not_an_http_url_is_refused_with_the_reason() {
        for (text, expected) in [
            ("", "is not a URL"),
            ("http://a b", "is not a URL"),
            ("ftp://a", "does not start with"),
            ("mailto:a", ""),
            ("file:///etc/passwd", ""),
            ("javascript:alert(1)", ""),
            ("a.example", "does not start with"),
            ("/a", "does not start with"),
            ("http://:80/", ""),
            ("http://u:p@a/", "user name or password"),
            ("https://u@a", "user name or password"),
        ] {
            let why = HttpUrl::parse(text).expect_err("no URL").to_string();
            assert!(why.contains(expected), "{text}: {why}");
        }
    }

    #[test]
    fn a_path_is_appended_to_a_base_url_without_a_query() {
        let below = |base| HttpUrl::parse_below(base, "/embeddings").map(|url| url.to_string());
        assert_eq!(below("http://a/v1/"), Ok("http://a/v1/embeddings".to_owned()));
        assert_eq!(below("http://a:1"), Ok("http://a:1/embeddings".to_owned()));
        assert_eq!(below("http://a/v1?key=1"), Err(HttpUrlError::Query));
        let odd = HttpUrl::parse_below("http://a", "/ b");
        assert!(matches!(odd, Err(HttpUrlError::InvalidPath(..))), "{odd:?}");
    }

    #[test]
    fn a_reference_is_resolved_against_the_url_of_its_document() {
        let base = url("https://a.example:8443/app/v1/sse?x=1");
        let at = |path: &str| format!("https://a.example:8443{path}");
        for (reference, expected) in [
            ("messages", at("/app/v1/messages")),
            ("./messages?id=2#top", at("/app/v1/messages?id=2")),
            ("../messages/", at("/app/messages/")),
            ("../../../x/./y/..", at("/x/")),
            ("/messages?next=/a/../b", at("/messages?next=/a/../b")),
            ("?id=2", at("/app/v1/sse?id=2")),
            ("", at("/app/v1/sse?x=1")),
            ("//b.example/m", "https://b.example/m".to_owned()),
            ("http://b.example/m", "http://b.example/m".to_owned()),
        ] {
            let resolved = base.resolve(reference).map(|url| url.to_string());
            assert_eq!(resolved, Ok(expected), "{reference}");
        }
        for invalid in ["mailto:a", "a b", "//u:p@a.example:8443/", "ftp://a.example:8443/"] {
            assert!(base.resolve(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn origins_differ_by_scheme_host_or_port() {
        assert!(url("https://A.example/a").is_same_origin(&url("https://a.example:443/b")));
        assert!(url("http://[::1]:80").is_same_origin(&url("http://[::1]/x")));
        for other in ["http://a.example", "https://b.example", "https://a.example:8443"] {
            assert!(!url("https://a.example").is_same_origin(&url(other)), "{other}");
        }
    }

    #[test]
    fn requests_are_private_over_https_or_to_loopback() {
        for private in ["https://a.example", "http://localhost:8/", "http://[::1]/keys"] {
            assert!(url(private).is_encrypted_or_loopback(), "{private}");
        }
        for readable in ["http://a.example", "http://a.localhost", "http://169.254.169.254/"] {
            assert!(!url(readable).is_encrypted_or_loopback(), "{readable}");
        }
    }

    proptest! {
        #[test]
        fn any_reference_resolves_to_a_url_that_parses_again(
            reference in "[a-z./?#:@%\\[\\] ]{0,24}",
        ) {
            if let Ok(resolved) = url("https://a.example/b/c?d").resolve(&reference) {
                prop_assert_eq!(&HttpUrl::parse(&resolved.to_string()), &Ok(resolved.clone()));
                prop_assert!(!resolved.authority().contains('@'));
            }
        }
    }
}
