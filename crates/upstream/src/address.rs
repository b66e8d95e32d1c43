//! Parses the URLs of upstreams.

use toolgate_net::{HttpUrl, HttpUrlError};

/// Converts the URL of a WebSocket into the URL of its HTTP handshake. Returns other URLs
/// unchanged.
pub(crate) fn http_url(url: &str) -> String {
    match url.trim().split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("ws") => format!("http://{rest}"),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("wss") => format!("https://{rest}"),
        Some(_) | None => url.to_owned(),
    }
}

/// Parses the `http` or `https` URL of an upstream or of its authorization server.
///
/// # Errors
///
/// Returns an error that repeats the URL, unless the URL contains a password.
pub(crate) fn parse_url(url: &str) -> Result<HttpUrl, String> {
    HttpUrl::parse(url).map_err(|why| match why {
        HttpUrlError::UserInfo => {
            "the URL contains a password; set it in `headers` instead".to_owned()
        }
        why => format!("`{url}` {why}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_websocket_becomes_that_of_its_handshake() {
        assert_eq!(http_url("wss://news.example/ws"), "https://news.example/ws");
        assert_eq!(http_url("WS://a"), "http://a");
        assert_eq!(http_url("http://news.example"), "http://news.example");
    }

    #[test]
    fn the_error_about_a_url_repeats_it_without_a_password() {
        let why = |url| parse_url(url).expect_err("no URL");
        assert!(why("ftp://a").starts_with("`ftp://a` does not start with"));
        assert!(!why("http://u:secret@a/").contains("secret"));
    }
}
