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
}
