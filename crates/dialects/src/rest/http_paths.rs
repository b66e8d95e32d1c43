//! HTTP paths of the REST requests for jobs.

use percent_encoding::percent_decode_str;

/// The paths of the REST dialect. A path that ends in `/` includes everything below it.
pub(super) const PATHS: &[&str] = &["/v1/jobs", "/v1/jobs/", "/openapi.json"];

/// The endpoint that a path of the REST dialect names. Job ids are not validated.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RestRoute {
    /// Path of the OpenAPI document of the REST requests.
    OpenApi,
    /// The path of the list of the caller's jobs.
    Jobs,
    /// The path of one job, by its id.
    Job(String),
    /// Path of the event stream of a job, by the job's id.
    Events(String),
    /// Path of a file of a job, by the job's id and the file's name.
    File(String, String),
}

/// Parses `path`. Returns `None` if it is not a path of the REST dialect.
pub(super) fn parse_path(path: &str) -> Option<RestRoute> {
    if path == "/openapi.json" {
        return Some(RestRoute::OpenApi);
    }
    let rest = path.strip_prefix("/v1/jobs")?;
    if rest.is_empty() {
        return Some(RestRoute::Jobs);
    }
    // Decoded after the split, so that `%2F` does not split a segment.
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let segments: Vec<&str> = rest.strip_prefix('/')?.split('/').collect();
    match segments.as_slice() {
        [id] if !id.is_empty() => Some(RestRoute::Job(decode(id))),
        [id, "events"] => Some(RestRoute::Events(decode(id))),
        [id, "files", name] => {
            let name = decode(name);
            let is_plain = !matches!(name.as_str(), "" | "." | "..")
                && !name.contains(['/', '\\'])
                && !name.contains(char::is_control);
            is_plain.then(|| RestRoute::File(decode(id), name))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_selects_a_job_its_events_or_a_file() {
        let id = || "a".to_owned();
        for (path, expected) in [
            ("/openapi.json", Some(RestRoute::OpenApi)),
            ("/v1/jobs", Some(RestRoute::Jobs)),
            ("/v1/jobs/a", Some(RestRoute::Job(id()))),
            ("/v1/jobs/a/events", Some(RestRoute::Events(id()))),
            ("/v1/jobs/a/files/b%20c.txt", Some(RestRoute::File(id(), "b c.txt".to_owned()))),
            ("/v1/jobs/a/files/..%2Fb", None),
            ("/v1/jobs/a/files/..", None),
            ("/v1/jobs/", None),
            ("/v1/jobsx", None),
            ("/v1/jobs/a/download", None),
        ] {
            assert_eq!(parse_path(path), expected, "{path}");
        }
    }
}
