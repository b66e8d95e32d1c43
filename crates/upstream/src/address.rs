//! Parses the URLs of upstreams.

use http::Uri;

use crate::world::NetworkAddress;

/// Converts the URL of a WebSocket into that of its HTTP handshake. Returns other URLs unchanged.
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
    let uri: Uri = url.trim().parse().map_err(|err| format!("`{url}` is no URL: {err}"))?;
    let secure = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        Some(_) | None => {
            return Err(format!("`{url}` begins neither with `http://` nor with `https://`"));
        }
    };
    let authority = uri.authority().ok_or_else(|| format!("`{url}` names no host"))?;
    if authority.as_str().contains('@') {
        return Err("the URL has a password in it; say it in `headers`".to_owned());
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
    Ok((NetworkAddress { host, port, secure, private_network, may_be_local: private_network }, uri))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_to_connect() {
        let (place, uri) = parse_address("https://[::1]:8443/mcp?a=b", false).expect("a place");
        assert_eq!((place.host.as_str(), place.port, place.secure), ("::1", 8443, true));
        assert_eq!(uri.path_and_query().map(|it| it.as_str()), Some("/mcp?a=b"));
        assert_eq!(http_url("wss://news.example/ws"), "https://news.example/ws");
        assert_eq!(http_url("WS://a"), "http://a");
        assert_eq!(http_url("http://news.example"), "http://news.example");
        for odd in ["ftp://a", "a", "http://u:p@a/"] {
            assert!(parse_address(odd, false).is_err(), "{odd}");
        }
    }
}
