//! Zyra's HTTP paths and query parameters.

use http::Method;
use percent_encoding::percent_decode_str;
use toolgate_contract::FrameMetadata;

/// The paths of Zyra's dialect on a listener that all dialects share. A path that ends in `/`
/// includes everything below it.
///
/// `/mcp` belongs to MCP, except for requests that [`is_zyra_probe`] matches.
pub(crate) const PATHS: &[&str] = OWN_PATHS.split_at(1).1;

/// The paths of Zyra's dialect on its own listener, including `/mcp`. This path must come first,
/// because [`PATHS`] leaves it out.
pub(crate) const OWN_PATHS: &[&str] = &[
    "/mcp",
    "/v1/mcp",
    "/v1/mcp/progress/",
    "/mcp/progress/",
    "/v1/jobs/",
    "/jobs/",
    "/v1/ws/mcp",
    "/ws/mcp",
    "/v1/ws/jobs/",
    "/ws/jobs/",
    "/v1/health",
    "/health",
];

/// Returns true if the request comes from a Zyra client that checks the path `/mcp`. An MCP client
/// sends a GET request there only for an event stream, which its `Accept` header names.
pub(crate) fn is_zyra_probe(head: &FrameMetadata) -> bool {
    let FrameMetadata::Http { method, path, .. } = head else { return false };
    let is_not_zyra = |value: &[u8]| {
        let accepted = String::from_utf8_lossy(value).to_ascii_lowercase();
        // A client that accepts HTML but not JSON is a browser.
        let is_browser = accepted.contains("text/html") && !accepted.contains("application/json");
        accepted.contains("text/event-stream") || (is_browser && method != Method::OPTIONS)
    };
    let mcp_headers = ["mcp-session-id", "mcp-protocol-version"];
    path == "/mcp"
        && matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS")
        && !head.header("accept").any(is_not_zyra)
        && !mcp_headers.iter().any(|name| head.header(name).next().is_some())
}

/// The endpoint that a path of Zyra's dialect names. Job ids are not validated.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ZyraRoute {
    /// Endpoint for discovery and JSON-RPC messages.
    Calls,
    /// Endpoint for the progress of a job as server-sent events, by the job's id.
    Progress(String),
    /// Endpoint for one job as JSON, by the job's id.
    Job(String),
    /// Endpoint for the download of the files that a job produced, by the job's id.
    Download(String),
    /// Endpoint for the list of a job's files, by the job's id.
    Manifest(String),
    /// Endpoint for JSON-RPC messages over a WebSocket.
    Talk,
    /// Endpoint for the events of a job over a WebSocket, by the job's id.
    Watch(String),
    /// Endpoint for the health check of the server.
    Health,
}

/// Parses `path` of Zyra's dialect, with or without the prefix `/v1`.
pub(crate) fn parse_path(path: &str) -> Option<ZyraRoute> {
    let path = path.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).unwrap_or(path);
    let segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    Some(match segments.as_slice() {
        ["mcp"] => ZyraRoute::Calls,
        ["mcp", "progress", id] => ZyraRoute::Progress(decode_segment(id)),
        ["jobs", id] => ZyraRoute::Job(decode_segment(id)),
        ["jobs", id, "download"] => ZyraRoute::Download(decode_segment(id)),
        ["jobs", id, "manifest"] => ZyraRoute::Manifest(decode_segment(id)),
        ["ws", "mcp"] => ZyraRoute::Talk,
        ["ws", "jobs", id] => ZyraRoute::Watch(decode_segment(id)),
        ["health"] => ZyraRoute::Health,
        _ => return None,
    })
}

/// Decodes a segment of a URL path. Segments are decoded after the split, so that `%2F` does not
/// split them. Invalid UTF-8 becomes a replacement character, which no job id contains.
fn decode_segment(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

/// Returns the value of the parameter `name` in a URL's `query`. A repeated parameter is an error.
pub(crate) fn single_query_value(query: &str, name: &str) -> Result<Option<String>, String> {
    let mut values =
        form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == name).map(|(_, v)| v);
    let first = values.next();
    if values.next().is_some() {
        return Err(format!("`{name}` is repeated"));
    }
    Ok(first.map(|value| value.into_owned()))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn every_served_path_is_parsed() {
        for path in PATHS.iter().chain(OWN_PATHS) {
            let whole = if path.ends_with('/') { format!("{path}x") } else { (*path).to_owned() };
            assert!(parse_path(&whole).is_some(), "{path}");
        }
    }

    #[test]
    fn own_listener_serves_one_more_path() {
        let more: Vec<_> = OWN_PATHS.iter().filter(|path| !PATHS.contains(path)).collect();
        assert_eq!((more, OWN_PATHS.len()), (vec![&"/mcp"], PATHS.len() + 1));
    }

    #[test]
    fn a_request_at_mcp_that_accepts_no_stream_is_a_zyra_probe() {
        let head = |method, name: &'static str, value: &'static str| FrameMetadata::Http {
            method,
            path: "/mcp".to_owned(),
            query: String::new(),
            headers: HeaderMap::from_iter([(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )]),
        };
        assert!(is_zyra_probe(&head(Method::GET, "accept", "application/json")));
        assert!(is_zyra_probe(&head(Method::OPTIONS, "accept", "*/*")));
        assert!(!is_zyra_probe(&head(
            Method::GET,
            "accept",
            "application/json, Text/Event-Stream"
        )));
        assert!(!is_zyra_probe(&head(Method::GET, "accept", "text/html,*/*;q=0.8")));
        assert!(!is_zyra_probe(&head(Method::GET, "mcp-session-id", "s1")));
        assert!(!is_zyra_probe(&head(Method::POST, "accept", "application/json")));
        assert!(!is_zyra_probe(&FrameMetadata::Line));
    }

    #[test]
    fn an_encoded_slash_does_not_split_a_segment() {
        assert_eq!(parse_path("/jobs/..%2Fa"), Some(ZyraRoute::Job("../a".to_owned())));
        assert_eq!(parse_path("/v1/jobs/../a"), None);
        assert_eq!(parse_path("/v1/v1/jobs/a"), None);
    }
}
