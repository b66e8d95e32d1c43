//! Parses the URLs of upstreams.

use http::Uri;

use crate::world::NetworkAddress;

/// Converts the URL of a WebSocket into the URL of its HTTP handshake. Returns other URLs
/// unchanged.
pub(crate) fn http_url(url: &str) -> String {
    match url.trim().split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("ws") => format!("http://{rest}"),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("wss") => format!("https://{rest}"),
        Some(_) | None => url.to_owned(),
    }
}

/// Parses `url` into its address and URI.
///
/// # Errors
///
/// Returns an error if the URL is invalid.
pub(crate) fn parse_address(
    url: &str,
    private_network: bool,
) -> Result<(NetworkAddress, Uri), String> {
    let uri: Uri = url.trim().parse().map_err(|err| format!("`{url}` is not a URL: {err}"))?;
    let is_secure = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        Some(_) | None => {
            return Err(format!("`{url}` does not start with `http://` or `https://`"));
        }
    };
    let authority = uri.authority().ok_or_else(|| format!("`{url}` has no host"))?;
    if authority.as_str().contains('@') {
        return Err("the URL contains a password; set it in `headers` instead".to_owned());
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let address = NetworkAddress {
        host,
        port,
        secure: is_secure,
        private_network,
        may_be_local: private_network,
    };
    Ok((address, uri))
}

/// Resolves `reference` against the absolute URL `base` (RFC 3986), without its fragment.
///
/// # Errors
///
/// Returns the reason if the result is not a URL.
pub(crate) fn resolve_reference(base: &Uri, reference: &str) -> Result<Uri, String> {
    let reference = reference.trim().split('#').next().unwrap_or_default();
    let scheme = base.scheme_str().unwrap_or("http");
    let origin = || format!("{scheme}://{}", base.authority().map_or("", |it| it.as_str()));
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (reference, None),
    };
    let has_scheme = path.split('/').next().is_some_and(|first| first.contains(':'));
    let url = if has_scheme {
        reference.to_owned()
    } else if path.starts_with("//") {
        format!("{scheme}:{reference}")
    } else if path.is_empty() {
        let query = query.or(base.query()).map(|query| format!("?{query}")).unwrap_or_default();
        format!("{}{}{query}", origin(), base.path())
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        let path = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("{folder}/{path}"),
        };
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        format!("{}{}{query}", origin(), without_dot_segments(&path))
    };
    let uri: Uri = url.parse().map_err(|err| format!("`{url}` is not a URL: {err}"))?;
    match uri.scheme() {
        Some(_) => Ok(uri),
        None => Err(format!("`{url}` is not a URL")),
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

/// Returns true if two URLs have the same scheme, host and port.
pub(crate) fn is_same_origin(one: &Uri, other: &Uri) -> bool {
    let origin = |uri: &Uri| {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        Some((scheme, uri.host()?.to_ascii_lowercase(), port))
    };
    origin(one).is_some() && origin(one) == origin(other)
}

/// Returns the path and query of `uri`, as a request names them.
pub(crate) fn request_path(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned();
    path.map_or_else(|| Uri::from_static("/"), Uri::from)
}

/// Returns `uri` without its query, which may contain secrets.
pub(crate) fn without_query(uri: &Uri) -> String {
    uri.to_string().split('?').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed_into_an_address_and_a_path() {
        let (address, uri) =
            parse_address("https://[::1]:8443/mcp?a=b", false).expect("an address");
        assert_eq!((address.host.as_str(), address.port, address.secure), ("::1", 8443, true));
        assert_eq!(uri.path_and_query().map(|it| it.as_str()), Some("/mcp?a=b"));
        assert_eq!(http_url("wss://news.example/ws"), "https://news.example/ws");
        assert_eq!(http_url("WS://a"), "http://a");
        assert_eq!(http_url("http://news.example"), "http://news.example");
        for invalid in ["ftp://a", "a", "http://u:p@a/"] {
            assert!(parse_address(invalid, false).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_reference_is_resolved_against_the_url_of_its_document() {
        let base: Uri = "https://a.example:8443/app/v1/sse?x=1".parse().expect("a URL");
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
            let resolved = resolve_reference(&base, reference).map(|uri| uri.to_string());
            assert_eq!(resolved, Ok(expected), "{reference}");
        }
        for invalid in ["mailto:a", "a b"] {
            assert!(resolve_reference(&base, invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn origins_differ_by_scheme_host_or_port() {
        let is_same = |one: &str, other: &str| {
            is_same_origin(&one.parse().expect("a URL"), &other.parse().expect("a URL"))
        };
        assert!(is_same("https://A.example/a", "https://a.example:443/b"));
        assert!(is_same("http://[::1]:80", "http://[::1]/x"));
        for other in ["http://a.example", "https://b.example", "https://a.example:8443", "/a"] {
            assert!(!is_same("https://a.example", other), "{other}");
        }
    }
}
